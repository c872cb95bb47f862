package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The results of writes without an id, which the server keeps for their nonces, do not push
// out those that a caller may ask for again.
func TestIDsOutliveWritesWithoutOne(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	lease := hold(t, s, "run")
	b := appending(lease, "charge")
	b.ID = "charge"
	first := commit(t, s, b)
	for i := range 400 {
		w := runstore.NewBatch("run", lease.Fence())
		w.Put("progress", fmt.Append(nil, i))
		commit(t, s, w)
	}
	if again := commit(t, s, b); !again.Replayed || again.FirstSeq != first.FirstSeq {
		t.Errorf("the batch, repeated: got %+v, want the first result %+v", again, first)
	}
}

// A grant id that comes back once it is no longer recognised is that of a new grant, whose
// release has a result of its own.
func TestReleaseOfAGrantIDThatCameBack(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	hold(t, s, "run")
	taking := func(grant runstore.GrantID) runstore.Lease {
		t.Helper()
		granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "owner", TTL: time.Minute, Grant: grant}, Preempt: "test",
		})
		if err != nil {
			t.Fatal(err)
		}
		return granted.Lease
	}
	for round := range 2 {
		lease := taking("the same")
		req := runstore.ReleaseRequest{Fence: lease.Fence()}
		req.Writes.Append("released", nil)
		for range 2 {
			done, err := s.ReleaseLease(t.Context(), req)
			if want := runstore.Seq(round + 1); err != nil || done.FirstSeq != want {
				t.Fatalf("round %d: got %+v, error %v; want seq %d", round, done, err, want)
			}
		}
		for i := range runstore.RememberedGrants + 2 {
			taking(runstore.GrantID(fmt.Sprint(round, " ", i)))
		}
	}
}
