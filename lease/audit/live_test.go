package audit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapestore/tapestore/lease/audit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// change makes a random change of a run: a creation, a takeover, a release, a write with a fence or
// without, a purge.
func change(ctx context.Context, s runstore.RunStore, id runstore.RunID, lease *runstore.Lease) error {
	var err error
	switch n := rand.N(20); {
	case n < 2:
		spec := runstore.RunSpec{ID: id, Runnable: runstore.After(0), Unlisted: rand.N(3) == 0}
		spec.Writes.Append("created", nil)
		_, err = s.CreateRun(ctx, spec)
	case n < 6:
		req := runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(fmt.Sprint("owner ", rand.N(5))), TTL: time.Minute}, Preempt: "test"}
		if rand.N(2) == 0 {
			req.Writes.Append("acquired", nil)
		}
		var granted runstore.Granted
		if granted, err = s.AcquireLease(ctx, req); err == nil {
			*lease = granted.Lease
		}
	case n < 7 && lease.Token > 0:
		_, err = s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: lease.Fence()})
	case n < 8:
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Purge = true
		_, err = s.Commit(ctx, b)
	default:
		g := runstore.Unguarded("test")
		if n < 16 && lease.Token > 0 {
			g = lease.Fence()
		}
		b := runstore.NewBatch(id, g)
		for range rand.N(3) {
			b.Append("event", []byte("data"))
		}
		key := runstore.RecordKey(fmt.Sprint("record ", rand.N(4)))
		if rand.N(4) == 0 {
			b.Delete(key)
		} else {
			b.Put(key, nil, runstore.Place{Index: queue, At: runstore.After(0)})
		}
		if rand.N(4) == 0 {
			b.Runnable = []runstore.When{runstore.Never(), runstore.After(0), runstore.After(time.Hour)}[rand.N(3)]
		}
		_, err = s.Commit(ctx, b)
	}
	for _, expected := range []error{runstore.ErrFenced, runstore.ErrNotFound, runstore.ErrStoreBehind} {
		if errors.Is(err, expected) {
			return nil
		}
	}
	return err
}

// A store in use has no findings, however often it is read.
func TestLiveStore(t *testing.T) {
	t.Parallel()
	s := memory.New(nil).Open()
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	var changes atomic.Int64
	defer writers.Wait()
	defer stop()
	for w := range 3 {
		writers.Go(func() {
			leases := map[runstore.RunID]*runstore.Lease{}
			for i := 0; ctx.Err() == nil; i++ {
				id := runstore.RunID(fmt.Sprintf("run %d/%d", w, rand.N(6)))
				if leases[id] == nil {
					leases[id] = &runstore.Lease{}
				}
				if err := change(ctx, s, id, leases[id]); err != nil && ctx.Err() == nil {
					t.Errorf("change: %v", err)
					return
				}
				changes.Add(1)
				if w == 0 && i%500 == 499 {
					if _, err := s.RaiseEpoch(ctx, "test"); err != nil && ctx.Err() == nil {
						t.Errorf("raise: %v", err)
						return
					}
				}
			}
		})
	}
	var total audit.Report
	for i := 0; changes.Load() < 10_000 || i < 20; i++ {
		// With a lag of a nanosecond every event must be in the feed: this one shows it at once.
		found, report := check(t, s, audit.Options{MaxRuns: []int{0, 1, 5}[i%3], FeedLag: time.Nanosecond})
		for _, f := range found {
			t.Fatalf("check %d: %v", i, f)
		}
		total.Events += report.Events
		total.Runs += report.Runs
	}
	if total.Runs == 0 || total.Events == 0 {
		t.Errorf("nothing was read: %+v", total)
	}
}

// Check calls no method that writes.
type readOnly struct{ runstore.RunStore }

