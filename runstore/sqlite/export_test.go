package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"os"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/internal/filelock"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// Queued returns how many operations wait for a transaction.
func Queued(s *Store) int {
	w := s.engine.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue)
}

// Claims reports whether a leader claims an operation of the queue that waits, or that its caller has withdrawn.
func Claims(withdrawn bool) bool {
	op := &operation{}
	if withdrawn {
		op.state.Store(opWithdrawn)
	}
	w := &writer{maxSize: 1, queue: []*operation{op}}
	return len(w.take(nil)) > 0
}

// Write runs during inside a transaction of the writer.
func Write(ctx context.Context, s *Store, during func()) error {
	_, err := adapter.Do(ctx, s.Store, "write", "", nil, func(ctx context.Context) (struct{}, error) {
		return write(ctx, s.engine, func(*tx) (struct{}, error) {
			during()
			return struct{}{}, nil
		})
	})
	return err
}

// FailMarks makes every mark in the witness file of a store fail with err, from the next transaction on; nil ends that.
// No other operation of the store is in flight.
func FailMarks(s *Store, err error) { s.engine.watermark.fault = err }

// Scans returns the statements whose plans TestQueryPlans checks, with how many arguments each has.
func Scans() map[string]int {
	return map[string]int{
		placesScan.oldest: 7, headsScan.oldest: 7, runsScan.oldest: 4, runnableScan.oldest: 4,
		placesScan.newest: 7, headsScan.newest: 7, runsScan.newest: 4, runnableScan.newest: 4,
		sqlRunRead: 1, sqlFeedPage: 1, sqlJournalPage: 3, sqlRecordsPage: 4, sqlRecordsByKey: 2,
		sqlAppend[extendUnderFence]: 9, sqlAppend[extendUnderFence+extendWithName+extendWithRecords]: 11, sqlAppendLookUp: 1, sqlLeaseRenew: 9,
		sqlPurgeNext: 1, sqlPurgeEntries: 1, sqlPurgeRecords: 1, sqlPurgeResults: 1, sqlPurgeExtentsRead: 1, sqlPurgeEvents: 3, sqlPurgeRenumberGrants: 2,
		sqlResultRead: 2, sqlResultNumber: 1, sqlRunnableMove: 1, sqlResultsEvict: 2,
	}
}

// StatementFaults returns what is wrong with the files of the folder sql.
func StatementFaults() []string { return sqlFiles.Faults() }

// StoredResult is storedResult.
type StoredResult = storedResult

// Text returns a result in its stored form.
func (k *storedResult) Text() []byte { return k.append(nil) }

// RowsPerLook is rowsPerLook.
const RowsPerLook = rowsPerLook

// ReadRows reads n rows in one read, and calls each for every row.
func ReadRows(ctx context.Context, s *Store, n int64, each func()) error {
	const rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n LIMIT ?"
	return s.engine.read(ctx, func(c *conn) error {
		return c.query(ctx, rows, func([]driver.Value) error {
			each()
			return nil
		}, n)
	})
}

// JournalMode returns the journal mode of the database.
func JournalMode(ctx context.Context, s *Store) string {
	c := <-s.engine.writers
	defer func() { s.engine.writers <- c }()
	row, err := c.one(ctx, "PRAGMA journal_mode")
	if err != nil {
		return err.Error()
	}
	return row[0].(string)
}

// OnFileSystem lets a store use a file system that was registered with SQLite (a VFS).
func (o Options) OnFileSystem(name string) *Options {
	o.vfs = name
	return &o
}

// Watermark returns the progress in a store's watermark file, zero if there is none.
func Watermark(s *Store) (p progress) {
	p, _, _ = s.engine.watermark.read()
	return p
}

// WatermarkOf returns the progress that the text of a watermark file holds.
func WatermarkOf(text []byte) (p progress) {
	_ = json.Unmarshal(text, &p) // zero for foreign text
	return p
}

// LockWatermark locks the watermark of a database, as a process that was stopped within a
// transaction would. It returns false if a process or a handle has it locked.
func LockWatermark(t *testing.T, path string) (unlock func(), ok bool) {
	t.Helper()
	file, err := os.Open(path + "-witness")
	if err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() { _ = file.Close() })
	locked, err := filelock.Try(file)
	if err != nil {
		t.Fatal(err)
	}
	if !locked {
		unlock()
		return nil, false
	}
	t.Cleanup(unlock) // a test that fails early must not leave its writers blocked
	return unlock, true
}

// BreakWatermark makes the next write to the watermark fail.
func BreakWatermark(t *testing.T, s *Store) {
	t.Helper()
	w := s.engine.watermark
	if w.file != nil {
		_ = w.file.Close()
	}
	file, err := os.OpenFile(w.path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	// The file may be another one than before, after a failed write has removed that.
	if w.id, err = file.Stat(); err != nil {
		t.Fatal(err)
	}
	w.file = file
}

// FirstSchema is the schema of version 1.
var FirstSchema = migrations[0].Text

// ForgetEvery is forgetEvery.
const ForgetEvery = forgetEvery

// MaxStep is maxStep.
const MaxStep = maxStep

// TakeForForeign makes the other handles of the file take this one's writes for those of another
// process.
func TakeForForeign(s *Store) {
	s.engine.waiters, s.engine.own = wakeup.Of(s), newChangeCount()
	*s = *newStore(s.engine)
}

// Looks returns a function that reports whether other processes have changed the file of a store since its
// last call.
func Looks(t *testing.T, s *Store) (look func() bool) {
	t.Helper()
	w, err := s.engine.newWatcher(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.conn.close() })
	return func() bool {
		s.engine.own.lock <- struct{}{}
		changed, err := w.look()
		<-s.engine.own.lock
		if err != nil {
			t.Errorf("look: %v", err)
		}
		return changed
	}
}

// Committing reports whether watchers of this process wait for a COMMIT of the store.
func Committing(s *Store) bool { return len(s.engine.own.lock) > 0 }

// Changes returns how much has changed in the store.
func Changes(s *Store) (n int64, err error) {
	err = s.engine.read(context.Background(), func(c *conn) error {
		p, err := readProgress(context.Background(), c)
		n = p.changes()
		return err
	})
	return n, err
}

// AwaitBackground waits until a handle has no background work.
func AwaitBackground(s *Store) { s.engine.background.Wait() }

// Closing returns a channel that is closed once Close has stopped the handle's background work.
func Closing(s *Store) <-chan struct{} { return s.engine.stopped.Done() }

// Moving reports whether a handle is moving index entries.
func Moving(s *Store) bool { return s.engine.moving.Load() }

// MovesPerCommit is movesPerCommit.
const MovesPerCommit = movesPerCommit

// SweepingRows lets one operation delete n rows of a purged run.
func (o Options) SweepingRows(n int64) *Options {
	o.sweepRows = n
	return &o
}

// TruncatingLogFrom truncates a write-ahead log of n bytes.
func (o Options) TruncatingLogFrom(n int64) *Options {
	o.maxLog = n
	return &o
}

// TrimEvery is trimEvery.
const TrimEvery = trimEvery
