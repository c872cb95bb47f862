package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

const defaultSchema = "tapestore"

// Store is an open handle on a store in PostgreSQL. It implements runstore.RunStore and the
// capabilities MultiCommitter, Notifier, RunNotifier, EpochManager, TermReader, Mover, StrictCommitter
// and Describer.
type Store struct {
	*adapter.Store
	adapter.MultiCommitter
	adapter.EpochManager
	adapter.Mover
	adapter.Notifier
	adapter.RunNotifier
	adapter.TermReader
	engine *engine
}

var _ interface {
	runstore.RunStore
	runstore.MultiCommitter
	runstore.Notifier
	runstore.RunNotifier
	runstore.EpochManager
	runstore.TermReader
	runstore.Mover
	runstore.StrictCommitter
	runstore.Describer
} = (*Store)(nil)

// engine implements adapter.Core and the capabilities that the adapter kit makes of an engine's.
type engine struct {
	pool      *pgxpool.Pool
	shared    bool // the pool is the caller's, see New
	hooks     connHooks
	opts      Options
	clock     localclock.Clock // this process's clock
	queues    runQueues
	coalescer appendCoalescer
	bulkhead  bulkhead
	positions positions
	notifier  *notifier
	timed     timedLeases
	sqlCache  sync.Map // statements rewritten for Options.Schema, by their original text

	hidden      atomic.Bool   // whether the server hides its incarnation from this role
	migrated    atomic.Bool   // whether the schema is known to have this program's version
	collectRows atomic.Int32  // how many rows the next step of collecting deletes
	leftGarbage chan struct{} // holds a value if the background is to collect garbage
	moving      atomic.Bool   // entries of renewed leases are being moved, see moveBehindLeases

	stopped    context.Context // ends when Close begins
	stop       context.CancelFunc
	background sync.WaitGroup // started in setUp and by operations in flight
}

// Open opens the store in the database that config connects to, and creates or migrates its schema
// as needed. It takes ownership of config and adds session settings and hooks to it.
func Open(ctx context.Context, config *pgxpool.Config, opts *Options) (*Store, error) {
	e, err := open(ctx, config, opts)
	if err != nil {
		return nil, outcome.Wrap("open postgres store", "", err)
	}
	return newStore(e), nil
}

func newStore(e *engine) *Store {
	s := &Store{Store: adapter.New(e, adapter.Options{Waiters: e.notifier.waiters}), engine: e}
	s.MultiCommitter = adapter.NewMultiCommitter(s.Store, e)
	s.EpochManager = adapter.NewEpochManager(s.Store, e)
	s.TermReader = adapter.NewTermReader(s.Store, e)
	s.Mover = adapter.NewMover(s.Store, e)
	s.Notifier = adapter.NewNotifier(s.Store, e)
	s.RunNotifier = adapter.NewRunNotifier(s.Store, e)
	return s
}

func open(ctx context.Context, config *pgxpool.Config, options *Options) (*engine, error) {
	e, err := newEngine(options, int(config.MaxConns))
	if err != nil {
		return nil, err
	}
	configure(config, e)
	if e.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, outcome.Unavailable(err)
	}
	if err := e.setUp(ctx, config.ConnConfig); err != nil {
		e.pool.Close()
		return nil, err
	}
	return e, nil
}

// newEngine returns an engine without a pool, which has up to conns connections.
func newEngine(options *Options, conns int) (*engine, error) {
	opts, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &engine{opts: opts, clock: localclock.New(opts.Clock)}
	e.stopped, e.stop = context.WithCancel(context.Background())
	e.coalescer = appendCoalescer{freeSlots: maxInFlight, sendOne: e.sendGroup, sendMulti: e.appendMulti}
	e.queues = runQueues{all: map[runstore.RunID]*runQueue{}, sendGroup: e.coalescer.submit}
	e.bulkhead = newBulkhead(conns)
	e.collectRows.Store(collectStep)
	e.leftGarbage = make(chan struct{}, 1)
	return e, nil
}

// setUp migrates the schema as needed, over connections of config, and starts the background
// work.
func (e *engine) setUp(ctx context.Context, config *pgx.ConnConfig) error {
	if err := e.begin(ctx, config); err != nil {
		return err
	}
	e.notifier = newNotifier(e)
	if more, err := e.collectOnce(ctx, nil); more || err != nil { // a crash may have left much garbage
		signal(e.leftGarbage)
	}
	e.background.Go(e.collectLeft)
	return nil
}

// begin opens the pool's first connection, which checks the version of the schema (see checkConn).
// If that connection fails, begin migrates the schema over a separate connection, connects again,
// and returns the error of this second attempt. It migrates nothing for a caller's pool that the
// store cannot use.
func (e *engine) begin(ctx context.Context, config *pgx.ConnConfig) error {
	nothing := func(*query) error { return nil }
	err := e.readOnce(ctx, nothing)
	if err == nil {
		e.migrated.Store(true)
		return nil
	}
	if refused := new(runstore.InputError); e.shared && errors.As(err, &refused) {
		return refused
	}
	if err := e.migrate(ctx, config); err != nil {
		return err
	}
	e.migrated.Store(true)
	return e.read(ctx, nothing)
}

// Close implements adapter.Core. Operations in flight that wait for a connection or a slot fail
// with ErrClosed.
func (e *engine) Close(idle <-chan struct{}) error {
	e.stop()
	if !e.shared {
		e.pool.Close() // waits for the connections that operations in flight hold
	}
	<-idle
	e.background.Wait()
	return nil
}

// sql returns the statement with the name of the store's schema in place of the default name.
func (e *engine) sql(text string) string {
	if e.opts.Schema == defaultSchema {
		return text
	}
	if own, ok := e.sqlCache.Load(text); ok {
		return own.(string)
	}
	own := inSchema(text, e.opts.Schema)
	e.sqlCache.Store(text, own)
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

// Now implements adapter.Core.
func (e *engine) Now(ctx context.Context) (now time.Time, err error) {
	err = e.read(ctx, func(q *query) error {
		return q.each(sqlClockNow, nil, []any{&now}, func() error { return nil })
	})
	return now, err
}

// StrictAtCommit implements runstore.StrictCommitter. It returns true: the writing statement
// compares the expiry with clock_timestamp() on the row that it has locked.
func (s *Store) StrictAtCommit() bool { return true }

// Describe implements runstore.Describer.
func (s *Store) Describe(ctx context.Context) (runstore.Description, error) {
	return adapter.Do(ctx, s.Store, "describe", "", nil, s.engine.describe)
}

func (e *engine) describe(ctx context.Context) (d runstore.Description, err error) {
	d = runstore.Description{Engine: e.opts.Engine, Tier: "service"}
	err = e.read(ctx, func(q *query) error {
		return q.each(sqlVersionRead, nil, []any{&d.Version}, func() error { return nil })
	})
	return d, err
}

// LeaseVector describes how the engine keeps leases.
func LeaseVector() runstore.LeaseVector {
	return runstore.EngineLeases(
		"the run's row, locked by the writing statement; clock_timestamp() of the server",
		"in the one statement of each write; in a caller's transaction by FenceTx")
}
