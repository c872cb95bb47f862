package bench

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

const (
	// sampledEvents is how many events at the end of a journal are read back: 5,000, five pages.
	// sampledKeys is how many of the new records are.
	sampledEvents = 5_000
	sampledKeys   = 4 * runstore.MaxRecordKeys
)

// verify compares what a side's commits left in the store with what was acknowledged: the last seq
// and the records of every run, and the events of the first and the last run. before is how many
// events each run had.
func (c *commits) verify(ctx context.Context, s *commitSide, leases []runstore.Lease, before int64) (string, error) {
	var events, records int64
	for i, lease := range leases {
		commits := s.counts[i].Load()
		want := before + commits*int64(s.set.shape.events)
		run, err := c.handle.GetRun(ctx, lease.Run)
		if err != nil {
			return "", err
		}
		if int64(run.LastSeq) != want {
			return "", fmt.Errorf("run %s: the last seq is %d, and %d events were acknowledged", lease.Run, run.LastSeq, want)
		}
		if i == 0 || i == len(leases)-1 {
			if err := c.verifyJournal(ctx, s, lease.Run, want); err != nil {
				return "", fmt.Errorf("run %s: %w", lease.Run, err)
			}
		}
		if err := c.verifyRecords(ctx, s, lease.Run, commits); err != nil {
			return "", fmt.Errorf("run %s: %w", lease.Run, err)
		}
		events += commits * int64(s.set.shape.events)
		records += commits * int64(s.set.shape.records)
	}
	return found(events, records, len(leases)), nil
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

// verifyJournal checks the end of a journal whose last seq is last.
func (c *commits) verifyJournal(ctx context.Context, s *commitSide, run runstore.RunID, last int64) error {
	next := max(1, last-sampledEvents+1)
	for event, err := range runstore.Journal(ctx, c.handle, run, runstore.Seq(next)) {
		switch {
		case err != nil:
			return err
		case int64(event.Seq) != next:
			return fmt.Errorf("event %d stands where %d belongs", event.Seq, next)
		case event.Kind != eventKind || !bytes.Equal(event.Data, s.data):
			return fmt.Errorf("event %d is not what was committed", event.Seq)
		}
		next++
	}
	if next != last+1 {
		return fmt.Errorf("the journal ends before event %d, and %d events were acknowledged", next, last)
	}
	return nil
}

// verifyRecords reads back the records of a run. The version of a record that every commit
// overwrites must be the number of commits. Of new records it reads the last ones, and the first
// one that no commit has put.
func (c *commits) verifyRecords(ctx context.Context, s *commitSide, run runstore.RunID, commits int64) error {
	if s.set.shape.records == 0 || commits == 0 {
		return nil
	}
	var keys []runstore.RecordKey
	version, want := runstore.Version(commits), s.set.shape.records
	if s.set.shape.new {
		version, want = 1, int(min(commits, sampledKeys))
		for n := commits + 1; n > 0 && len(keys) <= want; n-- {
			keys = append(keys, runstore.RecordKey(newKey(n)))
		}
	} else {
		for key := range s.set.shape.write(1, nil).Keys() {
			keys = append(keys, runstore.RecordKey(key))
		}
	}
	read := 0
	for page := range slices.Chunk(keys, runstore.MaxRecordKeys) {
		records, err := c.handle.ReadRecords(ctx, run, runstore.RecordQuery{Keys: page})
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Version != version || !bytes.Equal(r.Value, s.data) {
				return fmt.Errorf("record %s is at version %d, or is not what was committed; %d commits were acknowledged", r.Key, r.Version, commits)
			}
		}
		read += len(records)
	}
	if read != want {
		return fmt.Errorf("%d records are there, and %d were acknowledged", read, want)
	}
	return nil
}

// verifyFloor compares what a hand-written side stored with what it acknowledged.
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