func (readOnly) CreateRun(context.Context, runstore.RunSpec) (runstore.Created, error) {
	panic("a creation")
}
func (readOnly) AcquireLease(context.Context, runstore.AcquireRequest) (runstore.Granted, error) {
	panic("a grant")
}
func (readOnly) RenewLease(context.Context, runstore.RenewRequest) (runstore.Renewed, error) {
	panic("a renewal")
}
func (readOnly) ReleaseLease(context.Context, runstore.ReleaseRequest) (runstore.Committed, error) {
	panic("a release")
}
func (readOnly) Commit(context.Context, runstore.Batch) (runstore.Committed, error) {
	panic("a commit")
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	engine := memory.New(nil)
	s := engine.Open()
	fill(t, s, engine.Advance)
	if found, report := check(t, readOnly{s}, audit.Options{}); len(found) > 0 || report.Runs != 10 {
		t.Errorf("got %v, %+v", found, report)
	}
}

// failing is a store of which one read fails.
type failing struct {
	falsified
	left int
	err  error
}

func (s *failing) next() error {
	if s.left--; s.left == 0 {
		return s.err
	}
	return nil
}

func (s *failing) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	if err := s.next(); err != nil {
		return runstore.Run{}, err
	}
	return s.falsified.GetRun(ctx, id)
}

func (s *failing) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	if err := s.next(); err != nil {
		return nil, err
	}
	return s.falsified.ReadJournal(ctx, id, from, limit)
}

func (s *failing) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if err := s.next(); err != nil {
		return nil, err
	}
	return s.falsified.ReadRecords(ctx, id, q)
}

func (s *failing) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	if err := s.next(); err != nil {
		return nil, err
	}
	return s.falsified.ScanIndex(ctx, q)
}

func (s *failing) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	if err := s.next(); err != nil {
		return nil, err
	}
	return s.falsified.ReadFeed(ctx, q)
}

func (s *failing) Now(ctx context.Context) (time.Time, error) {
	if err := s.next(); err != nil {
		return time.Time{}, err
	}
	return s.falsified.Now(ctx)
}

// A read that fails ends Check with its error. A run that was purged is no finding.
func TestFailingReads(t *testing.T) {
	t.Parallel()
	engine := memory.New(nil)
	inner := engine.Open()
	fill(t, inner, engine.Advance)
	down := errors.New("down")
	for _, failure := range []error{fmt.Errorf("%w: %w", runstore.ErrUnavailable, down), runstore.ErrNotFound} {
		for left := 1; ; left++ {
			s := &failing{falsified: falsified{RunStore: inner}, left: left, err: failure}
			// The second reading is reached, too.
			s.falsified.head = func(r *runstore.Run) {
				if r.ID == "run-1" {
					r.Token = 1
				}
			}
			var found []audit.Finding
			_, err := audit.Check(t.Context(), s, &audit.Options{Indexes: []runstore.IndexName{queue}, Found: func(f audit.Finding) { found = append(found, f) }})
			if s.left > 0 { // no read failed
				break
			}
			if failure != runstore.ErrNotFound && !errors.Is(err, down) {
				t.Errorf("read %d fails: got error %v", left, err)
			}
			for _, f := range found {
				if f.Run != "run-1" {
					t.Errorf("read %d fails with %v: %v", left, failure, f)
				}
			}
		}
	}
}

// A feed that lags behind is no finding until the lag is over.
func TestFeedLag(t *testing.T) {
	t.Parallel()
	engine := memory.New(nil)
	inner := engine.Open()
	if _, err := inner.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Writes: runstore.Writes{Events: []runstore.NewEvent{{Kind: "one"}}}}); err != nil {
		t.Fatal(err)
	}
	s := &falsified{RunStore: inner, feed: func([]runstore.FeedEvent) []runstore.FeedEvent { return nil }}
	if found, report := check(t, s, audit.Options{}); len(found) > 0 || report.FeedPending != 1 {
		t.Errorf("at once: %v, %+v", found, report)
	}
	engine.Advance(audit.DefaultFeedLag + time.Second)
	found, report := check(t, s, audit.Options{})
	if len(found) != 1 || found[0].Kind != audit.KindFeed || found[0].Seq != 1 || report.FeedPending != 0 {
		t.Errorf("after the lag: %v, %+v", found, report)
	}
}

