package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// Store is an open handle on a SQLite database. It implements runstore.RunStore and the
// capabilities MultiCommitter, Notifier, RunNotifier, EpochManager and Describer.
type Store struct {
	*core
	closeOnce    sync.Once
	closed       chan struct{}
	watching     sync.WaitGroup // the goroutines of Wakeups and RunWakeups
	foreignWatch foreignWatch
	background   *background
	moving       atomic.Bool // entries of renewed leases are being moved, see moveBehindLeases
}

// core is the state that the handles of one opening share: the connections, their writer and their
// caches.
type core struct {
	path      string
	opts      Options
	version   string
	known     int // the newest schema version that this program knows
	clock     *clock
	writer    *writer
	watermark *watermark // nil for a database in memory
	damage    damage
	wakers    wakers
	waiters   wakeup.Hub
	own       *atomic.Int64 // changes by this process, see ownChangeCount
	handles   atomic.Int32
	heads     headCache // used by the leader of the writer, like lastState and trims
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
	runstore.Describer
} = (*Store)(nil)

// Open opens the database file at path and creates or migrates its schema as needed. ":memory:"
// creates a database that is deleted when the handle is closed.
//
// A file that is not a database, belongs to another application or has a newer schema is refused
// and left unchanged.
func Open(ctx context.Context, path string, options *Options) (*Store, error) {
	c, err := open(ctx, path, options)
	if err != nil {
		return nil, opError("open sqlite store", "", explain(path, err))
	}
	s := c.handle()
	if c.hasGarbage {
		s.background.start(func(ctx context.Context) { s.sweep(ctx) })
	}
	return s, nil
}

// NewHandle returns another handle on the same connections, which is closed separately. A database
// in memory can be opened twice only in this way; a file is better opened again, with connections
// of its own.
//
// If all handles of the store are closed, NewHandle returns a closed handle.
func (s *Store) NewHandle() *Store {
	for {
		n := s.handles.Load()
		if n == 0 {
			return s // closed, as every handle is
		}
		if s.handles.CompareAndSwap(n, n+1) {
			return s.core.newHandle()
		}
	}
}

func (s *core) handle() *Store {
	s.handles.Add(1)
	return s.newHandle()
}

func (s *core) newHandle() *Store {
	return &Store{core: s, closed: make(chan struct{}), background: newBackground()}
}

func open(ctx context.Context, path string, options *Options) (*core, error) {
	opts, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	if path != Memory {
		if path, err = checkPath(path, opts.MustExist); err != nil {
			return nil, err
		}
	}
	s := &core{
		path: path, opts: opts, heads: headCache{}, clock: &clock{host: opts.Clock},
		known: len(migrations()), writers: make(chan *conn, 1), readers: make(chan *conn, opts.Readers),
		sweeping: make(chan struct{}, 1),
	}
	s.damage.path, s.damage.logger = path, opts.Logger
	s.waiters, s.own = wakeup.Of(s), &atomic.Int64{}
	if path != Memory { // handles of one file in one process share them
		s.waiters, s.own = wakeup.Of("sqlite:"+path), ownChangeCount(path)
	}
	first, err := s.connect(ctx, "synchronous("+string(opts.Synchronous)+")")
	if err != nil {
		return nil, err
	}
	if err := s.catchDamage(func() error { return s.prepare(ctx, first) }); err != nil {
		return nil, errors.Join(err, first.close())
	}
	s.writers <- first
	if path == Memory {
		s.readers = s.writers
	} else {
		for range opts.Readers {
			c, err := s.connect(ctx, "query_only(1)")
			if err != nil {
				return nil, errors.Join(err, s.closeConnections())
			}
			s.readers <- c
		}
	}
	s.writer = newWriter(s, opts.MaxGroup)
	return s, nil
}

// prepare prepares the database for use: schema, clock, epoch.
func (s *core) prepare(ctx context.Context, c *conn) error {
	row, err := c.one(ctx, "SELECT sqlite_version()")
	if err != nil {
		return err
	}
	s.version = row[0].(string)
	if err := checkVersion(s.version); err != nil {
		return err
	}
	if s.opts.ReadOnly {
		return s.prepareReadOnly(ctx, c)
	}
	if err := migrate(ctx, c); err != nil {
		return err
	}
	if err := retryWhileBusy(ctx, func() error { return c.script(ctx, "BEGIN IMMEDIATE") }); err != nil {
		return err
	}
	if s.path != Memory {
		s.watermark = &watermark{path: s.path + "-witness"}
	}
	if err := s.initClockAndEpoch(ctx, c); err != nil {
		_ = c.script(ctx, "ROLLBACK") // the first error is the one to report
		return err
	}
	if err := retryWhileBusy(ctx, func() error { return c.script(ctx, "COMMIT") }); err != nil {
		return err
	}
	s.watermark.write(s.progress)
	return nil
}

