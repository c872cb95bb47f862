package spanner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// What Spanner would not take in one commit is refused before it is sent, with the limit.
func TestCommitsBeyondSpannersLimits(t *testing.T) {
	t.Parallel()
	var l ledger
	s := open(t, newDatabase(t, fair), l.keep, patient) // the largest commit takes long on the emulator
	leases := make([]runstore.Lease, 11)
	for i := range leases {
		leases[i] = hold(t, s, runstore.RunID(fmt.Sprint("run ", i)))
	}
	several := func(n, events, size int) []runstore.Batch {
		all := make([]runstore.Batch, n)
		for i := range all {
			all[i] = appending(leases[i])
			for range events {
				all[i].Append("test", make([]byte, size))
			}
		}
		return all
	}
	for _, tc := range []struct {
		batches []runstore.Batch
		says    string
	}{
		{several(9, runstore.MaxEvents, 1), "the limit for one commit is 8192"},
		{several(6, runstore.MaxEvents, 1), "Spanner's limit for one commit is 80000"},
		{several(11, 7, runstore.MaxEventData), "Spanner's limit for one commit is 100000000"},
	} {
		made := l.during(func() {
			_, err := s.CommitMulti(t.Context(), tc.batches)
			if !errors.Is(err, runstore.ErrTooLarge) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want ErrTooLarge that says %q", err, tc.says)
			}
		})
		if len(made) != 2 || made[0].method != sql || made[1].method != rollback {
			t.Errorf("%s: got the RPCs %v, want a read and its end", tc.says, made)
		}
	}
	for _, lease := range leases {
		if run, err := s.GetRun(t.Context(), lease.Run); err != nil || run.LastSeq != 0 {
			t.Errorf("%s has %d events, %v", lease.Run, run.LastSeq, err)
		}
	}
	if _, err := s.CommitMulti(t.Context(), several(3, runstore.MaxEvents, 1)); err != nil {
		t.Errorf("what fits: %v", err)
	}
}

// TestMutationsOfACommit checks that a commit counts one mutation for each column of a row that it
// writes, and those of the index entries that go with the row of its result: the removal of the
// former entry of that row, and the five columns of the next.
func TestMutationsOfACommit(t *testing.T) {
	t.Parallel()
	var l ledger
	s := open(t, newDatabase(t, newest), l.keep, patient)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	commit(t, s, signal("run", "first"))
	made := l.during(func() { commit(t, s, signal("run", "second")) })
	request, _ := made[len(made)-1].request.(*spannerpb.CommitRequest)
	counted, results := 0, 0
	for _, m := range request.GetMutations() {
		for _, w := range []*spannerpb.Mutation_Write{m.GetInsert(), m.GetUpdate(), m.GetInsertOrUpdate()} {
			counted += len(w.GetColumns()) * len(w.GetValues())
			if w.GetTable() == "Writes" {
				results += len(w.GetValues())
			}
		}
	}
	if counted == 0 || results != 1 {
		t.Fatalf("got %d columns and %d results in %v, want some and 1", counted, results, made)
	}
	const entries = 1 + 5
	s.SetMaxMutations(counted + entries - 1)
	if _, err := s.Commit(t.Context(), signal("run", "third")); !errors.Is(err, runstore.ErrTooLarge) {
		t.Errorf("%d columns and their index entries in a commit of at most %d mutations: got %v, want ErrTooLarge", counted, counted+entries-1, err)
	}
	s.SetMaxMutations(counted + entries)
	commit(t, s, signal("run", "third"))
}

