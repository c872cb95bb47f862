package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// verify compares what a side's commits left in the store with what was acknowledged: the last seq,
// every event at its acknowledged seq, and the records of every run. On a side with ids it then
// repeats the last batch of every writer. before is the number of events that each run had.
func (c *commits) verify(ctx context.Context, s *commitSide, leases []runstore.Lease, before int64) (string, error) {
	_, err := fill(ctx, runstore.MaxTTL, c.fillers(), len(leases), func(ctx context.Context, i int) error {
		if err := c.verifyRun(ctx, s, i, leases[i], before); err != nil {
			return fmt.Errorf("run %s: %w", leases[i].Run, err)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	total := s.total()
	text := found(total*int64(s.set.shape.events), total*int64(s.set.shape.records), len(leases))
	if s.set.shape.events > 0 {
		text += ", each event at its acknowledged seq"
	}
	if s.set.shape.id {
		text += "; a repeat of each writer's last batch returned its result and stored nothing"
	}
	return text, nil
}

// verifyRun verifies run i of a side.
func (c *commits) verifyRun(ctx context.Context, s *commitSide, i int, lease runstore.Lease, before int64) error {
	var writers []*commitWriter
	commits := 0
	for _, w := range s.writers {
		if s.set.run(w.number) == i {
			writers = append(writers, w)
			commits += len(w.acked)
		}
	}
	last := before + int64(commits*s.set.shape.events)
	if err := c.verifyLast(ctx, lease, last); err != nil {
		return err
	}
	if s.set.shape.events > 0 {
		if err := c.verifyJournal(ctx, s, writers, lease, before, last); err != nil {
			return err
		}
	}
	// Records are put in shapes with one writer to a run only.
	if err := c.verifyRecords(ctx, s, writers[0], lease.Run); err != nil || !s.set.shape.id {
		return err
	}
	for _, w := range writers {
		if err := c.repeat(ctx, w, lease); err != nil {
			return err
		}
	}
	return c.verifyLast(ctx, lease, last)
}

// verifyLast checks the last seq of a run.
func (c *commits) verifyLast(ctx context.Context, lease runstore.Lease, last int64) error {
	run, err := c.handle.GetRun(ctx, lease.Run)
	if err == nil && int64(run.LastSeq) != last {
		err = fmt.Errorf("the last seq is %d, and %d events were acknowledged", run.LastSeq, last)
	}
	return err
}

func found(events, records int64, runs int) string {
	text := fmt.Sprintf("%d events", events)
	switch {
	case records > 0 && events > 0:
		text += fmt.Sprintf(" and %d puts of records", records)
	case records > 0:
		text = fmt.Sprintf("%d puts of records", records)
	}
	if runs == 1 {
		return text + " of 1 run"
	}
	return text + fmt.Sprintf(" of %d runs", runs)
}

// verifyJournal reads every event after the first before events, up to the event last, and compares
// it with the one that was acknowledged at its seq.
func (c *commits) verifyJournal(ctx context.Context, s *commitSide, writers []*commitWriter, lease runstore.Lease, before, last int64) error {
	want, err := acknowledged(writers, s.set.shape.events, before, last)
	if err != nil {
		return err
	}
	next, data := before, payload(s.set.bytes)
	for event, err := range runstore.Journal(ctx, c.handle, lease.Run, runstore.Seq(before+1)) {
		if err != nil {
			return err
		}
		next++
		switch {
		case int64(event.Seq) != next || next > last:
			return fmt.Errorf("event %d stands at place %d of %d", event.Seq, next, last)
		case event.Token != lease.Token || event.Owner != lease.Owner:
			return fmt.Errorf("event %d names token %v and owner %q, and was committed under token %v by %q", event.Seq, event.Token, event.Owner, lease.Token, lease.Owner)
		}
		binary.BigEndian.PutUint64(data, want[next-before-1])
		if event.Kind != eventKind || !bytes.Equal(event.Data, data) {
			return fmt.Errorf("event %d is not the one that was acknowledged there: %s", event.Seq, differs(event.Data, data))
		}
	}
	if next != last {
		return fmt.Errorf("the journal ends at event %d, and %d events were acknowledged", next, last)
	}
	return nil
}

// differs describes how the payload of an event differs from the expected one.
func differs(got, want []byte) string {
	if len(got) != len(want) {
		return fmt.Sprintf("it has %d bytes, and %d were committed", len(got), len(want))
	}
	name := func(data []byte) string {
		n := binary.BigEndian.Uint64(data)
		return fmt.Sprintf("event %d of commit %d of writer %d", n&0xff, n>>8&(1<<40-1), n>>48)
	}
	if name(got) == name(want) {
		return "its data has changed"
	}
	return fmt.Sprintf("it is %s, not %s", name(got), name(want))
}

// acknowledged returns the number of the payload that was acknowledged at each seq from before+1 to
// last. Two commits at one seq are an error.
func acknowledged(writers []*commitWriter, events int, before, last int64) ([]uint64, error) {
	at := make([]uint64, last-before)
	for _, w := range writers {
		for i, first := range w.acked {
			for k := range events {
				place := int64(first) + int64(k) - before - 1
				if place < 0 || place >= int64(len(at)) || at[place] != 0 {
					return nil, fmt.Errorf("commit %d of writer %d was acknowledged at seq %d, where another one was, or none can be", i+1, w.number, first)
				}
				at[place] = commitNumber(w.number, i+1, k) // never 0: commits are counted from 1
			}
		}
	}
	return at, nil
}

// verifyRecords reads back the records of a run. A record that every commit overwrites must have the
// last commit's value, and the number of commits as its version. Of new records it reads all, and the
// first one that no commit has put.
func (c *commits) verifyRecords(ctx context.Context, s *commitSide, w *commitWriter, run runstore.RunID) error {
	shape, commits := s.set.shape, len(w.acked)
	if shape.records == 0 || commits == 0 {
		return nil
	}
	want := map[runstore.RecordKey]int{} // the commit that put each record last
	var keys []runstore.RecordKey
	version := runstore.Version(commits)
	if shape.new {
		version = 1
		for n := 1; n <= commits; n++ {
			want[runstore.RecordKey(newKey(n))] = n
			keys = append(keys, runstore.RecordKey(newKey(n)))
		}
		keys = append(keys, runstore.RecordKey(newKey(commits+1)))
	} else {
		for key := range shape.write(1, nil).Keys() {
			want[runstore.RecordKey(key)] = commits
			keys = append(keys, runstore.RecordKey(key))
		}
	}
	read, data := 0, payload(s.set.bytes)
	for page := range slices.Chunk(keys, runstore.MaxRecordKeys) {
		records, err := c.handle.ReadRecords(ctx, run, runstore.RecordQuery{Keys: page})
		if err != nil {
			return err
		}
		for _, r := range records {
			n, ok := want[r.Key]
			binary.BigEndian.PutUint64(data, commitNumber(w.number, n, 0))
			if !ok || r.Version != version || !bytes.Equal(r.Value, data) {
				return fmt.Errorf("record %s is at version %d, or does not have the value of commit %d; %d commits were acknowledged", r.Key, r.Version, n, commits)
			}
		}
		read += len(records)
	}
	if read != len(want) {
		return fmt.Errorf("%d records are there, and %d were acknowledged", read, len(want))
	}
	return nil
}

// repeat commits the last batch of a writer again, under its id. The store must return the first
// result.
func (c *commits) repeat(ctx context.Context, w *commitWriter, lease runstore.Lease) error {
	if len(w.acked) == 0 {
		return nil
	}
	again, err := c.handle.Commit(ctx, w.last.batch(lease))
	switch first := w.acked[len(w.acked)-1]; {
	case err != nil:
		return fmt.Errorf("a repeat of an acknowledged batch: %w", err)
	case !again.Replayed:
		return errors.New("a repeat of an acknowledged batch was taken for a new one")
	case w.last.Events > 0 && again.FirstSeq != first:
		return fmt.Errorf("a repeat of the batch that was acknowledged at seq %d returned seq %d", first, again.FirstSeq)
	}
	return nil
}

// verifyFloor compares the number of rows that a hand-written side stored with what it acknowledged.
func (c *commits) verifyFloor(ctx context.Context, s *commitSide, pick func(committed, inserted int) int) (string, error) {
	total := s.total()
	check := func(what string, each int, count func(ctx context.Context) (committed, inserted int, err error)) error {
		committed, inserted, err := count(ctx)
		if stored := pick(committed, inserted); err == nil && int64(stored) != total*int64(each) {
			err = fmt.Errorf("%d %s are stored, and %d were acknowledged", stored, what, total*int64(each))
		}
		return err
	}
	if err := check("events", s.set.shape.events, c.floor.Stored); err != nil {
		return "", err
	}
	records := int64(0)
	if counter, ok := c.floor.(RecordCounter); ok {
		if err := check("puts of records", s.set.shape.records, counter.StoredRecords); err != nil {
			return "", err
		}
		records = total * int64(s.set.shape.records)
	}
	return found(total*int64(s.set.shape.events), records, s.set.runs()), nil
}
