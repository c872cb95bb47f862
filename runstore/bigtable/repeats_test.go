package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// repeating sends every other conditional mutation twice, the first among them, and answers
// with the second reply, as a retry policy in the caller's dial options does after a
// reply was lost: the adapter sees one request, whose predicate did not match.
type repeating struct {
	armed atomic.Bool
	sent  atomic.Int64
}

func (r *repeating) through(o *bigtable.Options) {
	o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if path.Base(method) == swaps && r.armed.Load() && r.sent.Add(1)%2 == 1 {
				first := &bigtablepb.CheckAndMutateRowResponse{}
				if err := invoke(ctx, method, proto.Clone(req.(proto.Message)), first, cc, opts...); err != nil {
					return err
				}
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}))
}

// A write whose request was repeated unseen is applied once, its caller gets the result,
// and what it stored beside the run's row stays: large values, places in queues.
func TestUnseenRepeats(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want, wantShape := unharmed(t, c)
			table, r := newTable(t), &repeating{}
			s := openBare(t, table)
			lease := c.before(t, s)
			twice := openBare(t, table, r.through)
			r.armed.Store(true)
			result, err := c.do(t.Context(), twice, lease)
			if err != nil {
				t.Fatal(err)
			}
			if n := r.sent.Load(); n != 1 {
				t.Errorf("%d conditional mutations, want 1 and its repeat", n)
			}
			if got := timeless(t, result); got != want {
				t.Errorf("got\n%s, want\n%s", got, want)
			}
			bigtable.EmptyGarbage(t.Context(), twice)
			if got := shape(t, s); got != wantShape {
				t.Errorf("stored is\n%s, want\n%s", got, wantShape)
			}
		})
	}
}

// A store half of whose conditional mutations are repeated unseen works as any other: over
// takeovers, a journal of several segments and the feed of all runs, and a raised epoch.
func TestManyUnseenRepeats(t *testing.T) {
	t.Parallel()
	table, r := newTable(t), &repeating{}
	r.armed.Store(true)
	s, other := openBare(t, table, r.through), openBare(t, table, r.through)
	fill(t, s, hold(t, s, "run"), 1, 200)
	bystander := hold(t, other, "bystander")
	fill(t, other, takeOver(t, other, "run"), 201, 200)
	commit(t, other, appending(bystander, "beside"))
	b := signal("run", "")
	b.Events = nil
	b.Put("large", []byte(strings.Repeat("large", 20_000)), runstore.Place{Index: "queue", At: runstore.After(0)})
	commit(t, s, b)
	for _, each := range []*bigtable.Store{s, other} {
		seal(t, each, "run")
		bigtable.EmptyGarbage(t.Context(), each)
	}
	if err := bigtable.Publish(t.Context(), s, "bystander"); err != nil {
		t.Fatal(err)
	}
	readsAs(t, s, 400)
	inFeed(t, s, 400)
	if found := shape(t, s); !strings.Contains(found, "in queue: run large at 1") {
		t.Errorf("the queue lacks the record: %s", found)
	}
	for n := range 2 {
		epoch, err := s.RaiseEpoch(t.Context(), fmt.Sprint("raise ", n+1))
		if err != nil || epoch != runstore.Epoch(n+1) {
			t.Errorf("raise %d: got epoch %d, %v", n+1, epoch, err)
		}
	}
}

// A handle that others have left far behind, beyond the nonces that a head has, sends one copy
// of its write and learns that the revision moved: its write was not applied, and is decided anew.
func TestWriteOfAHandleThatIsFarBehind(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	behind, other := openBare(t, table), openBare(t, table)
	zombie := hold(t, behind, "run")
	takeOver(t, other, "run")
	overtake(t, other)
	late := runstore.NewBatch("run", zombie.Fence())
	late.Append("late", nil)
	if _, err := behind.Commit(t.Context(), late); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a write under the former grant: %v, want ErrFenced", err)
	}
	b := signal("run", "")
	b.Put("large", []byte(strings.Repeat("large", 20_000)), runstore.Place{Index: "queue", At: runstore.After(0)})
	commit(t, behind, b)
	overtake(t, other)
	commit(t, behind, signal("run", ""))
	const want = 2*(bigtable.MaxNonces+1) + 2
	events, err := behind.ReadJournal(t.Context(), "run", 1, 1000)
	if err != nil || len(events) != want {
		t.Errorf("%d events, %v, want %d", len(events), err, want)
	}
}

// The same of a write that has no events, so that the journal could not show it.
func TestRecordOfAHandleThatIsFarBehind(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	behind, other := openBare(t, table), openBare(t, table)
	hold(t, behind, "run")
	overtake(t, other)
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Put("record", []byte("value"))
	commit(t, behind, b)
}