// prepareReadOnly checks the schema and reads the clock, and changes nothing.
func (s *core) prepareReadOnly(ctx context.Context, c *conn) error {
	known := len(migrations())
	return retryWhileBusy(ctx, func() error {
		version, err := identify(ctx, c, known)
		if err != nil {
			return err
		}
		if version != known {
			return &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "schema", Problem: fmt.Sprintf(
				"version %d of the database is older than this program's %d; open it for writing once", version, known)}
		}
		a, _, err := readClock(ctx, c)
		s.clock.set(a)
		return err
	})
}

// initClockAndEpoch sets the clock and the epoch when the store is opened, within one transaction.
func (s *core) initClockAndEpoch(ctx context.Context, c *conn) error {
	a, now, err := s.clock.load(ctx, c)
	if err != nil {
		return err
	}
	s.clock.set(a) // if the transaction fails, the store is not opened
	if err := s.watermark.compare(ctx, c, now); err != nil {
		return err
	}
	// This write makes the opening of a database that cannot be written fail now, and not at the
	// first commit.
	if _, err := c.exec(ctx, noteOpening, now.UnixMicro()); err != nil {
		return err
	}
	row, err := c.one(ctx, newestGarbage)
	if err != nil {
		return err
	}
	s.hasGarbage = row[0] != nil
	row, err = c.one(ctx, selectProgress)
	if err != nil {
		return err
	}
	s.progress = progress{text[string](row[0]), row[1].(int64), runstore.Position(row[3].(int64))}
	return nil
}

const noteOpening = `UPDATE store SET clock_seen = max(clock_seen, ?)`

// Close implements runstore.RunStore.
func (s *Store) Close() error {
	var err error
	s.closeOnce.Do(func() {
		close(s.closed)
		s.background.close()
		s.watching.Wait() // the last connection to close folds the log into the file
		if s.handles.Add(-1) > 0 {
			return
		}
		s.writer.close()
		err = s.closeConnections()
		s.watermark.close()
	})
	return err
}

// closeConnections waits for each connection until no caller uses it, and closes it.
func (s *core) closeConnections() error {
	var errs []error
	if s.readers != s.writers {
		for range cap(s.readers) {
			select {
			case c := <-s.readers:
				errs = append(errs, c.close())
			case <-time.After(time.Minute): // a reader that hangs must not hang Close
			}
		}
	}
	return errors.Join(append(errs, (<-s.writers).close())...)
}

// takeWriter takes the writing connection; giveWriter returns it.
func (s *core) takeWriter() *conn  { return <-s.writers }
func (s *core) giveWriter(c *conn) { s.writers <- c }

// begin starts every operation: it returns an error on a closed handle or after the context's end.
func (s *Store) begin(ctx context.Context) error {
	select {
	case <-s.closed:
		return runstore.ErrClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// read runs f in a read transaction, which sees one consistent state and holds no lock that a
// writer waits for.
func (s *Store) read(ctx context.Context, op string, id runstore.RunID, invalid error, f func(c *conn) error) error {
	if invalid != nil {
		return opError(op, id, invalid)
	}
	if err := s.begin(ctx); err != nil {
		return opError(op, id, err)
	}
	select {
	case <-s.closed:
		return opError(op, id, runstore.ErrClosed)
	case <-ctx.Done():
		return opError(op, id, unavailable(ctx.Err()))
	case c := <-s.readers:
		defer func() { s.readers <- c }()
		if err := s.catchDamage(func() error { return s.snapshot(ctx, c, f) }); err != nil {
			if ctx.Err() != nil && !isDamage(err) {
				err = unavailable(ctx.Err())
			}
			return opError(op, id, err)
		}
		return nil
	}
}

func (s *core) snapshot(ctx context.Context, c *conn, f func(c *conn) error) (err error) {
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
		row, err := c.one(ctx, takeSnapshot)
		if err == nil {
			s.clock.refresh(row[0].(int64), row[1].(int64))
		}
		return err
	})
	if err != nil {
		return err
	}
	return f(c)
}

// takeSnapshot reads what every read needs: the clock, which another handle may have set since.
const takeSnapshot = `SELECT clock_since, clock_at FROM store`

// Now implements runstore.RunStore.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	behind := false
	err = s.read(ctx, "now", "", nil, func(*conn) error {
		now, behind = s.clock.now()
		return nil
	})
	if err != nil || !behind || s.opts.ReadOnly {
		return now, err
	}
	return write(ctx, s, "now", "", nil, func(tx *tx) (time.Time, error) { return tx.now, nil })
}

// StrictAtCommit implements runstore.StrictCommitter: a write reads the clock in its transaction,
// and no other transaction writes at the same time.
func (s *Store) StrictAtCommit() bool { return true }

// Describe implements runstore.Describer.
func (s *Store) Describe(context.Context) (runstore.Description, error) {
	return runstore.Description{Engine: "sqlite", Version: s.version, Tier: "embedded"}, nil
}
