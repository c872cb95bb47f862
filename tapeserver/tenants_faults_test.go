package tapeserver_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// faultyStore fails reads with errors that name runs, once it is told to, and calls swap before the next
// read of records.
type faultyStore struct {
	runstore.RunStore
	damaged atomic.Pointer[runstore.RunID] // a run that cannot be read
	first   atomic.Pointer[runstore.RunID] // a run whose first entry in the feed cannot be read
	swap    atomic.Pointer[func()]
}

func (s *faultyStore) fault(id runstore.RunID) error {
	return &runstore.OpError{Op: "read", Run: id, Err: runstore.ErrCorrupt, Cause: fmt.Errorf("run %q is damaged", id)}
}

func (s *faultyStore) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	if bad := s.damaged.Load(); bad != nil && *bad == id {
		return runstore.Run{}, s.fault(id)
	}
	return s.RunStore.GetRun(ctx, id)
}

func (s *faultyStore) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	if bad := s.damaged.Load(); bad != nil {
		return nil, s.fault(*bad)
	}
	return s.RunStore.ScanIndex(ctx, q)
}

func (s *faultyStore) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	events, err := s.RunStore.ReadFeed(ctx, q)
	bad, first := s.damaged.Load(), s.first.Load()
	for i, e := range events {
		if bad != nil && e.Run == *bad || first != nil && e.Run == *first && e.Seq == 1 {
			events[i] = runstore.FeedEvent{Run: e.Run, Event: runstore.Event{Seq: e.Seq, Position: e.Position}, Err: s.fault(e.Run)}
		}
	}
	return events, err
}

func (s *faultyStore) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	if swap := s.swap.Swap(nil); swap != nil {
		(*swap)()
	}
	if bad := s.damaged.Load(); bad != nil && *bad == id {
		return nil, s.fault(id)
	}
	return s.RunStore.ReadRecords(ctx, id, q)
}

// TestFaultsInOtherTenantsData: what cannot be read of a run of another tenant does not show that there is
// such a run, in no list, no feed and no call that names it.
func TestFaultsInOtherTenantsData(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "a operate a", "all operate")
	store := &faultyStore{RunStore: memory.New(nil).Open()}
	c, conn := startAuth(t, store, &tapeserver.Options{Auth: check})
	all, a := as(t.Context(), "all"), as(t.Context(), "a")
	fill(all, t, c, "a", 0)
	other := fill(all, t, c, "b", 0)
	damaged := runstore.RunID(other.busy)
	if _, err := c.BeginEffect(all, &tapepb.BeginEffectRequest{RunId: other.busy, CustomKey: "business", Connector: "bank", BusinessKey: "K"}); err != nil {
		t.Fatal(err)
	}
	own := fill(all, t, c, "a", 1)
	store.damaged.Store(&damaged)
	_, absent := c.GetRun(a, &tapepb.GetRunRequest{RunId: "absent"})
	if _, err := c.GetRun(a, &tapepb.GetRunRequest{RunId: other.busy}); errorText(err) != errorText(absent) {
		t.Errorf("GetRun of a damaged run: %v, want %v", err, absent)
	}
	for _, m := range methodsOfTape() {
		if !isFiltered(m) || m.IsStreamingServer() {
			continue
		}
		_, err := replyOf(a, conn, m, nil)
		wantStatus(t, string(m.Name()), err, codes.DataLoss, "the store could not answer")
		if strings.Contains(errorText(err), other.busy) || reasonIn(err) != "CORRUPT" {
			t.Errorf("%s: %v", m.Name(), err)
		}
		if _, err := replyOf(all, conn, m, nil); !strings.Contains(errorText(err), other.busy) {
			t.Errorf("%s without a limit: %v, want the run's id", m.Name(), err)
		}
	}
	_, err := c.BeginEffect(a, &tapepb.BeginEffectRequest{RunId: own.busy, CustomKey: "business", Connector: "bank", BusinessKey: "K"})
	if wantStatus(t, "BeginEffect", err, codes.PermissionDenied, "the store could not answer"); strings.Contains(errorText(err), other.busy) {
		t.Errorf("BeginEffect: %v", err)
	}
	_, err = c.SendSignal(a, &tapepb.SendSignalRequest{AppName: "app", UserId: "user", SessionId: "session", GateName: "g"})
	if wantStatus(t, "SendSignal", err, codes.DataLoss, "the store could not answer"); strings.Contains(errorText(err), other.busy) {
		t.Errorf("SendSignal: %v", err)
	}
	for name, subscribe := range feeds {
		stream := opened(t)(subscribe(a, c, "/tape/**", 0))
		if r, err := c.BeginRun(all, &tapepb.BeginRunRequest{AppName: "app", InvocationId: name, TenantId: "a"}); err != nil {
			t.Error(err)
		} else {
			for id := ""; id != r.GetRunId(); { // a damaged entry of another tenant ends no stream
				if id = received(t, stream, 1)[0].GetRunId(); id == other.busy || id == other.idle || id == other.ended {
					t.Fatalf("%s: an entry of run %s", name, id)
				}
			}
		}
	}
}

