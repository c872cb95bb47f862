// Package spanner stores runs in Google Cloud Spanner.
//
// A write is one read-write transaction of two requests. One statement reads everything that the
// decision depends on: the run's row, the records that are guarded or written, and the stored
// result of the same write, if there is one. The commit carries all mutations. The fence is checked
// inside the transaction, on the run's row, which every write of the run reads and writes.
// README.md describes the schema, the steps of a commit and what a test against the emulator cannot
// prove.
//
// Importing the package registers the URL scheme spanner: with runstore.Open.
package spanner
