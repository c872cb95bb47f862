package bigtable_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/serving"
)

func runID(prefix string, i int) runstore.RunID { return runstore.RunID(fmt.Sprint(prefix, " ", i)) }

func recordKey(prefix string, i int) runstore.RecordKey {
	return runstore.RecordKey(fmt.Sprintf("%s/%05d", prefix, i))
}

// A rewriting of a run with so many cold records that it leaves more moves than a list usually has is not
// followed by another until the list has twice as many, whichever handle moves records.
func TestRewritingOfAVeryLargeRunEnds(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table, cool)
	hold(t, s, "run")
	const most, perBatch = 10, 60 // a step of a rewriting copies 10 rows, and a move takes about 50 records
	n := 0
	moved := func(s *bigtable.Store) (rewrites bool) {
		t.Helper()
		bigtable.SetMaxMoves(s, most)
		b := signal("run", "event")
		for range perBatch {
			b.Put(recordKey("a", n), []byte("some value of a record"))
			n++
		}
		commit(t, s, b)
		rewrites, err := bigtable.MoveAsking(t.Context(), s, "run")
		if err != nil {
			t.Fatal(err)
		}
		return rewrites
	}
	moves := func() int {
		t.Helper()
		n, _, err := bigtable.Moves(t.Context(), s, "run")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for !moved(s) {
	}
	if got := moves(); got != most+1 {
		t.Errorf("the first rewriting is due at %d moves, want %d", got, most+1)
	}
	for more := true; more; {
		var err error
		if more, err = bigtable.Rewrite(t.Context(), s, "run"); err != nil {
			t.Fatal(err)
		}
	}
	left := moves()
	if left < 2*most {
		t.Fatalf("the rewriting has left %d moves, too few for this test", left)
	}
	other := openBare(t, table, cool)
	for moves() < 2*left {
		if moved(other) {
			t.Fatalf("another rewriting is due at %d moves, want more than %d: one leaves %d", moves(), 2*left, left)
		}
	}
	if !moved(other) {
		t.Errorf("no rewriting is due at %d moves", moves())
	}
}

// Each step of a long rewriting in the background has its own retry timeout. So no step is cut because the steps
// before it took long.
func TestStepsOfARewritingHaveTheirOwnTime(t *testing.T) {
	t.Parallel()
	table, s, all := cold(t, 80)
	for i := range 75 { // their tombstones have the cold rows rewritten
		edit(t, s, all, fmt.Sprintf("a/%05d", i), "")
	}
	var mu sync.Mutex
	var ends []time.Time // of the conditional mutations of the run's row that serve no operation
	mover := open(t, table, cool, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if m, ok := req.(*bigtablepb.CheckAndMutateRowRequest); ok && string(m.RowKey) == bigtable.RunKey("run") && serving.Operation(ctx) == "" {
					mu.Lock()
					defer mu.Unlock()
					end, _ := ctx.Deadline()
					ends = append(ends, end)
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}))
	})
	edit(t, mover, all, "c", "that shows the handle how large the row is")
	const steps = 5
	await(t, "the steps of the rewriting", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ends) >= steps
	})
	mu.Lock()
	defer mu.Unlock()
	for i, end := range ends[1:] {
		if !end.After(ends[i]) {
			t.Errorf("step %d has the deadline %v, and the one before %v", i+2, end, ends[i])
		}
	}
}
