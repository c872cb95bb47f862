package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// cancelGrace is how long a caller whose context has ended waits for its statement: 1 s. After a fifth of that
// time the server is asked to cancel the statement. If it has ended or the server has confirmed the
// cancellation within the grace, the outcome is known and the connection stays in use.
//
// A cancel request is a connection too, and a new connection in place of a closed one needs some 50 ms of
// the server's processors. Where contexts end because a server has no free processor, both would keep it
// busy for good. Most of its statements end soon. A statement that waits for a lock keeps its connection that
// much longer.
const cancelGrace = time.Second

// heartbeatGrace is the same for a heartbeat or a release: 250 ms, because the holder of a short lease repeats it.
const heartbeatGrace = 250 * time.Millisecond

// connectTimeout bounds making a connection, unless the URL sets connect_timeout.
const connectTimeout = 5 * time.Second

// configure adds the store's session settings and hooks to a pool's configuration.
func configure(config *pgxpool.Config, e *engine) {
	c := config.ConnConfig
	e.hooks = hooksOf(config)
	keepWarnings(&c.Config)
	c.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		// A pooler may acknowledge a cancel request before it has passed the request on.
		handler := &canceller{conn: conn, trusted: !e.opts.Pooled, grace: cancelGrace}
		conn.CustomData()[cancellerKey] = handler
		return handler
	}
	if e.opts.Pooled {
		if c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
			c.DefaultQueryExecMode = pgx.QueryExecModeExec
		}
	} else {
		for name, value := range e.settings() {
			if _, set := c.RuntimeParams[name]; !set {
				c.RuntimeParams[name] = value
			}
		}
	}
	// A connection attempt outlives its caller, and must not hang.
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	// No ping before use. A dead connection shows when it is used, and a write whose reply is lost
	// is settled.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	next := config.AfterConnect
	config.AfterConnect = func(lifetime context.Context, conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(lifetime, c.ConnectTimeout)
		defer cancel()
		if next != nil {
			if err := next(ctx, conn); err != nil {
				return err
			}
			if mayCancelNext(ctx, conn.PgConn()) {
				return errCancelInFlight
			}
		}
		err := e.checkConn(ctx, lifetime, conn)
		if err == nil && mayCancelNext(ctx, conn.PgConn()) {
			err = errCancelInFlight
		}
		return err
	}
}

// connHooks are the hooks with which a pool's configuration has every connection made. A nil hook does
// nothing.
type connHooks struct {
	before func(context.Context, *pgx.ConnConfig) error
	after  func(context.Context, *pgx.Conn) error
}

func hooksOf(config *pgxpool.Config) connHooks {
	return connHooks{before: config.BeforeConnect, after: config.AfterConnect}
}

// connectAlone makes a connection outside the pool, with the hooks of the caller's configuration, which may
// set a password that expires or the role. The caller closes it.
func (e *engine) connectAlone(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	config = config.Copy()
	if e.hooks.before != nil {
		if err := e.hooks.before(ctx, config); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil || e.hooks.after == nil {
		return conn, err
	}
	if err := e.hooks.after(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	return conn, nil
}

// errCancelInFlight is returned for a new connection if a cancel request could hit the next caller's
// statement.
var errCancelInFlight = errors.New("postgres: a cancel request may be in flight")

// settings returns the session settings that protect the store from statements, transactions and clients
// that hang, and that fix the plans of prepared statements. Plans are the same for all values. A
// plan made while the store was small or not analyzed would scan and sort tables that have grown
// since, so sequential and bitmap scans are off.
func (e *engine) settings() map[string]string {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	return map[string]string{
		"application_name":                    "tapestore",
		"search_path":                         "pg_catalog",
		"statement_timeout":                   ms(e.opts.StatementTimeout),
		"lock_timeout":                        ms(e.opts.LockTimeout),
		"idle_in_transaction_session_timeout": ms(e.opts.LockTimeout),
		"default_transaction_isolation":       readCommitted,
		"plan_cache_mode":                     "force_generic_plan",
		"enable_seqscan":                      "off",
		"enable_bitmapscan":                   "off",
		"jit":                                 "off",
		// The server notices after half a minute that a client's host is gone. By the defaults of Linux that takes
		// two hours, in which a transaction that was being sent keeps its locks and delays the feed.
		"tcp_keepalives_idle":     "15",
		"tcp_keepalives_interval": "5",
		"tcp_keepalives_count":    "3",
		"tcp_user_timeout":        "30000",
	}
}

// canceller implements ctxwatch.Handler. When a caller's context ends, it waits for the end of the
// statement, asks the server to cancel it after a fifth of the grace, and gives up the connection at the end of the
// grace.
//
// The server answers a cancel request after it has signalled the session, and a session that waits
// for its next statement ignores the signal (ProcessInterrupts in PostgreSQL's postgres.c). So an
// answered request cannot hit a later statement, and the connection stays in use. Otherwise each
// ended context would cost a new connection, and a server that is slow enough for contexts to end
// would become slower still.
type canceller struct {
	conn     *pgconn.PgConn
	grace    time.Duration // of the present statement
	trusted  bool          // an answer means that the session has been signalled
	inFlight bool          // a cancel request may still reach the session
	ended    chan struct{} // closed when the statement has ended
	asked    chan bool     // receives whether a cancel request may still reach the session
}

const cancellerKey = "tapestore.canceller"

// HandleCancel implements ctxwatch.Handler.
func (c *canceller) HandleCancel(caller context.Context) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(caller), c.grace)
	deadline, _ := ctx.Deadline()
	_ = c.conn.Conn().SetDeadline(deadline) // a closed connection needs none
	c.ended, c.asked = make(chan struct{}), make(chan bool, 1)
	go func() {
		defer stop()
		c.asked <- c.ask(ctx)
	}()
}

