package bigtable

// RunKey is the key of a run's row.
var RunKey = runKey