// TestReadOfRunThatIsPurged: the run that a request names is purged and begun again by another tenant
// after its tenant was checked.
func TestReadOfRunThatIsPurged(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "a read a", "all operate")
	store := &faultyStore{RunStore: memory.New(nil).Open()}
	c, _ := startAuth(t, store, &tapeserver.Options{Auth: check})
	all := as(t.Context(), "all")
	begin := func(tenant string) string {
		r, err := c.BeginRun(all, &tapepb.BeginRunRequest{AppName: "app", InvocationId: "i", TenantId: tenant})
		if err == nil {
			_, err = c.RecordDecision(all, &tapepb.RecordDecisionRequest{RunId: r.GetRunId(), Model: "of " + tenant})
		}
		if err != nil {
			t.Error(err)
		}
		return r.GetRunId()
	}
	id := begin("a")
	swap := func() {
		purge(t, store, id)
		time.Sleep(2 * time.Millisecond)
		begin("b")
	}
	request := &tapepb.GetDecisionRequest{RunId: id}
	if r, err := c.GetDecision(as(t.Context(), "a"), request); err != nil || r.GetDecision().GetModel() != "of a" {
		t.Fatalf("GetDecision: %v, %v", r, err)
	}
	store.swap.Store(&swap)
	r, err := c.GetDecision(as(t.Context(), "a"), request)
	if wantStatus(t, "GetDecision", err, codes.PermissionDenied, "no such run"); r.GetFound() {
		t.Errorf("GetDecision returns %v", r)
	}
}

// TestFeedOfARunThatIsPurged: a run is purged and begun again by another tenant, and the entry that would
// show it is damaged.
func TestFeedOfARunThatIsPurged(t *testing.T) {
	t.Parallel()
	check, _ := checker(t, "a read a", "all operate")
	store := &faultyStore{RunStore: memory.New(nil).Open()}
	c, _ := startAuth(t, store, &tapeserver.Options{Auth: check})
	all := as(t.Context(), "all")
	begin := func(invocation, tenant string) runstore.RunID {
		t.Helper()
		r, err := c.BeginRun(all, &tapepb.BeginRunRequest{AppName: "app", InvocationId: invocation, TenantId: tenant})
		if err == nil {
			_, err = c.RecordDecision(all, &tapepb.RecordDecisionRequest{RunId: r.GetRunId()})
		}
		if err != nil {
			t.Fatal(err)
		}
		return runstore.RunID(r.GetRunId())
	}
	feed := opened(t)(feeds["SubscribeEvents"](as(t.Context(), "a"), c, "/tape/**", 0))
	id := begin("i", "a")
	received(t, feed, 2)
	store.first.Store(&id)
	purge(t, store, string(id))
	time.Sleep(2 * time.Millisecond)
	begin("i", "b")
	own := begin("own", "a")
	for _, e := range received(t, feed, 2) {
		if e.GetRunId() != string(own) {
			t.Errorf("an entry of the other tenant: %v", e)
		}
	}
}

// TestFeedsEndWithTheirTenants: a feed ends when its principal loses a tenant, and not when it gets one.
func TestFeedsEndWithTheirTenants(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, before, wider, after string }{
		{"a tenant is withdrawn", "p read a b", "p read a b c", "p read a"},
		{"the principal becomes limited", "p read", "p operate", "p read a b c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			check, rewrite := checker(t, test.before, "all operate")
			c, _ := startAuth(t, memory.New(nil).Open(), &tapeserver.Options{Auth: check, AuthInterval: time.Millisecond})
			stream := opened(t)(feeds["SubscribeEvents"](as(t.Context(), "p"), c, "/tape/**", 0))
			rewrite(test.wider, "all operate")
			time.Sleep(20 * time.Millisecond)
			if _, err := c.BeginRun(as(t.Context(), "all"), &tapepb.BeginRunRequest{AppName: "app", InvocationId: "i", TenantId: "a"}); err != nil {
				t.Fatal(err)
			}
			received(t, stream, 1)
			rewrite(test.after, "all operate")
			_, err := stream.Recv()
			wantStatus(t, "the feed", err, codes.PermissionDenied, "p has lost a tenant")
		})
	}
}
