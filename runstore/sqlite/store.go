package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// Store is an open handle on a SQLite database. It implements runstore.RunStore and the
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

// engine implements adapter.Core for one handle on a database.
type engine struct {
	*database
	stopped context.Context // ended by Close: ends watchers, background work, and reads that wait for a connection
	stop    context.CancelFunc

	// background counts the goroutines of work that no caller waits for, and watching those that look
	// for changes by other processes. Only Open and operations in flight start such goroutines, so
	// Close first waits for the operations.
	background   sync.WaitGroup
	watching     sync.WaitGroup
	foreignWatch foreignWatch
	moving       atomic.Bool // entries of renewed leases are being moved, see moveBehindLeases
}

// database is the state that the handles of one opening share: the connections, their writer and
// their caches.
type database struct {
	path      string
	opts      Options
	version   string
	clock     *clock
	writer    *writer
	watermark *watermark // nil for a database in memory
	damage    damage
	waiters   wakeup.Hub
	own       *changeCount // changes by this process
	handles   atomic.Int32 // the number of open handles
	heads     headCache    // used by the leader of the writer, like lastState and trims
	lastState cachedState
	trims     int // calls of trimLog
	// sweeping is held by the caller that deletes the rows of purged runs.
	sweeping   chan struct{}
	hasGarbage bool // rows of purged runs were left when the store was opened

	progress progress // of the last commit, for the watermark; used by the leader of the writer

	// One connection writes, several read. A database in memory has one connection for both, and
	// then the two channels are the same.
	writers, readers chan *conn
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

// Open opens the database file at path and creates or migrates its schema as needed. ":memory:"
// creates a database that is deleted when the handle is closed.
//
// A file that is not a database, belongs to another application or has a newer schema is refused
// and left unchanged.
func Open(ctx context.Context, path string, opts *Options) (*Store, error) {
	db, err := open(ctx, path, opts)
	if err != nil {
		return nil, outcome.Wrap("open sqlite store", "", classify("", explain(path, err)))
	}
	db.handles.Store(1)
	e := newEngine(db)
	if db.hasGarbage {
		e.background.Go(func() { e.sweep(e.stopped) })
	}
	return newStore(e), nil
}

// NewHandle returns another handle on the same connections, which is closed separately. A database
// in memory can be opened twice only in this way; a file is better opened again, with connections
// of its own.
//
// If all handles of the store are closed, NewHandle returns a closed handle.
func (s *Store) NewHandle() *Store {
	db := s.engine.database
	for {
		n := db.handles.Load()
		if n == 0 {
			return s // closed, as every handle is
		}
		if db.handles.CompareAndSwap(n, n+1) {
			return newStore(newEngine(db))
		}
	}
}

// newEngine returns the engine of one more handle, which the caller counts in db.handles.
func newEngine(db *database) *engine {
	e := &engine{database: db}
	e.stopped, e.stop = context.WithCancel(context.Background())
	return e
}

// newStore returns the handle of an engine.
func newStore(e *engine) *Store {
	s := &Store{Store: adapter.New(e, adapter.Options{Waiters: e.waiters, Classify: classify}), engine: e}
	s.MultiCommitter = adapter.NewMultiCommitter(s.Store, e)
	s.EpochManager = adapter.NewEpochManager(s.Store, e)
	s.Notifier = adapter.NewNotifier(s.Store, e)
	s.RunNotifier = adapter.NewRunNotifier(s.Store, e)
	s.TermReader = adapter.NewTermReader(s.Store, e)
	s.Mover = adapter.NewMover(s.Store, e)
	return s
}

func open(ctx context.Context, path string, options *Options) (*database, error) {
	opts, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	if path != Memory {
		if path, err = checkPath(path, opts.MustExist); err != nil {
			return nil, err
		}
	}
	db := &database{
		path: path, opts: opts, heads: headCache{}, clock: &clock{host: opts.Clock},
		writers: make(chan *conn, 1), readers: make(chan *conn, opts.Readers),
		sweeping: make(chan struct{}, 1),
	}
	db.damage.path, db.damage.logger = path, opts.Logger
	db.waiters, db.own = wakeup.Of(db), newChangeCount()
	if path != Memory { // handles of one file in one process share them
		db.waiters, db.own = wakeup.Of("sqlite:"+path), ownChangeCount(path)
	}
	first, err := db.connect(ctx, "synchronous(FULL)") // until the opening is committed, see noteUnsynced
	if err != nil {
		return nil, err
	}
	if err := db.catchDamage(func() error { return db.prepare(ctx, first) }); err != nil {
		db.watermark.close()
		return nil, errors.Join(err, first.close())
	}
	db.writers <- first
	if path == Memory {
		db.readers = db.writers
	} else {
		for range opts.Readers {
			c, err := db.connect(ctx, "query_only(1)")
			if err != nil {
				db.watermark.close()
				return nil, errors.Join(err, db.closeConnections())
			}
			db.readers <- c
		}
	}
	db.writer = &writer{store: db, maxSize: opts.MaxGroup}
	return db, nil
}

// prepare prepares the database for use: schema, clock, epoch.
func (db *database) prepare(ctx context.Context, c *conn) error {
	row, err := c.one(ctx, sqlVersionRead)
	if err != nil {
		return err
	}
	db.version = row[0].(string)
	if db.opts.ReadOnly {
		return db.prepareReadOnly(ctx, c)
	}
	if err := migrate(ctx, c); err != nil {
		return err
	}
	if db.path != Memory {
		db.watermark = &watermark{path: db.path + "-witness"}
	}
	if err := retryWhileBusy(ctx, func() error { return db.beginWrite(ctx, c) }); err != nil {
		return err
	}
	if err := db.initClockAndEpoch(ctx, c); err != nil {
		_ = c.script(ctx, "ROLLBACK") // the first error is the one to report
		return err
	}
	// Without ctx: the driver returns its error even if the COMMIT succeeds as it ends.
	if err := c.script(context.WithoutCancel(ctx), "COMMIT"); err != nil {
		return err
	}
	db.watermark.record(db.progress)
	return c.script(ctx, "PRAGMA synchronous = "+string(db.opts.Synchronous))
}

// prepareReadOnly checks the schema and reads the clock, and changes nothing.
func (db *database) prepareReadOnly(ctx context.Context, c *conn) error {
	return retryWhileBusy(ctx, func() error {
		version, err := identify(ctx, c)
		if err != nil {
			return err
		}
		if version != len(migrations) {
			return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "schema", Problem: fmt.Sprintf(
				"version %d of the database is older than this program's %d; open it for writing once", version, len(migrations))}
		}
		a, _, err := readClock(ctx, c)
		db.clock.set(a)
		return err
	})
}