// ask asks the server to cancel the statement, unless it ends soon. It reports whether the request may
// still reach the session.
func (c *canceller) ask(ctx context.Context) (inFlight bool) {
	patience := time.NewTimer(c.grace / 5)
	defer patience.Stop()
	select {
	case <-c.ended:
		return false
	case <-patience.C:
	}
	err := c.conn.CancelRequest(ctx) // if it fails, the deadline ends the wait
	return err != nil || ctx.Err() != nil || !c.trusted
}

// HandleUnwatchAfterCancel implements ctxwatch.Handler.
func (c *canceller) HandleUnwatchAfterCancel() {
	close(c.ended)
	c.inFlight = <-c.asked || c.inFlight
	_ = c.conn.Conn().SetDeadline(time.Time{})
}

// mayCancelNext reports whether a cancel request may still be in flight, so that it would hit the
// connection's next statement. ctx is the context of the statements so far.
func mayCancelNext(ctx context.Context, conn *pgconn.PgConn) bool {
	if c, ok := conn.CustomData()[cancellerKey].(*canceller); ok {
		return c.inFlight
	}
	return ctx.Err() != nil // a pool of the caller's, which may cancel in another way
}

// errNotMigrated is returned for a new connection if the schema has another version and begin has
// not migrated it yet.
var errNotMigrated = errors.New("postgres: the schema is of another version")

// checkConn checks a new connection before it is used. It raises the epoch if the server is another
// incarnation than the one that the epoch belongs to, repeats a migration that was lost with the former
// one, and makes sure that the server has a commit on disk when it acknowledges it. A failover breaks all
// connections, so no statement runs on a promoted server before this check. Behind a proxy that keeps
// them, the guard of each write sees the other server (incarnation.go).
//
// ctx bounds the check, and lifetime a migration and a raise of the epoch, which may take longer.
func (e *engine) checkConn(ctx, lifetime context.Context, conn *pgx.Conn) error {
	var at, known incarnation
	var standby, asynchronous bool
	var epoch runstore.Epoch
	var base int64
	var version int
	var isolation string
	look := func() error {
		at = incarnation{}
		err := conn.QueryRow(ctx, e.sql(sqlSessionCheck), onceOnly(conn)).Scan(
			&standby, &at.cluster, &at.timeline, &known.cluster, &known.timeline, &asynchronous, &isolation, &epoch, &base, &version)
		hidden := incarnationHidden(err)
		if hidden {
			err = conn.QueryRow(ctx, e.sql(sqlSessionCheckHidden), onceOnly(conn)).Scan(
				&standby, &known.cluster, &known.timeline, &asynchronous, &isolation, &epoch, &base, &version)
		}
		if err == nil {
			e.hidden.Store(hidden)
		}
		if err == nil && standby {
			err = errStandby
		}
		return err
	}
	if err := look(); err != nil {
		return err
	}
	switch {
	case !e.migrated.Load() && version != len(migrations):
		return errNotMigrated
	case version < len(migrations):
		if err := e.migrateAgain(lifetime, conn, version); err != nil {
			return err
		}
		after, cancel := context.WithTimeout(context.WithoutCancel(lifetime), connectTimeout)
		defer cancel()
		ctx = after
	}
	if isolation != readCommitted {
		return errIsolation(isolation)
	}
	if asynchronous {
		if e.opts.Pooled {
			return errAsynchronous()
		}
		if _, err := conn.Exec(ctx, "SET synchronous_commit = on"); err != nil {
			return err
		}
	}
	if at.cluster != "" && at != known {
		if err := e.raiseForIncarnation(lifetime, conn, known, at); err != nil {
			return err
		}
		ctx2, cancel := context.WithTimeout(context.WithoutCancel(lifetime), connectTimeout)
		defer cancel()
		ctx = ctx2
		if err := look(); err != nil {
			return err
		}
	}
	e.positions.set(epoch, base)
	return nil
}

