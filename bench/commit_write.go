package bench

import (
	"context"
	"encoding/binary"
	"strconv"

	"github.com/tapestore/tapestore/runstore"
)

// shape describes what a commit writes.
type shape struct {
	name    string
	events  int
	id      bool
	records int
	new     bool // the records are new in every commit
}

var commitShapes = []shape{
	{name: "event", events: 1},
	{name: "event, id", events: 1, id: true},
	{name: "record", records: 1},
	{name: "event, id, record", events: 1, id: true, records: 1, new: true}, // what package tape commits
	{name: "10 events, 3 records", events: 10, records: 3},
}

// payloads returns how many payloads a write has: one for each event, or one for all records.
func (s shape) payloads() int { return max(1, s.events) }

// write returns the n-th write of a writer, counted from 1, with the given payloads. Records have
// the first of them.
func (s shape) write(n int, each [][]byte) Write {
	w := Write{Events: s.events, Each: each, Records: s.records}
	if len(each) > 0 {
		w.Data = each[0]
	}
	if s.id {
		w.BatchID = string(runstore.NewBatchID())
	}
	if s.records > 0 {
		w.Key = "state"
	}
	if s.new {
		w.Key, w.New = newKey(n), true
	}
	return w
}

func newKey(n int) string { return "effect/" + strconv.Itoa(n) }

const eventKind = "bench"

// batch returns the batch of a write, as a caller of the store makes it.
func (w Write) batch(lease runstore.Lease) runstore.Batch {
	b := runstore.NewBatch(lease.Run, lease.Fence())
	b.ID = runstore.BatchID(w.BatchID)
	for i := range w.Events {
		b.Append(eventKind, w.Event(i))
	}
	for key := range w.Keys() {
		if w.New {
			b.Require(runstore.AtVersion(runstore.RecordKey(key), 0))
		}
		b.Put(runstore.RecordKey(key), w.Data)
	}
	return b
}

// commitSide is one side of a comparison.
type commitSide struct {
	set     commitSetting
	writers []*commitWriter
	// write writes to a run, and returns the seq of the first event; 0 for a side without seqs.
	write func(ctx context.Context, run int, w Write) (runstore.Seq, error)
}

func newCommitSide(set commitSetting, write func(ctx context.Context, run int, w Write) (runstore.Seq, error)) *commitSide {
	s := &commitSide{set: set, write: write}
	for i := range set.writers {
		w := &commitWriter{number: i}
		for range set.shape.payloads() {
			w.each = append(w.each, payload(set.bytes))
		}
		s.writers = append(s.writers, w)
	}
	return s
}

// total returns the number of acknowledged writes to all runs.
func (s *commitSide) total() (n int64) {
	for _, w := range s.writers {
		n += int64(len(w.acked))
	}
	return n
}

// commitWriter is one of the concurrent writers of a side. It numbers its payloads, so that a
// journal shows to which commit each event belongs, and keeps the acknowledged seq of each commit.
// It uses the same buffers for all writes, so that the numbers cost nothing to speak of.
type commitWriter struct {
	number int
	each   [][]byte       // the payloads of the current write
	acked  []runstore.Seq // the first seq of each acknowledged commit; its n-th commit is at n-1
	last   Write          // the last acknowledged write
}

// commit writes once.
func (w *commitWriter) commit(ctx context.Context, s *commitSide) error {
	n := len(w.acked) + 1
	for k, data := range w.each {
		binary.BigEndian.PutUint64(data, commitNumber(w.number, n, k))
	}
	next := s.set.shape.write(n, w.each)
	first, err := s.write(ctx, s.set.run(w.number), next)
	if err != nil {
		return err
	}
	w.acked, w.last = append(w.acked, first), next
	return nil
}

// commitNumber returns the number of a payload: event k of a writer's n-th commit.
func commitNumber(writer, n, k int) uint64 {
	return uint64(writer)<<48 | uint64(n)<<8 | uint64(k)
}

// payload returns n bytes, at least the 8 that a number needs.
func payload(n int) []byte {
	data := make([]byte, max(n, 8))
	for i := range data {
		data[i] = byte(i)
	}
	return data
}
