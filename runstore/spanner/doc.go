// Package spanner stores runs in Google Cloud Spanner.
//
// A write is one read-write transaction of two requests: one statement reads everything
// that decides (the run's row, the records that are guarded or written, the result of the
// same batch if there is one), and the commit carries all mutations. The fence is checked
// inside, on the run's row, which every write of the run reads and writes. See README.md
// for the schema, the life of a commit and what a local run cannot prove.
//
// Importing the package registers the scheme spanner: for runstore.Open.
package spanner
