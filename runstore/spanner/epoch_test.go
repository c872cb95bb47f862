package spanner_test

import (
	"fmt"
	"sync"
	"testing"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// TestRaiseDuringAnother checks that a handle that has ended the grants of earlier epochs does not
// record this for a later epoch, which another handle has begun meanwhile. That handle crashes
// before it ends the grants of the first handle's epoch; the next handle that is opened ends them.
func TestRaiseDuringAnother(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	other := open(t, p, patient)
	var once sync.Once
	overtaken := false
	s := open(t, p, patient, beforeSending(func(request any) {
		r, ok := request.(*spannerpb.ExecuteSqlRequest)
		if !ok || r.GetRequestOptions().GetTransactionTag() != "tapestore-end-grants" {
			return
		}
		once.Do(func() {
			hold(t, other, "run") // a grant of epoch 1
			cut := p.server.Refuse(0, codes.PermissionDenied, func(c spanneremulator.Call) bool {
				begin, ok := c.Request.(*spannerpb.BeginTransactionRequest)
				return ok && c.Database == p.String() && begin.GetOptions().GetPartitionedDml() != nil
			})
			defer cut.Stop()
			_, err := other.RaiseEpoch(t.Context(), "second")
			if overtaken = err != nil && cut.Count() > 0; !overtaken {
				t.Errorf("the second epoch: got %v, want that the grants of the first cannot be ended", err)
			}
		})
	}))
	if epoch, err := s.RaiseEpoch(t.Context(), "first"); err != nil || epoch != 1 || !overtaken {
		t.Fatalf("got epoch %d, %v, with another raise meanwhile %t, want epoch 1", epoch, err, overtaken)
	}
	if run, err := s.GetRun(t.Context(), "run"); err != nil || run.Holder.Token != runstore.Epoch(1).Floor()+1 || len(epochs(t, s)) != 2 {
		t.Fatalf("got %+v, %v in %+v, want a grant of the first of two epochs", run, err, epochs(t, s))
	}
	open(t, p)
	if run, err := s.GetRun(t.Context(), "run"); err != nil || run.Holder.Token != 0 {
		t.Errorf("after the next handle was opened: got %+v, %v, want a free lease", run, err)
	}
}

// TestEpochInEveryShard checks that the grants of runs in all shards are of the epoch.
func TestEpochInEveryShard(t *testing.T) {
	t.Parallel()
	s := open(t, newDatabase(t, fair), patient)
	epoch, err := s.RaiseEpoch(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	granted := map[int64]bool{}
	for i := 0; len(granted) < spanner.Shards; i++ {
		id := runstore.RunID(fmt.Sprint("run ", i))
		_, shard := spanner.KeyOf(id)
		if granted[shard] {
			continue
		}
		granted[shard] = true
		if lease := hold(t, s, id); lease.Token <= epoch.Floor() {
			t.Errorf("shard %d: got token %d, want one above %d, that of the epoch", shard, lease.Token, epoch.Floor())
		}
	}
}
