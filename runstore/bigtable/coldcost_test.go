package bigtable_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// traffic counts the requests of a handle and the bytes of its messages, both ways.
type traffic struct{ requests, bytes, largest atomic.Int64 }

func (t *traffic) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (t *traffic) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (t *traffic) HandleConn(context.Context, stats.ConnStats)                       {}
func (t *traffic) HandleRPC(_ context.Context, s stats.RPCStats) {
	n := 0
	switch s := s.(type) {
	case *stats.Begin:
		t.requests.Add(1)
	case *stats.OutPayload:
		n = s.Length
	case *stats.InPayload:
		n = s.Length
	}
	t.bytes.Add(int64(n))
	for was := t.largest.Load(); int64(n) > was && !t.largest.CompareAndSwap(was, int64(n)); was = t.largest.Load() {
	}
}

// during returns the requests and the bytes of f.
func (t *traffic) during(f func()) (requests, bytes float64) {
	r, b := t.requests.Load(), t.bytes.Load()
	f()
	return float64(t.requests.Load() - r), float64(t.bytes.Load() - b)
}

// A commit in a run of 100,000 records costs at most 1.3 times one in a run of 100, in requests and in bytes. Each
// commit puts a new record and changes the one before, and a record of any age, which is cold in a large run.
// The moves that it causes are counted apart: their bytes follow what is written, not what the run holds.
func TestCommitsInLargeRunsCostNoMore(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	large := 5_000
	if effort.Full() {
		large = 100_000
	}
	sizes := []int{100, 1_000, large}
	commits, moves := map[int][2]float64{}, map[int]float64{}
	for _, n := range sizes {
		id := runstore.RunID(fmt.Sprint("run of ", n))
		writer := openBare(t, table)
		lease := hold(t, writer, id)
		for from := 0; from < n; from += 200 {
			b := appending(lease)
			for i := from; i < min(from+200, n); i++ {
				b.Put(costKey(i), costValue(i))
			}
			commit(t, writer, b)
			if err := bigtable.MoveIfNeeded(t.Context(), writer, id); err != nil {
				t.Fatal(err)
			}
		}
		count := &traffic{}
		s := openBare(t, table, func(o *bigtable.Options) { o.DialOptions = append(o.DialOptions, grpc.WithStatsHandler(count)) })
		next := n
		step := func() {
			b := appending(lease, "event")
			b.Put(costKey(next), costValue(next))
			b.Put(costKey(next*7919%n), costValue(next))
			if next > n {
				b.Put(costKey(next-1), costValue(next))
			}
			next++
			commit(t, s, b)
		}
		for range 12 { // it learns what the run is
			step()
		}
		learnFingerprints(t, s, id)
		const rounds = 60
		requests, bytes := count.during(func() {
			for range rounds {
				step()
			}
		})
		commits[n] = [2]float64{requests / rounds, bytes / rounds}
		if n < 1000 {
			continue
		}
		const more = 800
		_, bytes = count.during(func() {
			for range more {
				step()
				if err := bigtable.MoveIfNeeded(t.Context(), s, id); err != nil {
					t.Fatal(err)
				}
			}
		})
		moves[n] = bytes / more
		if largest := count.largest.Load(); largest > 4<<20 {
			t.Errorf("a message has %d bytes", largest)
		}
	}
	if weight := weigh(t, raw(t, table)); weight > 4<<20 {
		t.Errorf("a run's row has %d bytes", weight)
	}
	t.Logf("requests and bytes of a commit by the records of its run: %v; bytes with moves: %v", commits, moves)
	for i, what := range []string{"requests", "bytes"} {
		if ratio := commits[large][i] / commits[100][i]; ratio > 1.3 {
			t.Errorf("a commit in a run of %d records costs %.2f times the %s of one in a run of 100", large, ratio, what)
		}
	}
	if ratio := moves[large] / moves[1000]; ratio > 1.3 {
		t.Errorf("a commit in a run of %d records, with its share of the moves, costs %.2f times the bytes of one in a run of 1,000", large, ratio)
	}
}

func costKey(i int) runstore.RecordKey { return runstore.RecordKey(fmt.Sprintf("effect/%06d", i)) }

func costValue(i int) []byte { return []byte(strings.Repeat("v", 150+i%100)) }

