package postgres

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

const defaultSchema = "tapestore"

// Store is an open handle on a store in PostgreSQL. It implements
// runstore.RunStore and the capabilities MultiCommitter, Notifier, RunNotifier, EpochManager and
// Describer.
type Store struct {
	pool      *pgxpool.Pool
	opts      Options
	clock     localclock.Clock // this process's clock
	queues    runQueues
	coalescer appendCoalescer
	bulkhead  bulkhead
	positions positions
	notifier  *notifier
	mover     *mover
	hints     hintCache
	sqlCache  sync.Map // statements rewritten for Options.Schema, by their original text

	migrated   atomic.Bool // whether the schema is known to have this program's version
	closeOnce  sync.Once
	closed     chan struct{}
	background sync.WaitGroup
}

var _ interface {
	runstore.RunStore
	runstore.MultiCommitter
	runstore.Notifier
	runstore.RunNotifier
	runstore.EpochManager
	runstore.Describer
} = (*Store)(nil)

// Open opens the store in the database that config connects to, and creates or migrates its schema
// as needed. It takes ownership of config and adds session settings and hooks to it.
func Open(ctx context.Context, config *pgxpool.Config, options *Options) (*Store, error) {
	s, err := open(ctx, config, options)
	if err != nil {
		return nil, outcome.Wrap("open postgres store", "", err)
	}
	return s, nil
}

func open(ctx context.Context, config *pgxpool.Config, options *Options) (*Store, error) {
	opts, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{opts: opts, clock: localclock.New(opts.Clock), closed: make(chan struct{})}
	s.coalescer = appendCoalescer{freeSlots: maxInFlight, sendOne: s.sendGroup, sendMulti: s.appendMulti}
	s.queues = runQueues{all: map[runstore.RunID]*runQueue{}, sendGroup: s.coalescer.submit}
	s.bulkhead = newBulkhead(int(config.MaxConns))
	configure(config, s)
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, outcome.Unavailable(err)
	}
	if err := s.begin(ctx, config.ConnConfig); err != nil {
		s.pool.Close()
		return nil, err
	}
	s.notifier, s.mover = newNotifier(s), newMover(s)
	if s.collectOnce(ctx, nil) { // a crash may have left much garbage
		s.background.Go(s.collectLeft)
	}
	return s, nil
}

// begin opens the pool's first connection, which checks the version of the schema (see checkConn).
// If that connection fails for any reason, begin migrates the schema over a separate connection,
// connects again, and returns the error of this second attempt.
func (s *Store) begin(ctx context.Context, config *pgx.ConnConfig) error {
	nothing := func(*query) error { return nil }
	if s.readOnce(ctx, nothing) == nil {
		s.migrated.Store(true)
		return nil
	}
	if err := s.migrate(ctx, config); err != nil {
		return err
	}
	s.migrated.Store(true)
	return s.read(ctx, "open", "", nil, nothing)
}

// Close implements runstore.RunStore.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closed)
		s.background.Wait()
		s.notifier.close()
		s.mover.close()
		s.pool.Close() // waits for operations in flight
	})
	return nil
}

// op wraps every operation. It returns invalid, if that is not nil, before anything else; then
// ErrClosed on a closed handle; then ErrUnavailable if ctx has ended; otherwise the result of f.
func (s *Store) op(ctx context.Context, op string, id runstore.RunID, invalid error, f func() error) error {
	if invalid != nil {
		return outcome.Wrap(op, id, invalid)
	}
	select {
	case <-s.closed:
		return outcome.Wrap(op, id, runstore.ErrClosed)
	default:
	}
	if err := ctx.Err(); err != nil {
		return outcome.Wrap(op, id, outcome.Unavailable(err))
	}
	return outcome.Wrap(op, id, f())
}

// sql returns the statement with the name of the store's schema in place of the default name.
func (s *Store) sql(text string) string {
	if s.opts.Schema == defaultSchema {
		return text
	}
	if own, ok := s.sqlCache.Load(text); ok {
		return own.(string)
	}
	own := inSchema(text, s.opts.Schema)
	s.sqlCache.Store(text, own)
	return own
}

// inSchema replaces the default schema's name in a statement. It quotes the new name, which may be
// a keyword.
func inSchema(text, schema string) string {
	if schema == defaultSchema {
		return text
	}
	return strings.ReplaceAll(text, defaultSchema+".", `"`+schema+`".`)
}

const selectNow = `SELECT clock_timestamp()`

// Now implements runstore.RunStore.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.read(ctx, "now", "", nil, func(q *query) error {
		return q.each(selectNow, nil, []any{&now}, func() error { return nil })
	})
	return now.UTC(), err
}

// StrictAtCommit implements runstore.StrictCommitter. It returns true: the writing statement
// compares the expiry with clock_timestamp() on the row that it has locked.
func (s *Store) StrictAtCommit() bool { return true }

// Describe implements runstore.Describer.
func (s *Store) Describe(ctx context.Context) (d runstore.Description, err error) {
	d = runstore.Description{Engine: s.opts.Engine, Tier: "service"}
	err = s.read(ctx, "describe", "", nil, func(q *query) error {
		return q.each(`SELECT current_setting('server_version')`, nil, []any{&d.Version}, func() error { return nil })
	})
	return d, err
}