// TestLargestBatchInAllPlaces checks that a batch at the contract's limits fits into one
// commit, though each record is in as many indexes as it may be, and that scans return the
// values.
func TestLargestBatchInAllPlaces(t *testing.T) {
	t.Parallel()
	s := open(t, newDatabase(t, fair), patient)
	lease := hold(t, s, "run")
	values := map[runstore.RecordKey][]byte{
		"a": bytes.Repeat([]byte("a"), runstore.MaxRecordValue),
		"b": bytes.Repeat([]byte("b"), runstore.MaxBatchBytes-runstore.MaxRecordValue-len("ab")),
	}
	index := func(i int) runstore.IndexName { return runstore.IndexName(fmt.Sprint("queue ", i)) }
	var places []runstore.Place
	for i := range runstore.MaxPlaces {
		places = append(places, runstore.Place{Index: index(i), At: runstore.After(0)})
	}
	b := runstore.NewBatch(lease.Run, lease.Fence())
	for _, key := range []runstore.RecordKey{"a", "b"} {
		b.Put(key, values[key], places...)
	}
	commit(t, s, b)
	for _, i := range []int{0, runstore.MaxPlaces - 1} {
		for _, heads := range []bool{false, true} {
			found := 0
			for entry, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: index(i), Heads: heads}) {
				if err != nil {
					t.Fatalf("scan of %s: %v", index(i), err)
				}
				found++
				if !bytes.Equal(entry.Record.Value, values[entry.Record.Key]) {
					t.Errorf("%s, heads %t: record %s has a value of %d bytes, want the %d that were put",
						index(i), heads, entry.Record.Key, len(entry.Record.Value), len(values[entry.Record.Key]))
				}
			}
			if found != len(values) {
				t.Errorf("%s, heads %t: got %d entries, want %d", index(i), heads, found, len(values))
			}
		}
	}
}

// Positions are ranks in windows of time, and stay below 2^53 for decades.
func TestPositions(t *testing.T) {
	t.Parallel()
	first := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, begin := range []time.Time{first, first.Add(1e6 * 16384 * time.Microsecond), first.Add(65e9 * 16384 * time.Microsecond)} {
		got := spanner.PositionsOf(begin, begin, begin.Add(16383*time.Microsecond), begin.Add(16384*time.Microsecond), begin.Add(time.Hour))
		for i, p := range got {
			if p <= 0 || p > runstore.MaxPosition || i > 0 && p <= got[i-1] {
				t.Errorf("positions %v, want ones that grow, from 1 to %d", got, runstore.MaxPosition)
			}
		}
		for i, want := range []int64{1, 2, 3, 1, 1} {
			at, rank := spanner.WindowAt(got[i])
			if rank != want || i < 3 && !at.Equal(begin) || i == 3 && !at.Equal(begin.Add(16384*time.Microsecond)) {
				t.Errorf("position %d is rank %d from %v on, want rank %d", got[i], rank, at, want)
			}
		}
	}
	if end, _ := spanner.WindowAt(runstore.MaxPosition); end.Year() < 2060 {
		t.Errorf("positions end in %v", end)
	}
}

// Two transactions of one microsecond may choose the same slot. The one that comes second
// is refused as a whole, and made again with another.
func TestTie(t *testing.T) {
	t.Parallel()
	var tr trick
	var l ledger
	s := open(t, newDatabase(t, fair), tr.through, l.keep)
	for i, c := range changes {
		if c.name != "commit" && c.name != "commit to several" && c.name != "acquire" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			want, wantShape := unharmed(t, s, c, named(2*i))
			n := named(2*i + 1)
			lease := c.before(t, s, n)
			tr.next(func(func(ctx context.Context) error) error {
				return status.Error(codes.AlreadyExists, "row in Feed already exists")
			})
			result, err := c.do(t.Context(), s, n, lease)
			if err != nil || !tr.played() {
				t.Fatalf("got %v", err)
			}
			if got := n.unnamed(timeless(t, result)); got != want {
				t.Errorf("got\n%s, want\n%s", got, want)
			}
			if got := shape(t, s, n); got != wantShape {
				t.Errorf("stored is\n%s, want\n%s", got, wantShape)
			}
			alike(t, s, named(2*i), n)
		})
	}
}
