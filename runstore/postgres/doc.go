// Package postgres stores runs in PostgreSQL 13 or later, through pgx.
//
// A write is one round trip, a refused commit two, with few exceptions. The fence is part of the
// statement that locks the run's row. When a stale write waits for a takeover in flight, PostgreSQL
// evaluates the WHERE clause again on the row that the takeover committed, and the write is refused:
// https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED. Expiry is
// judged by clock_timestamp() of the server.
//
// Importing the package registers the schemes postgres and postgresql for runstore.Open. README.md
// in this directory describes the tables, the life of a commit and of a lease, privileges, backup
// and failover.
package postgres