const readCommitted = "read committed"

func errIsolation(isolation string) error {
	return adapter.Invalid("default_transaction_isolation",
		"is %s for this role. Set it: ALTER ROLE … SET default_transaction_isolation = 'read committed'", isolation)
}

func errAsynchronous() error {
	return adapter.Invalid("synchronous_commit", "is off for this role; a crash of the server could give a token out twice. "+
		"Set it: ALTER ROLE … SET synchronous_commit = on")
}

// onceOnly returns the mode for a statement that runs once per connection. It avoids preparing the
// statement, which would be another round trip.
func onceOnly(conn *pgx.Conn) pgx.QueryExecMode {
	if mode := conn.Config().DefaultQueryExecMode; mode != pgx.QueryExecModeCacheStatement {
		return mode
	}
	return pgx.QueryExecModeExec
}

// raiseForIncarnation raises the epoch, because the server is another incarnation than the one that
// granted the last tokens. It continues for StatementTimeout and 1 s after lifetime has ended, so that
// callers with short deadlines do not end every attempt.
func (e *engine) raiseForIncarnation(lifetime context.Context, conn *pgx.Conn, known, at incarnation) error {
	why := fmt.Sprintf("the store was in cluster %s on timeline %d, now it is in %s on %d", known.cluster, known.timeline, at.cluster, at.timeline)
	ctx, cancel := context.WithCancel(context.WithoutCancel(lifetime))
	defer cancel()
	defer time.AfterFunc(e.opts.StatementTimeout+time.Second, func() { context.AfterFunc(lifetime, cancel) }).Stop()
	epoch, err := e.raiseEpoch(ctx, conn, why, at, true)
	if err != nil {
		return err
	}
	if epoch > 0 { // otherwise another handle has raised it already
		e.opts.Logger.Warn("tapestore: the epoch was raised, all leases are ended", "epoch", int64(epoch), "reason", why)
	}
	return runstore.CheckEpoch(epoch)
}

// maxRaise is how long a raise of the epoch, or a migration by an open handle, may take: 10 minutes. A server
// that falls silent meanwhile keeps a connection, and Close, for no longer.
const maxRaise = 10 * time.Minute

// raiseEpoch raises the epoch and returns it. If ifOther is set, it raises the epoch only if the store was in
// another incarnation than at, and otherwise returns 0. The raise may take maxRaise. It is one transaction in
// one round trip, so an ERROR of the server means that the epoch was not raised.
func (e *engine) raiseEpoch(ctx context.Context, conn *pgx.Conn, why string, at incarnation, ifOther bool) (epoch runstore.Epoch, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxRaise)
	defer cancel()
	unbindStatement(conn)
	var batch pgx.Batch
	batch.Queue(noTimeout(e.opts.LockTimeout))
	batch.Queue(e.sql(sqlEpochRaise), []byte(why), at.cluster, at.timeline, ifOther).QueryRow(func(row pgx.Row) error {
		return row.Scan(&epoch)
	})
	return epoch, conn.SendBatch(ctx, &batch).Close()
}

// incarnation identifies a history of the database: a cluster, and its timeline, which changes with
// every promotion or recovery. Within one incarnation the database cannot go back to an earlier
// state and grant a token twice.
type incarnation struct {
	cluster  string
	timeline int64
}

// incarnationOf returns the server's incarnation. It returns the zero incarnation if this role may
// not read it; then the operator raises the epoch.
func incarnationOf(ctx context.Context, conn *pgx.Conn) (at incarnation, err error) {
	var standby bool
	err = conn.QueryRow(ctx, sqlIncarnationRead, onceOnly(conn)).Scan(&standby, &at.cluster, &at.timeline)
	if incarnationHidden(err) {
		return incarnation{}, nil
	}
	if err == nil && standby {
		err = errStandby
	}
	return at, err
}

// incarnationHidden reports whether err means that the server does not show its incarnation to this
// role.
func incarnationHidden(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && (server.Code == "42501" || server.Code == "42883" || server.Code == "0A000")
}
