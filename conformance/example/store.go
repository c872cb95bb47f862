package boltstore

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/rules"
)

// The buckets of the file. The sequence of feed is the last position that was assigned.
var (
	bucketRuns   = []byte("runs")   // run id → run
	bucketEvents = []byte("events") // a bucket for each run: seq → position
	bucketFeed   = []byte("feed")   // position → runstore.FeedEvent
	bucketClock  = []byte("clock")  // "seen" → the latest time that a commit showed
)

// DB is an open file. Its handles share it, because bbolt locks the file.
type DB struct {
	bolt  *bbolt.DB
	clock func() time.Time
}

// OpenFile opens or creates the file at path. clock is the store clock: time.Now, except in tests.
// While another process has the file open, OpenFile waits up to a second and then fails.
func OpenFile(path string, clock func() time.Time) (*DB, error) {
	bolt, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	err = bolt.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketRuns, bucketEvents, bucketFeed, bucketClock} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	return &DB{bolt, clock}, err
}

// Close closes the file, after its handles.
func (db *DB) Close() error { return db.bolt.Close() }

// Handle returns a handle on the store.
func (db *DB) Handle() runstore.RunStore { return adapter.New(core{db}, adapter.Options{}) }

// core implements adapter.Core.
type core struct{ db *DB }

// Close implements adapter.Core: the file stays open for other handles.
func (core) Close(<-chan struct{}) error { return nil }

// run is a run without its events, as the file has it. A purged run keeps its entry for its token.
type run struct {
	rules.Head
	Purged  bool
	Floor   runstore.Version // the highest version of a deleted record
	Records map[runstore.RecordKey]record
	Results []result // of the last requests with writes and an id, the oldest first
}

type record struct {
	runstore.Record
	Places []place
}

// place is an entry of a record in an index.
type place struct {
	Index runstore.IndexName
	At    time.Time
}

// result is what the store remembers of a request, under a name of package rules.
type result struct {
	Name string
	rules.FirstResult
}

// tx is a transaction at one instant of the store clock.
type tx struct {
	*bbolt.Tx
	now time.Time
}

// begin reads the store clock, which never goes back, even if the host's clock does.
func (c core) begin(t *bbolt.Tx) (tx, error) {
	var seen time.Time
	err := decode(t.Bucket(bucketClock).Get([]byte("seen")), &seen)
	if now := c.db.clock().UTC().Truncate(runstore.TimePrecision); now.After(seen) {
		seen = now
	}
	return tx{t, seen}, err
}

// update runs f in a write transaction. An error of f is definite, because it undoes everything;
// the outcome of a commit that fails is unknown.
func update[R any](c core, f func(tx tx) (R, error)) (done R, err error) {
	err = c.db.bolt.Update(func(t *bbolt.Tx) error {
		tx, err := c.begin(t)
		if err == nil {
			done, err = f(tx)
		}
		if err == nil {
			err = put(tx.Bucket(bucketClock), []byte("seen"), tx.now)
		}
		return definite(err)
	})
	return done, err
}

// view runs f in a read transaction, which waits for no writer.
func view[R any](c core, f func(tx tx) (R, error)) (found R, err error) {
	err = c.db.bolt.View(func(t *bbolt.Tx) error {
		tx, err := c.begin(t)
		if err == nil {
			found, err = f(tx)
		}
		return definite(err)
	})
	return found, err
}

func definite(err error) error {
	if err == nil || outcome.Definite(err) {
		return err
	}
	return outcome.Unavailable(err)
}

// find returns a run that exists and is not purged.
func (tx tx) find(id runstore.RunID) (*run, error) {
	r, err := tx.load(id)
	if err == nil && (r == nil || r.Purged) {
		return nil, runstore.ErrNotFound
	}
	return r, err
}

// load returns a run, nil if there has never been one of that id.
func (tx tx) load(id runstore.RunID) (*run, error) {
	data := tx.Bucket(bucketRuns).Get([]byte(id))
	if data == nil {
		return nil, nil
	}
	r := &run{}
	return r, decode(data, r)
}

func (tx tx) save(r *run) error { return put(tx.Bucket(bucketRuns), []byte(r.ID), r) }

// put stores a value. Package gob keeps strings of any bytes, which package json does not.
func put(b *bbolt.Bucket, key []byte, value any) error {
	var data bytes.Buffer
	if err := gob.NewEncoder(&data).Encode(value); err != nil {
		return err
	}
	return b.Put(key, data.Bytes())
}

// decode reads a value that put stored; no data leave it as it is.
func decode(data []byte, value any) error {
	if len(data) == 0 {
		return nil
	}
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(value); err != nil {
		return outcome.WithKind(runstore.ErrCorrupt, err)
	}
	return nil
}

// Now implements adapter.Core.
func (c core) Now(context.Context) (time.Time, error) {
	return view(c, func(tx tx) (time.Time, error) { return tx.now, nil })
}
