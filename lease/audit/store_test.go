package audit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/lease/audit"
	"github.com/tapestore/tapestore/runstore"
)

// falsified is a store that falsifies what it returns. A nil function changes nothing. The
// functions get copies.
type falsified struct {
	runstore.RunStore
	head    func(*runstore.Run)
	event   func(runstore.RunID, *runstore.Event)
	journal func(runstore.RunID, []runstore.Event) []runstore.Event
	record  func(runstore.RunID, *runstore.Record)
	entries func(runstore.IndexQuery, []runstore.IndexEntry) []runstore.IndexEntry
	feed    func([]runstore.FeedEvent) []runstore.FeedEvent
	terms   func(runstore.RunID, []runstore.Term) []runstore.Term
}

func (s *falsified) ReadTerms(ctx context.Context, id runstore.RunID) ([]runstore.Term, error) {
	reader, _ := runstore.As[runstore.TermReader](s.RunStore)
	terms, err := reader.ReadTerms(ctx, id)
	if err == nil && s.terms != nil {
		terms = s.terms(id, terms)
	}
	return terms, err
}

func (s *falsified) Unwrap() runstore.RunStore { return s.RunStore }

func (s *falsified) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	run, err := s.RunStore.GetRun(ctx, id)
	if err == nil && s.head != nil {
		s.head(&run)
	}
	return run, err
}

func (s *falsified) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	events, err := s.RunStore.ReadJournal(ctx, id, from, limit)
	for i := range events {
		if s.event != nil {
			s.event(id, &events[i])
		}
	}
	if s.journal != nil {
		events = s.journal(id, events)
	}
	return events, err
}

func (s *falsified) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	records, err := s.RunStore.ReadRecords(ctx, id, q)
	for i := range records {
		if s.record != nil {
			s.record(id, &records[i])
		}
	}
	return records, err
}

func (s *falsified) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	entries, err := s.RunStore.ScanIndex(ctx, q)
	if s.entries != nil && len(entries) > 0 {
		entries = s.entries(q, entries)
	}
	return entries, err
}

func (s *falsified) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	events, err := s.RunStore.ReadFeed(ctx, q)
	if s.event != nil { // the feed has what the journal has
		for i := range events {
			s.event(events[i].Run, &events[i].Event)
		}
	}
	if s.feed != nil && len(events) > 0 {
		events = s.feed(events)
	}
	return events, err
}

// queue is the index of records that the tests use.
const queue = "queue"

// fill makes eight listed runs, an unlisted one and one without events. In each of the eight, two
// holders and a writer without a fence append seven events and change two records; the second
// holder has the lease.
//
//	seq    1  2  3  4  5  6  7
//	token  1  1  0  1  2  2  0
//	       a  a     a  b  b
func fill(t *testing.T, s runstore.RunStore, advance func(time.Duration)) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	commit := func(id runstore.RunID, g runstore.Guard, put ...runstore.RecordKey) {
		t.Helper()
		advance(time.Second)
		b := runstore.NewBatch(id, g)
		b.Append("event", []byte("data"))
		for _, key := range put {
			b.Put(key, []byte("value"), runstore.Place{Index: queue, At: runstore.After(0)})
		}
		_, err := s.Commit(t.Context(), b)
		must(err)
	}
	for i := range 9 {
		spec := runstore.RunSpec{
			ID: runstore.RunID(fmt.Sprint("run-", i)), Unlisted: i == 8, Runnable: runstore.After(0),
			Lease: &runstore.LeaseSpec{Owner: "a", TTL: time.Second},
		}
		spec.Writes.Append("begin", nil)
		spec.Writes.Put(runstore.SummaryKey, []byte("summary"))
		created, err := s.CreateRun(t.Context(), spec)
		must(err)
		id, unfenced := spec.ID, runstore.Unguarded("a signal")
		commit(id, created.Lease.Fence(), "first")
		commit(id, unfenced)
		commit(id, created.Lease.Fence(), "second")
		advance(time.Minute)
		second, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "b", TTL: time.Minute}})
		must(err)
		commit(id, second.Fence(), "first")
		commit(id, second.Fence())
		commit(id, unfenced)
		// A change without an event names the last one.
		silent := runstore.NewBatch(id, second.Fence())
		silent.Put("silent", nil)
		_, err = s.Commit(t.Context(), silent)
		must(err)
	}
	_, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "without events"})
	must(err)
	advance(time.Hour) // the feed may not lag behind any more
}

// check returns the findings and the report of a store.
func check(t *testing.T, s runstore.RunStore, opts audit.Options) ([]audit.Finding, audit.Report) {
	t.Helper()
	var found []audit.Finding
	opts.Found = func(f audit.Finding) { found = append(found, f) }
	opts.Indexes = []runstore.IndexName{queue}
	report, err := audit.Check(t.Context(), s, &opts)
	if err != nil {
		t.Fatal(err)
	}
	return found, report
}

// want is a finding that a test expects.
type want struct {
	kind    audit.Kind
	run     runstore.RunID
	seq     runstore.Seq
	key     runstore.RecordKey
	index   runstore.IndexName
	problem string
}

func (w want) matches(f audit.Finding) bool {
	return f.Kind == w.kind && f.Run == w.run && f.Seq == w.seq && f.Key == w.key && f.Index == w.index && strings.Contains(f.Problem, w.problem)
}