// A move of records makes three requests: it reads the run's row, writes the rows of the records, and swaps the head.
func TestRPCsOfAMove(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	lease := hold(t, s, "run")
	next, moved := 0, 0
	for moved < 3 {
		b := runstore.NewBatch("run", lease.Fence())
		for range 100 {
			b.Put(costKey(next), costValue(next))
			next++
		}
		commit(t, s, b)
		made := backgroundOf(t, table, func() {
			if err := bigtable.MoveIfNeeded(t.Context(), s, "run"); err != nil {
				t.Fatal(err)
			}
		})
		if len(made) == 0 {
			continue
		}
		if moved++; !slices.Equal(made, []string{reads, writes, swaps}) {
			t.Errorf("move %d, after %d records: got the requests %q", moved, next, made)
		}
	}
	t.Logf("3 moves after %d records", next)
}

// Commits of a run with many cold records cost what those of a small one do: one request for a new record, for
// one that was changed lately, and for a cold one. A cold record with a large value, and one that was deleted,
// take two reads before, and so does a cold record whose move has no digests: a program of an earlier version
// made it.
func TestColdRecordsCostCommitsLittle(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table, cool)
	hold(t, s, "run")
	all := kept{}
	edit(t, s, all, "large", strings.Repeat("x", 20<<10))
	for i := range 60 {
		edit(t, s, all, fmt.Sprintf("a/%05d", i), "value")
	}
	relieve(t, s)
	edit(t, s, all, "a/00002", "")
	edit(t, s, all, "a/00003", "changed")
	for i := range 60 {
		edit(t, s, all, fmt.Sprintf("e/%d", i), "value")
	}
	relieve(t, s) // of the tombstone and the change too
	l := keepLedger(t, table)
	learned := func(name string) *bigtable.Store {
		other := openBare(t, table)
		for i := range 6 {
			edit(t, other, all, fmt.Sprintf("%s/%d", name, i), "new")
		}
		learnFingerprints(t, other, "run")
		return other
	}
	other := learned("b")
	for what, test := range map[string]struct{ key, want string }{
		"a new record":          {"c", swaps},
		"a record of the row":   {"b/0", swaps},
		"a cold record":         {"a/00000", swaps},
		"another new record":    {"d", swaps},
		"one more cold record":  {"a/00001", swaps},
		"one that moved twice":  {"a/00003", swaps},
		"a deleted cold record": {"a/00002", rpcs(reads, reads, swaps)},
		"a large cold record":   {"large", rpcs(reads, reads, swaps)},
	} {
		if got := l.during(func() { edit(t, other, all, test.key, what) }); got != test.want {
			t.Errorf("%s: got the RPCs %s, want %s", what, got, test.want)
		}
		if got := l.during(func() { edit(t, other, all, test.key, what+" again") }); got != swaps {
			t.Errorf("%s again: got the RPCs %s, want %s", what, got, swaps)
		}
	}
	all.readAs(t, other)
	if err := bigtable.DropDigests(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	earlier := learned("f")
	for key, want := range map[string]string{"a/00004": rpcs(reads, reads, swaps), "g": swaps} {
		if got := l.during(func() { edit(t, earlier, all, key, "without digests") }); got != want {
			t.Errorf("%s, without digests: got the RPCs %s, want %s", key, got, want)
		}
	}
	all.readAs(t, earlier)
	third := openBare(t, table)
	for i, want := range []string{rpcs(reads, reads, reads), rpcs(reads, reads)} { // the first read finds the list of moves
		n := l.during(func() {
			if _, err := third.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"a/00003"}}); err != nil {
				t.Error(err)
			}
		})
		if n != want {
			t.Errorf("read %d of a cold record: got the RPCs %s, want %s", i+1, n, want)
		}
	}
}

// A run whose cold records change again and again is rewritten when two thirds of the rows are replaced ones, so
// that a handle need not read many more digests than there are records.
func TestReplacedRowsAreRewritten(t *testing.T) {
	t.Parallel()
	s := openBare(t, newTable(t), cool)
	hold(t, s, "run")
	all, most := kept{}, 0
	for round := range 20 {
		for i := range 60 {
			edit(t, s, all, fmt.Sprintf("a/%05d", i), fmt.Sprint("round ", round))
		}
		if err := bigtable.MoveRecords(t.Context(), s, "run", false); err != nil {
			t.Fatal(err)
		}
		rows, records, err := bigtable.RowsOfMoves(t.Context(), s, "run")
		if err != nil {
			t.Fatal(err)
		}
		if most = max(most, rows); rows > 4*records {
			t.Fatalf("round %d: the moves have written %d rows of %d records", round, rows, records)
		}
	}
	if most < 120 {
		t.Errorf("the moves wrote %d rows at most: too few for this test", most)
	}
	all.readAs(t, s)
}
