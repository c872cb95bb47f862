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

// A commit in a run of 100,000 records costs at most 1.3 times one in a run of 100, in requests and in bytes.
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
			if next > n {
				b.Put(costKey(next-1), costValue(next))
			}
			next++
			commit(t, s, b)
		}
		for range 12 { // it learns what the run is
			step()
		}
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
