package postgres

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A commit waits for the synchronous standbys that the server is configured with. The wait may be
// cut short: by the cancel request that follows the end of a caller's context, by an operator, or
// because the server ends the session. PostgreSQL can no longer roll back then. It reports the
// transaction as committed, with a warning that it may be on no standby:
// https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION-HA
//
// The outcome of such a write is ambiguous, as if its reply were lost. Settling it (see settleLost)
// is a transaction that locks the run's row. That transaction's commit comes after the write's and
// waits for the standbys itself. If it succeeds without the warning, the standbys have both. A
// retry by the caller locks the row too.

// unreplicatedKey is the key of the last warning in a connection's CustomData.
const unreplicatedKey = "tapestore.unreplicated"

// keepWarnings makes connections keep the warning that a commit may be on no standby.
func keepWarnings(config *pgconn.Config) {
	next := config.OnNotice
	config.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if unreplicated(n) {
			conn.CustomData()[unreplicatedKey] = n
		}
		if next != nil {
			next(conn, n)
		}
	}
}

// unreplicated reports whether a notice may be that warning. The server has no SQLSTATE for it,
// only those of any warning (01000) and of its shutdown (57P01), and translates the text. So every
// such warning counts, except those of RAISE WARNING, which a trigger of the operator may send with
// every write. Settling a write needlessly costs one round trip.
func unreplicated(n *pgconn.Notice) bool {
	return (n.Code == "01000" || n.Code == "57P01") && n.Routine != "exec_stmt_raise"
}

// acknowledged runs f, which sends a write and reads its results to the end of the transaction. It
// returns f's error, or an unreplicatedError if the server committed without its standbys.
func acknowledged(conn *pgx.Conn, f func() error) error {
	kept := conn.PgConn().CustomData()
	delete(kept, unreplicatedKey) // from an earlier statement or from connecting
	if err := f(); err != nil {
		return err
	}
	if n, warned := kept[unreplicatedKey].(*pgconn.Notice); warned {
		return &unreplicatedError{n}
	}
	return nil
}

// unreplicatedError is the error of a write that the server committed without waiting for its
// synchronous standbys. Its class is classAmbiguous.
type unreplicatedError struct{ notice *pgconn.Notice }

// Error implements error.
func (e *unreplicatedError) Error() string {
	return "postgres: committed, but perhaps on no standby: " + e.notice.Message + " (SQLSTATE " + e.notice.Code + ")"
}