// The records of a large run are compared in several chunks, and a large journal in pages.
func TestLargeRun(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil).Open()
	created, err := inner.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &runstore.LeaseSpec{Owner: "a", TTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	const batches = 35 // 8,750 records, two chunks
	for i := range batches {
		b := runstore.NewBatch("run", created.Lease.Fence())
		for n := range 250 {
			b.Append("event", nil)
			b.Put(runstore.RecordKey(fmt.Sprintf("%05d", 250*i+n)), nil)
			b.Records[n].Event = n
		}
		if _, err := inner.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	s := &falsified{RunStore: inner}
	if found, report := check(t, s, audit.Options{}); len(found) > 0 || report.Records != 250*batches || report.Events != 250*batches {
		t.Errorf("got %v, %+v", found, report)
	}
	s.record = func(_ runstore.RunID, r *runstore.Record) {
		if r.Key == "00007" || r.Key == "08749" {
			r.Created.Seq, r.Updated.Seq = 10_000, 10_000
		}
	}
	if found, _ := check(t, s, audit.Options{}); len(found) != 2 || found[0].Key != "00007" || found[1].Key != "08749" {
		t.Errorf("got %v, want findings of two records", found)
	}
	s.record = func(_ runstore.RunID, r *runstore.Record) { r.Version = -1 }
	if found, report := check(t, s, audit.Options{}); len(found) != 20 || report.Findings != 20 || report.Suppressed != 250*batches-20 {
		t.Errorf("got %d findings, %+v", len(found), report)
	}
	// No number of warnings keeps the corruption of a later record from being confirmed.
	s.record = func(_ runstore.RunID, r *runstore.Record) {
		r.Version, r.Updated.Time = 2, r.Created.Time.Add(-time.Second)
		if r.Key == "08749" {
			r.Version = -1
		}
	}
	found, report := check(t, s, audit.Options{})
	if len(found) != 21 || report.Findings != 1 || report.Warnings != 20 || report.Suppressed != 0 || report.SuppressedWarnings == 0 {
		t.Errorf("warnings and a corruption: got %d findings, %+v", len(found), report)
	}
}

func TestInvalidOptions(t *testing.T) {
	t.Parallel()
	s := memory.New(nil).Open()
	_, err := audit.Check(t.Context(), s, &audit.Options{
		MaxRuns: -1, FeedLag: -1, Indexes: []runstore.IndexName{runstore.IndexRuns, "", runstore.IndexName(strings.Repeat("x", runstore.MaxIndexName+1))},
	})
	if !errors.Is(err, runstore.ErrInvalid) {
		t.Fatalf("got %v, want ErrInvalid", err)
	}
	for _, field := range []string{"max runs", "feed lag", "indexes[0]", "indexes[1]", "indexes[2]"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("no %q in %v", field, err)
		}
	}
	if _, err := audit.Check(t.Context(), s, nil); err != nil {
		t.Errorf("without options: %v", err)
	}
}

// A contradiction that only one of the two readings of a run shows is not reported.
func TestUnconfirmedIsNotReported(t *testing.T) {
	t.Parallel()
	engine := memory.New(nil)
	store := engine.Open()
	fill(t, store, engine.Advance)
	heads := 0
	found, report := check(t, &falsified{RunStore: store, head: func(r *runstore.Run) {
		if r.ID != "run-1" {
			return
		}
		if heads++; heads <= 2 { // before and after the journal in the first reading
			r.Summary.Value = []byte("forged")
		} else {
			r.Holder.Owner = ""
		}
	}}, audit.Options{})
	if len(found) != 0 || report.Findings != 0 || heads != 5 {
		t.Errorf("found %v, %+v after %d readings of the head; want nothing after 5", found, report, heads)
	}
}
