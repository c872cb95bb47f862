// Package sqlite is the embedded engine: one file, no server, safe from several processes of one
// host.
//
// A commit is one immediate transaction. Concurrent commits of a handle share one transaction and
// one sync of the write-ahead log (group commit), and each keeps its own guards, result and error.
// The fence is a WHERE clause on the run's row, inside that transaction. README.md describes the
// tables, the clock, the epoch and the limits.
//
// Importing the package registers the scheme sqlite: with runstore.Open. On Linux it also makes the driver,
// modernc.org/sqlite, use open file description locks for all databases of the process, unless the variable
// MODERNC_SQLITE_OFD_LOCK is set (README.md, Limits).
package sqlite
