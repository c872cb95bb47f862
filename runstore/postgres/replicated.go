package postgres

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A commit waits for the synchronous standbys that the server was given. When the wait
// is cut short, by the request to cancel that follows the end of a caller's context, by an
// operator, or because the server ends the session, PostgreSQL can no longer roll back. It
// answers that the transaction is committed, with a warning that no standby may have it:
// https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION-HA
//
// The outcome of such a write is unknown, as if its reply were lost. Settling it (see
// settleLost) is a transaction that locks the run's row, and so commits behind the write
// and waits for the standbys itself. Its own answer, if it comes without the warning, proves
// that they have both. A repeat by the caller locks the row too.

// unreplicatedKey is where the warning is kept with its connection.
const unreplicatedKey = "tapestore.unreplicated"

// keepWarnings keeps what says that a commit may be on no standby.
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

// unreplicated reports whether a notice may say that. The server has no SQLSTATE for it,
// only those of any warning (01000) and of its shutdown (57P01), and translates the text. So
// every such warning counts, but for those of RAISE WARNING, which a trigger of the
// operator's may send with every write: to settle a write in vain costs a round trip.
func unreplicated(n *pgconn.Notice) bool {
	return (n.Code == "01000" || n.Code == "57P01") && n.Routine != "exec_stmt_raise"
}

// acknowledged runs f, which sends a write and reads its answer to the end of the
// transaction. It returns f's error, or an unreplicatedError if the server committed
// without its standbys.
func acknowledged(conn *pgx.Conn, f func() error) error {
	kept := conn.PgConn().CustomData()
	delete(kept, unreplicatedKey) // one of an earlier statement, or of the connection's start
	if err := f(); err != nil {
		return err
	}
	if n, warned := kept[unreplicatedKey].(*pgconn.Notice); warned {
		return &unreplicatedError{n}
	}
	return nil
}

// unreplicatedError is that of a write which the server committed without waiting for its
// synchronous standbys. Its fate is lost.
type unreplicatedError struct{ notice *pgconn.Notice }

// Error implements error.
func (e *unreplicatedError) Error() string {
	return "postgres: committed, but perhaps on no standby: " + e.notice.Message + " (SQLSTATE " + e.notice.Code + ")"
}
