package bigtable_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// A batch that fits once records have left the row is applied, also if another handle writes to the run while
// the records are moved.
func TestFullRunMovesAgainAfterALostRace(t *testing.T) {
	t.Parallel()
	for _, race := range []bool{false, true} {
		t.Run(fmt.Sprint("race ", race), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			other := openBare(t, table)
			var armed atomic.Bool
			before := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if strings.HasSuffix(method, "/CheckAndMutateRow") && armed.CompareAndSwap(true, false) {
					commit(t, other, signal("run", "of another handle"))
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}
			s := openBare(t, table, func(o *bigtable.Options) {
				// So much that no write but a full row moves records. A move leaves a third of it.
				bigtable.MoveAbove(o, 1400<<10)
				o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(before))
			})
			hold(t, s, "run")
			for i := range 5 {
				b := signal("run", "movable")
				for j := range 10 {
					b.Put(runstore.RecordKey(fmt.Sprintf("movable/%d/%d", i, j)), make([]byte, 16<<10))
				}
				commit(t, s, b)
			}
			reserving := func(key runstore.RecordKey) runstore.Batch { // about 480 KiB of the row
				b := signal("run", "reserving")
				b.Put(key, nil)
				for i := range 250 {
					b.Records[0].Reserve = append(b.Records[0].Reserve, runstore.RecordWrite{
						Key:   runstore.RecordKey(fmt.Sprintf("%0*d", runstore.MaxRecordKey, i)),
						Value: make([]byte, 256),
						Index: []runstore.Place{{Index: runstore.IndexName(strings.Repeat("i", runstore.MaxIndexName)), At: runstore.After(0)}},
					})
				}
				return b
			}
			commit(t, s, reserving("first"))
			if _, bytes, err := bigtable.Moves(t.Context(), s, "run"); err != nil || bytes < 1100<<10 || bytes > 1400<<10 {
				t.Fatalf("the records take %d bytes, %v", bytes, err)
			}
			armed.Store(race)
			if _, err := s.Commit(t.Context(), reserving("second")); err != nil {
				t.Error(err)
			}
			if moves, _, err := bigtable.Moves(t.Context(), s, "run"); err != nil || moves != 1 || armed.Load() {
				t.Errorf("got %d moves, %v, want one", moves, err)
			}
		})
	}
}
