package alloydb

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
	"github.com/tapestore/tapestore/runstore/postgres"
)

const (
	// poolTimeout is how long the read pool may take to respond before the primary is asked.
	poolTimeout = 2 * time.Second
	// poolConnectTimeout bounds making a connection to the read pool, unless the options set
	// connect_timeout. It is that of the primary, 5 s: longer than poolTimeout, so that a slow
	// connection serves the next read, and short of the driver's 2 minutes, during which a dial that
	// is never answered would take up one of the pool's connections.
	poolConnectTimeout = 5 * time.Second
	// minPoolPause and maxPoolPause bound how long a read pool is not used after a failure. The
	// pause doubles with each failure in a row.
	minPoolPause = 250 * time.Millisecond
	maxPoolPause = 30 * time.Second
	// clockLogPause is how often a node's slow clock is logged: every hour, because reads with small
	// bounds may find it many times a second.
	clockLogPause = time.Hour
)

var (
	errBehind = errors.New("alloydb: the read pool is further behind than the bound")
	errPaused = errors.New("alloydb: the read pool failed a moment ago")
)

// readPool reads from a read pool. It never provides leases, tokens, versions or positions.
type readPool struct {
	route
	pool   *pgxpool.Pool
	store  *postgres.Store // for its read statements
	pooled bool            // a proxy may send each transaction to another node
	logger *slog.Logger
	clock  localclock.Clock // this process's clock
	// timeout is how long a read may take before the primary is asked: poolTimeout, but for tests.
	timeout time.Duration

	mu          sync.Mutex
	pause       time.Duration      // after the next failure; 0 if the last read succeeded
	pausedUntil localclock.Reading // no reads before this time
	clockLogged localclock.Reading // when a node's slow clock was last logged
}

// openReadPool opens the pool's connections. It returns only errors that waiting does not fix: a
// wrong name, missing rights. An error of the server there is not one of them, because a node that
// is behind may not have the database or the role yet.
func openReadPool(ctx context.Context, opts *Options, store *postgres.Store) (*readPool, error) {
	r, err := opts.route(ctx, opts.ReadPool)
	if err != nil {
		return nil, err
	}
	pg := opts.postgres()
	c := r.config.ConnConfig
	if !pg.Pooled {
		for name, value := range map[string]string{
			"application_name": "tapestore", "default_transaction_read_only": "on", "jit": "off",
		} {
			if _, set := c.RuntimeParams[name]; !set {
				c.RuntimeParams[name] = value
			}
		}
	} else if c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		c.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = poolConnectTimeout
	}
	p := &readPool{route: r, store: store, pooled: pg.Pooled, logger: opts.logger(), clock: opts.clock(), timeout: poolTimeout}
	if p.pool, err = pgxpool.NewWithConfig(ctx, r.config); err != nil {
		r.close()
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	if err := p.pool.Ping(bounded); err != nil {
		if outcome.Definite(err) { // final, see explain
			p.close()
			return nil, err
		}
		p.failed(err)
	}
	r.setOpened()
	return p, nil
}

func (p *readPool) close() {
	p.pool.Close() // waits for reads in flight
	p.route.close()
}

// ReadJournalStale implements runstore.StaleReader. It reads from the read pool if the node
// measures a lag of at most bound, and otherwise from the primary, which is always up to date: when
// the pool cannot be reached or does not respond within two seconds, when the node is too far behind
// or cannot measure how far, and when it does not have the run. Event.Position is 0, wherever the
// events come from.
//
// Both clocks are AlloyDB's: the lag is the difference between the node's time and the primary's
// time at the last commit that the node has replayed. It is wrong by the difference between the two
// clocks. So a node in recovery is never read at bound 0, and at another bound the events may be
// older by as much as the node's clock is slow. While nothing is committed in the cluster, the lag
// grows, because nothing shows that the node lacks nothing.
func (s *ReadPoolStore) ReadJournalStale(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int, bound time.Duration) (events []runstore.Event, err error) {
	if bound < 0 {
		return nil, &runstore.OpError{Op: "read journal", Run: id, Err: negative(bound)}
	}
	if runstore.CheckRead(id, from, limit) == nil {
		err := s.pool.read(ctx, bound, func(ctx context.Context, conn *pgx.Conn) (err error) {
			events, err = s.pool.store.ReadJournalOn(ctx, conn, id, from, limit)
			return err
		})
		if err == nil {
			return events, nil
		}
	}
	events, err = s.ReadJournal(ctx, id, from, limit)
	for i := range events {
		events[i].Position = 0
	}
	return events, err
}

