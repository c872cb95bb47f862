package bigtable_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// What happens to the first request of a commit. The adapter sends a lost one again. Of one that is sent twice
// unseen, as by a retry policy in the caller's dial options, it gets the second reply.
const (
	requestLost = "the request is lost"
	replyLost   = "the reply is lost"
	sentTwice   = "the request is sent twice, unseen"
)

// harmOne commits b to "run", and harms the first request. Between the two copies it calls since with another
// handle.
func harmOne(t testing.TB, b runstore.Batch, harm string, since func(other *bigtable.Store, tbl *client.Table, l runstore.Lease)) (s *bigtable.Store, done runstore.Committed, err error) {
	t.Helper()
	return harmAfter(t, func(bigtableemulator.TableName, *bigtable.Store) {}, b, harm, since)
}

// harmAfter is harmOne after first, which gets the table and the handle of the commit.
func harmAfter(t testing.TB, first func(bigtableemulator.TableName, *bigtable.Store), b runstore.Batch, harm string, since func(other *bigtable.Store, tbl *client.Table, l runstore.Lease)) (s *bigtable.Store, done runstore.Committed, err error) {
	t.Helper()
	table := newTable(t)
	var other *bigtable.Store
	var lease runstore.Lease
	armed := false
	s = openBare(t, table, meddle(func(_ context.Context, send func() error) error {
		if !armed {
			return send()
		}
		armed = false
		if harm != requestLost {
			if err := send(); err != nil {
				t.Error(err)
			}
		}
		since(other, raw(t, table), lease)
		if harm == sentTwice {
			return send()
		}
		return status.Error(codes.Unavailable, "lost")
	}))
	other = openBare(t, table)
	lease = hold(t, s, "run")
	first(table, s)
	armed = true
	done, err = s.Commit(t.Context(), b)
	return s, done, err
}

// overtake makes more writes to "run" than its head remembers.
func overtake(t testing.TB, s *bigtable.Store) {
	t.Helper()
	for range bigtable.MaxNonces + 1 {
		commit(t, s, signal("run", "since"))
	}
}

// A write whose reply was lost, or whose request was sent twice unseen, of a run that has had more writes since
// than its head remembers, is found in the journal if it has events, whether these are sealed or not. So it is
// applied once, and its outcome is known.
func TestJournalShowsWritesOfLongAgo(t *testing.T) {
	t.Parallel()
	for _, harm := range []string{requestLost, replyLost, sentTwice} {
		for _, sealed := range []bool{true, false} {
			b := signal("run", "which?")
			b.Append("signal", []byte("its second event"))
			s, done, err := harmOne(t, b, harm, func(other *bigtable.Store, _ *client.Table, _ runstore.Lease) {
				overtake(t, other)
				if sealed {
					overtake(t, other)
					seal(t, other, "run")
				}
			})
			if err != nil {
				t.Errorf("%s, sealed %v: %v", harm, sealed, err)
				continue
			}
			events, err := s.ReadJournal(t.Context(), "run", 1, 1000)
			if err != nil {
				t.Fatal(err)
			}
			first := slices.IndexFunc(events, func(e runstore.Event) bool { return string(e.Data) == "which?" })
			others := slices.DeleteFunc(slices.Clone(events), func(e runstore.Event) bool { return string(e.Data) != "since" })
			if len(events) != len(others)+2 || first < 0 || events[first].Seq != done.FirstSeq || done.LastSeq != done.FirstSeq+1 {
				t.Errorf("%s, sealed %v: %d events, %d of others, the batch at %d, which the commit reported as %+v", harm, sealed, len(events), len(others), first+1, done)
			}
			if (harm == requestLost) == (done.FirstSeq == 1) {
				t.Errorf("%s, sealed %v: the batch has seq %d", harm, sealed, done.FirstSeq)
			}
		}
	}
}

// The outcome of such a write is unknown if it has no events, or if the run and its journal were purged since.
func TestOutcomeOfLongAgo(t *testing.T) {
	t.Parallel()
	put := runstore.NewBatch("run", runstore.Unguarded("test"))
	put.Put("record", []byte("which?"))
	for _, harm := range []string{requestLost, replyLost} {
		_, _, err := harmOne(t, put, harm, func(other *bigtable.Store, _ *client.Table, _ runstore.Lease) { overtake(t, other) })
		fails(t, err, runstore.ErrUnknownOutcome, bigtable.ErrLongAgo, runstore.Unknown)
		s, _, err := harmOne(t, signal("run", "which?"), harm, func(other *bigtable.Store, _ *client.Table, l runstore.Lease) {
			purge(t, other, l)
			holdAnew(t, other, "run")
			overtake(t, other)
		})
		fails(t, err, runstore.ErrUnknownOutcome, bigtable.ErrLongAgo, runstore.Unknown)
		seqs(t, s, bigtable.MaxNonces+1)
	}
}

