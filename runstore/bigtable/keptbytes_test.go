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

// The records that had to stay at a run's last move are gone. New ones leave the row as early as those of any
// run.
func TestRecordsLeaveTheRowAfterQueuedOnesAreGone(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"deleted", "purged"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := openBare(t, newTable(t), cool)
			lease := hold(t, s, "run")
			write := func(name string, change func(b *runstore.Batch, key runstore.RecordKey)) (most int64) {
				for i := range 6 {
					b := signal("run", name)
					for j := range 10 {
						change(&b, runstore.RecordKey(fmt.Sprintf("%s/%d/%d", name, i, j)))
					}
					commit(t, s, b)
					if err := bigtable.MoveIfNeeded(t.Context(), s, "run"); err != nil {
						t.Fatal(err)
					}
					_, bytes, err := bigtable.Moves(t.Context(), s, "run")
					if err != nil {
						t.Fatal(err)
					}
					most = max(most, bytes)
				}
				return most
			}
			queued := write("queued", func(b *runstore.Batch, key runstore.RecordKey) { b.Put(key, make([]byte, 1000), waiting) })
			if queued < 60_000 {
				t.Fatalf("the records in queues take %d bytes", queued)
			}
			if how == "purged" {
				purge(t, s, lease)
				holdAnew(t, s, "run")
			} else {
				write("queued", func(b *runstore.Batch, key runstore.RecordKey) { b.Delete(key) })
			}
			most := write("new", func(b *runstore.Batch, key runstore.RecordKey) { b.Put(key, make([]byte, 1000)) })
			if most > 20_000 {
				t.Errorf("the row has up to %d bytes of records that can leave it above 3 KiB", most)
			}
		})
	}
}