// ScanIndexStale implements runstore.StaleReader. It chooses between the read pool and the primary
// as ReadJournalStale does.
func (s *ReadPoolStore) ScanIndexStale(ctx context.Context, q runstore.IndexQuery, bound time.Duration) (found []runstore.Candidate, err error) {
	if bound < 0 {
		return nil, &runstore.OpError{Op: "scan index", Err: negative(bound)}
	}
	if q.Check() == nil {
		err := s.pool.read(ctx, bound, func(ctx context.Context, conn *pgx.Conn) (err error) {
			found, err = s.pool.store.ScanIndexOn(ctx, conn, q)
			return err
		})
		if err == nil {
			return found, nil
		}
	}
	q.Heads = false // a Candidate has none
	entries, err := s.ScanIndex(ctx, q)
	return runstore.ToCandidates(entries), err
}

func negative(bound time.Duration) error { return adapter.Invalid("bound", "%v is negative", bound) }

// read calls read with a connection to the read pool, if that node measures a lag of at most bound.
func (p *readPool) read(ctx context.Context, bound time.Duration, read func(ctx context.Context, conn *pgx.Conn) error) error {
	if p.paused() {
		return errPaused
	}
	bounded, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	err := p.pool.AcquireFunc(bounded, func(conn *pgxpool.Conn) error {
		return p.onOneNode(bounded, conn.Conn(), func() error {
			recovery, lag, known, err := lagOf(bounded, conn.Conn())
			switch {
			case err != nil:
				return err
			case recovery && bound == 0: // two clocks never show that a node lacks nothing
				return errBehind
			case !known || lag > bound:
				return errBehind
			case -lag > bound: // the skew alone exceeds the bound
				p.logSlowClock(-lag, bound)
				return errBehind
			}
			return read(bounded, conn.Conn())
		})
	})
	switch {
	case err == nil, errors.Is(err, errBehind), errors.Is(err, runstore.ErrNotFound):
		p.recovered()
	case ctx.Err() != nil, errors.Is(err, puddle.ErrClosedPool): // not the read pool's fault
	default:
		// An error of another kind concerns this read alone, such as a malformed cursor.
		if kind := runstore.KindOf(err); kind == runstore.ErrUnavailable || kind == runstore.ErrUnknownOutcome {
			p.failed(err)
		}
	}
	return err
}

// onOneNode calls f so that all its statements run on one node: the node whose lag is measured must
// be the node that is read. A connection leads to one node, unless a proxy pools transactions. Then
// f runs in one transaction. It is READ COMMITTED, so the read sees what the node has replayed by
// then, which is at least what the lag was measured of.
func (p *readPool) onOneNode(ctx context.Context, conn *pgx.Conn, f func() error) error {
	if !p.pooled {
		return f()
	}
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, conn, options, func(pgx.Tx) error { return f() })
}

// logSlowClock logs that a node's clock is slow by at least skew, at most once in clockLogPause.
func (p *readPool) logSlowClock(skew, bound time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clock.Since(p.clockLogged) < clockLogPause {
		return
	}
	p.clockLogged = p.clock.Read()
	p.logger.Warn("tapestore: the clock of a node of the read pool is slow by more than the bound of a read; the primary is read",
		"slow by at least", skew, "bound", bound)
}

// lagOf returns whether a node is in recovery, and how far it is behind the primary. known is false
// if the node does not show how far. The lag is negative if the node's clock is slow by more than
// the node is behind.
func lagOf(ctx context.Context, conn *pgx.Conn) (recovery bool, lag time.Duration, known bool, err error) {
	var micros *int64
	if err := conn.QueryRow(ctx, sqlStandbyLag).Scan(&recovery, &micros); err != nil || micros == nil {
		return recovery, 0, false, err
	}
	return recovery, time.Duration(*micros) * time.Microsecond, true, nil
}

// paused reports whether the read pool is not used for now, because it failed.
func (p *readPool) paused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.Read().Before(p.pausedUntil)
}

// failed starts a pause after a failed read.
func (p *readPool) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pause == 0 {
		p.logger.Warn("tapestore: the read pool cannot be read; the primary is, until it can", "error", err)
		p.pause = minPoolPause
	}
	p.pausedUntil = p.clock.Read().Add(p.pause)
	p.pause = min(2*p.pause, maxPoolPause)
}

// recovered ends the series of failures after a read that succeeded.
func (p *readPool) recovered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pause > 0 {
		p.logger.Info("tapestore: the read pool is read again")
		p.pause = 0
	}
}
