// Package postgres keeps runs in PostgreSQL (13 or later), through pgx.
//
// A write is one round trip. The fence is part of the statement that locks the
// run's row, so a stale write that waits behind a takeover is judged by the row
// that the takeover left: PostgreSQL evaluates the WHERE clause again on it, see
// https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED.
// Expiry is judged by clock_timestamp() of the server.
//
// Importing the package registers the schemes postgres and postgresql for
// runstore.Open. The page beside it (README.md) tells the tables, the life of a
// commit and of a lease, privileges, backup and failover.
package postgres