// initClockAndEpoch sets the clock and the epoch when the store is opened, within one transaction.
func (db *database) initClockAndEpoch(ctx context.Context, c *conn) error {
	a, now, err := db.clock.load(ctx, c)
	if err != nil {
		return err
	}
	db.clock.set(a) // if the transaction fails, the store is not opened
	boot, _ := db.opts.Clock.Up()
	if err := db.watermark.compare(ctx, c, now, boot); err != nil {
		return err
	}
	if _, err := c.exec(ctx, sqlStoreOpen, now.UnixMicro()); err != nil {
		return err
	}
	row, err := c.one(ctx, sqlPurgeNewest)
	if err != nil {
		return err
	}
	db.hasGarbage = row[0] != nil
	if db.progress, err = readProgress(ctx, c); err != nil {
		return err
	}
	return db.noteUnsynced(ctx, c, now, boot)
}

// Close implements adapter.Core.
func (e *engine) Close(idle <-chan struct{}) error {
	e.stop()
	<-idle
	e.background.Wait()
	e.watching.Wait() // the last connection to close folds the log into the file
	if e.handles.Add(-1) > 0 {
		return nil
	}
	err := e.closeConnections()
	e.watermark.close()
	return err
}

// closeConnections closes the connections. No caller uses any.
func (db *database) closeConnections() error {
	var errs []error
	if db.readers != db.writers {
		for range len(db.readers) {
			errs = append(errs, (<-db.readers).close())
		}
	}
	return errors.Join(append(errs, (<-db.writers).close())...)
}

// read runs f in a read transaction, which sees one consistent state and holds no lock that a
// writer waits for.
func (e *engine) read(ctx context.Context, f func(c *conn) error) error {
	select {
	case <-e.stopped.Done():
		return runstore.ErrClosed
	case <-ctx.Done():
		return unavailable(ctx.Err())
	case c := <-e.readers:
		defer func() { e.readers <- c }()
		err := e.catchDamage(func() error { return e.snapshot(ctx, c, f) })
		if err != nil && ctx.Err() != nil && !isDamage(err) {
			return unavailable(ctx.Err())
		}
		return err
	}
}

func (db *database) snapshot(ctx context.Context, c *conn, f func(c *conn) error) (err error) {
	// Without ctx, as the COMMIT below: when a context ends at the moment in which BEGIN succeeds,
	// the driver returns an error, and the transaction would stay open.
	if _, err := c.exec(context.Background(), "BEGIN"); err != nil {
		return err
	}
	defer func() {
		// Without ctx: the transaction must end in any case.
		if _, end := c.exec(context.Background(), "COMMIT"); err == nil {
			err = end
		}
	}()
	// SQLite takes the snapshot at the first read. That read meets a lock when another process
	// closes the file as its last user or recovers its log.
	err = retryWhileBusy(ctx, func() error {
		row, err := c.one(ctx, sqlSnapshotTake)
		if err == nil {
			db.clock.refresh(row[0].(int64), row[1].(int64))
		}
		return err
	})
	if err != nil {
		return err
	}
	return f(c)
}

// Now implements adapter.Core.
func (e *engine) Now(ctx context.Context) (now time.Time, err error) {
	behind := false
	err = e.read(ctx, func(*conn) error {
		now, behind = e.clock.now()
		return nil
	})
	if err != nil || !behind || e.opts.ReadOnly {
		return now, err
	}
	// A read neither waits for a writer (I6) nor fails because nothing can be written. An operation whose context has
	// ended is tried once and not queued. Another write in its way sets the clock as well; until the clock is set, its
	// reading is right.
	once, end := context.WithCancel(ctx)
	end()
	if set, err := write(once, e, func(tx *tx) (time.Time, error) { return tx.now, nil }); err == nil {
		return set, nil
	}
	return now, nil
}

// StrictAtCommit implements runstore.StrictCommitter: a write reads the clock in its transaction,
// and no other transaction writes at the same time.
func (s *Store) StrictAtCommit() bool { return true }

// Describe implements runstore.Describer.
func (s *Store) Describe(context.Context) (runstore.Description, error) {
	return runstore.Description{Engine: "sqlite", Version: s.engine.version, Tier: "embedded"}, nil
}

// LeaseVector describes how the engine keeps leases.
func LeaseVector() runstore.LeaseVector {
	return runstore.EngineLeases(
		"the run's row, in a write transaction of the file; the host clock",
		"in the transaction of each write; in a caller's transaction by FenceTx")
}
