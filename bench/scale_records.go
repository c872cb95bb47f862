package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// manyRecords is a run with many records, and their acknowledged state.
type manyRecords struct {
	*connection
	lease    runstore.Lease
	data     []byte
	versions []runstore.Version // of each record, as acknowledged
}

// key returns the key of record i. Keys sort in the order of their numbers.
func (*manyRecords) key(i int) runstore.RecordKey {
	return runstore.RecordKey(fmt.Sprintf("item/%08d", i))
}

// scaleRecords compares runs with different numbers of records.
func (s *Session) scaleRecords(ctx context.Context, store Store) (err error) {
	handle, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	c, err := s.connect(ctx, store, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	z := &sized{s: s, group: "run size", param: "records"}
	before := 0
	for i, n := range ascending(s.Scale.Sizes) {
		s.Step(2, scaleSteps, fmt.Sprintf("%d records", n))
		r := &manyRecords{connection: c, data: payload(smallBytes)}
		if r.lease, err = holdRun(ctx, handle, store.RunID(recordRuns+i)); err != nil {
			return err
		}
		full, err := r.fill(ctx, handle, n, time.Now().Add(s.Scale.Growth))
		if err != nil {
			return err
		}
		got := len(r.versions)
		if full != nil {
			s.Note(s.Target.System.Name, "a run takes no more than %d records: %v", got, full)
		}
		if !s.reached(n, got, before, "records") {
			continue
		}
		before = got
		verify := func(ctx context.Context) (string, error) { return r.verify(ctx) }
		z.add("commit", n, got, Side{Round: r.commits, Verify: verify})
		z.add("read a record", n, got, Side{Round: r.gets})
		z.add("page of a prefix", n, got, Side{Round: r.pages})
	}
	return s.Compare(ctx, z.sides...)
}

// fill puts up to n records until the deadline. full is the error with which the run refuses more.
func (r *manyRecords) fill(ctx context.Context, handle runstore.RunStore, n int, deadline time.Time) (full, err error) {
	for len(r.versions) < n && time.Now().Before(deadline) {
		b := runstore.NewBatch(r.lease.Run, r.lease.Fence())
		puts := min(n-len(r.versions), runstore.MaxRecordWrites)
		for i := range puts {
			b.Put(r.key(len(r.versions)+i), r.data)
		}
		_, err := handle.Commit(ctx, b)
		if errors.Is(err, runstore.ErrTooLarge) {
			return err, nil
		}
		if err != nil {
			return nil, fmt.Errorf("filling a run with %d records: %w", len(r.versions), err)
		}
		for range puts {
			r.versions = append(r.versions, 1)
		}
	}
	return nil, nil
}

// commits measures commits that append an event and overwrite a record.
func (r *manyRecords) commits(ctx context.Context, d time.Duration, m *Measured) error {
	return r.repeat(ctx, d, m, "commits/s", "commit", func(ctx context.Context) error {
		i := rand.N(len(r.versions))
		b := runstore.NewBatch(r.lease.Run, r.lease.Fence(), runstore.AtVersion(r.key(i), r.versions[i]))
		b.Append(eventKind, r.data)
		b.Put(r.key(i), r.data)
		_, err := r.Commit(ctx, b)
		if err == nil {
			r.versions[i]++
		}
		return err
	})
}

func (r *manyRecords) gets(ctx context.Context, d time.Duration, m *Measured) error {
	return r.repeat(ctx, d, m, "reads/s", "read", func(ctx context.Context) error {
		i := rand.N(len(r.versions))
		found, err := r.ReadRecords(ctx, r.lease.Run, runstore.RecordQuery{Keys: []runstore.RecordKey{r.key(i)}})
		if err != nil {
			return err
		}
		return r.check(found, i, 1)
	})
}

// pages measures reads of pages that begin at random records.
func (r *manyRecords) pages(ctx context.Context, d time.Duration, m *Measured) error {
	return r.repeat(ctx, d, m, "pages/s", "page", func(ctx context.Context) error {
		first := rand.N(max(1, len(r.versions)-scanPage))
		q := runstore.RecordQuery{Prefix: "item/", Limit: scanPage}
		if first > 0 {
			q.After = r.key(first - 1)
		}
		found, err := r.ReadRecords(ctx, r.lease.Run, q)
		if err != nil {
			return err
		}
		return r.check(found, first, min(scanPage, len(r.versions)-first))
	})
}

// check compares records with the acknowledged ones, starting at record i.
func (r *manyRecords) check(found []runstore.Record, i, want int) error {
	if len(found) != want {
		return fmt.Errorf("%d records were read from number %d on, and %d were acknowledged", len(found), i, want)
	}
	for k, record := range found {
		if record.Key != r.key(i+k) || record.Version != r.versions[i+k] || len(record.Value) != len(r.data) {
			return fmt.Errorf("record %s at version %d was read where %s was acknowledged at %d", record.Key, record.Version, r.key(i+k), r.versions[i+k])
		}
	}
	return nil
}

// verify reads all records back.
func (r *manyRecords) verify(ctx context.Context) (string, error) {
	var all []runstore.Record
	var puts runstore.Version
	for record, err := range runstore.Records(ctx, r, r.lease.Run, "item/") {
		if err != nil {
			return "", err
		}
		all, puts = append(all, record), puts+record.Version
	}
	return fmt.Sprintf("%d records, put %d times", len(all), puts), r.check(all, 0, len(r.versions))
}