// The outcome of a raise of the run before the write does not matter: the run is read again.
func TestRaiseOfLongAgo(t *testing.T) {
	t.Parallel()
	for _, harm := range []string{requestLost, replyLost, sentTwice} {
		s, _, err := harmAfter(t, func(table bigtableemulator.TableName, s *bigtable.Store) { cutRaise(t, table, s) }, signal("run", ""), harm,
			func(other *bigtable.Store, _ *client.Table, _ runstore.Lease) { overtake(t, other) })
		if err != nil {
			t.Errorf("%s: %v", harm, err)
		}
		seqs(t, s, bigtable.MaxNonces+2)
	}
}

// A write without events that has an id is found among the results of the row, or surely was not applied.
func TestResultsShowWritesOfLongAgo(t *testing.T) {
	t.Parallel()
	for _, harm := range []string{requestLost, replyLost, sentTwice} {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.ID = "batch"
		b.Put("record", []byte("value"))
		s, done, err := harmOne(t, b, harm, func(other *bigtable.Store, _ *client.Table, _ runstore.Lease) { overtake(t, other) })
		if err != nil || done.Replayed == (harm == requestLost) {
			t.Errorf("%s: got %+v, %v", harm, done, err)
			continue
		}
		records, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"record"}})
		if err != nil || len(records) != 1 || records[0].Version != done.Versions[0] {
			t.Errorf("%s: the record is %+v, %v, and the commit returned %+v", harm, records, err, done)
		}
	}
}

// If the row has dropped results since, another request with the id may have been applied. So the journal,
// which has events of others at the seq of this one, does not show that the batch was not applied.
func TestDroppedResultsShowNothing(t *testing.T) {
	t.Parallel()
	b := signal("run", "which?")
	b.ID = "batch"
	s, _, err := harmOne(t, b, requestLost, func(other *bigtable.Store, _ *client.Table, _ runstore.Lease) {
		commit(t, other, b)
		for i := range bigtable.MaxResults {
			later := signal("run", "since")
			later.ID = runstore.BatchID(fmt.Sprint("batch ", i))
			commit(t, other, later)
		}
	})
	fails(t, err, runstore.ErrUnknownOutcome, bigtable.ErrLongAgo, runstore.Unknown)
	seqs(t, s, bigtable.MaxResults+1)
}

// Nor is the outcome known if the event is in a segment that is lost or damaged.
func TestDamagedJournalShowsNothing(t *testing.T) {
	t.Parallel()
	for _, harm := range []string{replyLost, sentTwice} {
		for _, m := range []*client.Mutation{deleteRow(), damagedSegment()} {
			_, _, err := harmOne(t, signal("run", "which?"), harm, func(other *bigtable.Store, tbl *client.Table, _ runstore.Lease) {
				overtake(t, other)
				overtake(t, other)
				seal(t, other, "run")
				if err := tbl.Apply(t.Context(), slices.Min(slices.Collect(maps.Keys(segmentRows(t, tbl)))), m); err != nil {
					t.Error(err)
				}
			})
			fails(t, err, runstore.ErrUnknownOutcome, runstore.ErrUnknownOutcome, runstore.Unknown)
		}
	}
}

// The results in the run's row show the outcome of a batch with an id also where the segment of its event is lost.
func TestResultsShowWritesWhoseSegmentIsLost(t *testing.T) {
	t.Parallel()
	for _, harm := range []string{requestLost, replyLost, sentTwice} {
		b := signal("run", "which?")
		b.ID = "batch"
		_, done, err := harmOne(t, b, harm, func(other *bigtable.Store, tbl *client.Table, _ runstore.Lease) {
			overtake(t, other)
			overtake(t, other)
			seal(t, other, "run")
			if err := tbl.Apply(t.Context(), slices.Min(slices.Collect(maps.Keys(segmentRows(t, tbl)))), deleteRow()); err != nil {
				t.Error(err)
			}
		})
		if err != nil || done.Replayed == (harm == requestLost) {
			t.Errorf("%s: got %+v, %v", harm, done, err)
		}
	}
}

func deleteRow() *client.Mutation {
	m := client.NewMutation()
	m.DeleteRow()
	return m
}

func damagedSegment() *client.Mutation {
	m := client.NewMutation()
	m.Set("x", "", client.Now(), []byte{200})
	return m
}
