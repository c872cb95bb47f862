package spanner_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// indexed are the columns of Runs that its indexes and generated columns are made of.
var indexed = []string{"Created", "Unlisted", "Runnable", "GrantState", "HeldUntil", "Purging"}

// A renewal and a commit of events change no index of runs, whatever the lease.
func TestHeartbeatTouchesNoIndex(t *testing.T) {
	t.Parallel()
	var l ledger
	s := open(t, newDatabase(t, fair), l.keep)
	lease := holdAs(t, s, "run", runstore.LeaseSpec{Owner: "holder", TTL: runstore.MinTTL})
	b := appending(lease)
	b.Runnable = runstore.After(0)
	commit(t, s, b)
	written := 0
	for _, one := range l.during(func() {
		if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
			t.Error(err)
		}
		commit(t, s, appending(lease, "event"))
	}) {
		r, ok := one.request.(*spannerpb.CommitRequest)
		if !ok {
			continue
		}
		for _, m := range r.GetMutations() {
			if w := m.GetUpdate(); w.GetTable() == "Runs" {
				written++
				for _, column := range w.GetColumns() {
					if slices.Contains(indexed, column) {
						t.Errorf("%s writes %s", one.operation, column)
					}
				}
			}
		}
	}
	if written != 2 {
		t.Errorf("%d updates of Runs, want 2", written)
	}
}

// renewed holds n runnable runs whose leases were renewed after the expiry that they were
// granted with.
func renewed(t *testing.T, s *spanner.Store, n int) (leases []runstore.Lease) {
	t.Helper()
	for i := range n {
		id := runstore.RunID(fmt.Sprint("run ", i))
		lease := holdAs(t, s, id, runstore.LeaseSpec{Owner: "holder", TTL: runstore.MinTTL})
		b := appending(lease)
		b.Runnable = runstore.After(0)
		commit(t, s, b)
		if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	past(t, s, leases[n-1].ExpiresAt)
	return leases
}

// due is how many entries a scan of the runnable runs meets.
const due = "SELECT COUNT(*) FROM Runs WHERE Place <= CURRENT_TIMESTAMP()"

func runnable(t *testing.T, s *spanner.Store) int {
	t.Helper()
	found, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: 3})
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// A grant places a run behind its expiry; whatever ends the grant takes the run back.
func TestGrantsPlaceTheRun(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s, c := open(t, p), raw(t, p)
	lease := hold(t, s, "run")
	b := appending(lease)
	b.Runnable = runstore.After(0)
	commit(t, s, b)
	places := func(after string, want int64) {
		t.Helper()
		if n := count(t, c, due); n != want {
			t.Errorf("after %s %d entries are due, want %d", after, n, want)
		}
	}
	places("a grant", 0)
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	places("a release", 1)
	takeOver(t, s, "run")
	places("a takeover", 0)
	if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	places("a new epoch", 1)
	takeOver(t, s, "run")
	commit(t, s, purgeOf("run"))
	places("a purge", 0)
	if n := count(t, c, "SELECT COUNT(*) FROM Runs WHERE Place IS NOT NULL"); n != 0 {
		t.Error("a purged run is in the index")
	}
}

// A scan moves the entries of renewed leases, behind itself, so that the next one does not
// meet them.
func TestScanMovesEntriesOfRenewedLeases(t *testing.T) {
	t.Parallel()
	const runs = 20 // more than one transaction moves
	p := newDatabase(t, fair)
	s, c := open(t, p), raw(t, p)
	renewed(t, s, runs)
	if n := count(t, c, due); n != runs {
		t.Fatalf("%d entries are due, want %d: renewals have moved them", n, runs)
	}
	if n := runnable(t, s); n != 0 {
		t.Errorf("a scan found %d runs with live leases", n)
	}
	await(t, "the entries are moved", func() bool { return count(t, c, due) == 0 })
	if n := count(t, c, "SELECT COUNT(*) FROM Runs WHERE Place != Expires"); n != 0 {
		t.Errorf("%d entries are not at the present expiry", n)
	}
}

// Only the entry of the grant that a scan has seen is moved, and only while it is current. The move
// outlives the context that the handle was opened with.
func TestMoveIsGuardedByTheGrant(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	opening, opened := context.WithCancel(t.Context())
	s, err := tryOpenIn(opening, t, p)
	if opened(); err != nil {
		t.Fatal(err)
	}
	c := raw(t, p)
	leases := renewed(t, s, 4)
	released, taken, forged, current := leases[0], leases[1], leases[2], leases[3]
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: released.Fence()}); err != nil {
		t.Fatal(err)
	}
	next, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: taken.Run, LeaseSpec: runstore.LeaseSpec{Owner: "thief", TTL: runstore.MinTTL}, Preempt: "test",
	})
	if err == nil {
		_, err = s.RenewLease(t.Context(), runstore.RenewRequest{Fence: next.Fence(), TTL: runstore.MaxTTL})
	}
	if err != nil {
		t.Fatal(err)
	}
	forged.Grant = "another"
	for _, l := range []runstore.Lease{released, taken, forged} {
		s.MoveEntry(l)
		if n := count(t, c, due+fmt.Sprintf(" AND Run = b'%s' AND HeldUntil < Expires", l.Run)); n != 1 {
			t.Errorf("%s: the entry was moved", l.Run)
		}
	}
	s.MoveEntry(current)
	if n := count(t, c, "SELECT COUNT(*) FROM Runs WHERE Place = Expires"); n != 1 {
		t.Errorf("%d entries are at the present expiry, want that of the current grant", n)
	}
	if found := runnable(t, s); found != 1 {
		t.Errorf("%d runs are runnable, want the one that was released", found)
	}
}

// A scan neither waits for the moves behind it nor fails with them.
func TestScanWithoutMoves(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p)
	renewed(t, s, 4)
	moves := func(c spanneremulator.Call) bool {
		r, ok := c.Request.(*spannerpb.ReadRequest)
		return ok && c.Database == p.String() && r.GetRequestOptions().GetRequestTag() == "tapestore-places"
	}
	held := p.server.Hold(1, moves)
	defer held.Stop()
	for range 2 {
		if n := runnable(t, s); n != 0 {
			t.Errorf("a scan found %d runs with live leases", n)
		}
	}
	met(t, held, 1)
	refused := p.server.Refuse(0, codes.PermissionDenied, moves)
	defer refused.Stop()
	held.Stop()
	met(t, refused, 1)
	if n := runnable(t, s); n != 0 {
		t.Errorf("a scan found %d runs with live leases", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
