package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// TestSessionsUnderFences writes to sessions under the fences of runs on a store of each engine.
func TestSessionsUnderFences(t *testing.T) {
	onEachEngine(t, func(t *testing.T, store runstore.RunStore) {
		sessionsUnderFences(t, serve(t, store), serve(t, store))
		sessionsOfDriversThatDie(t, store)
	})
}

// sessionsUnderFences has two drivers of one run, on two servers of one store, write to a session
// under their own grants.
func sessionsUnderFences(t *testing.T, first, second tapepb.TapeClient) {
	begin := func(c tapepb.TapeClient) *tapepb.Fence {
		t.Helper()
		r, err := c.BeginRun(t.Context(), &tapepb.BeginRunRequest{AppName: "fenced", InvocationId: "i"})
		if err != nil {
			t.Fatal(err)
		}
		g := r.GetGrant()
		return &tapepb.Fence{Owner: g.GetOwner(), Token: g.GetToken(), GrantId: g.GetGrantId(), RunId: g.GetRunId()}
	}
	writes := func(c tapepb.TapeClient, f *tapepb.Fence) map[string]error {
		_, created := c.CreateSession(t.Context(), &tapepb.CreateSessionRequest{AppName: "fenced", SessionId: "s", StateJson: `{"a":1}`, Fence: f})
		_, appended := c.AppendEvent(t.Context(), &tapepb.AppendEventRequest{
			AppName: "fenced", SessionId: "s", Event: &tapepb.EventRecord{Id: "e"}, StateDeltaJson: `{"b":2}`, Fence: f,
		})
		_, deleted := c.DeleteSession(t.Context(), &tapepb.DeleteSessionRequest{AppName: "fenced", SessionId: "other", Fence: f})
		return map[string]error{"CreateSession": created, "AppendEvent": appended, "DeleteSession": deleted}
	}
	old := begin(first)
	for name, err := range writes(first, old) {
		if err != nil {
			t.Errorf("%s under the current grant: %v", name, err)
		}
	}
	current := begin(second)
	// The connection distinguishes a driver that presents no fence from its successor.
	_, late := first.AppendEvent(t.Context(), &tapepb.AppendEventRequest{AppName: "fenced", Event: &tapepb.EventRecord{Id: "late", InvocationId: "i"}})
	refused := writes(first, old)
	refused["AppendEvent without a fence"] = late
	for name, err := range refused {
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s of the former driver: %v, want FAILED_PRECONDITION", name, err)
		}
	}
	got, err := second.GetSession(t.Context(), &tapepb.GetSessionRequest{AppName: "fenced", SessionId: "s"})
	if s := got.GetSession(); err != nil || s.GetStateJson() != `{"a":1,"b":2}` || len(s.GetEvents()) != 1 {
		t.Errorf("the session: %v, %v, want one event", got, err)
	}
	for name, err := range writes(second, current) {
		if err != nil {
			t.Errorf("%s of the next driver: %v", name, err)
		}
	}
	deleted, err := second.DeleteSession(t.Context(), &tapepb.DeleteSessionRequest{AppName: "fenced", SessionId: "s", Fence: current})
	if err != nil || !deleted.GetDeleted() {
		t.Errorf("DeleteSession: %v, %v", deleted, err)
	}
	if got, err := second.GetSession(t.Context(), &tapepb.GetSessionRequest{AppName: "fenced", SessionId: "s"}); err != nil || got.GetFound() {
		t.Errorf("the session after its deletion: %v, %v", got, err)
	}
}

// cutOff is a store that accepts a limited number of commits from a driver and then fails. It
// commits to one run at a time.
type cutOff struct {
	runstore.RunStore
	left int
}

func (s *cutOff) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.left--; s.left < 0 {
		return runstore.Committed{}, &runstore.OpError{Op: "test", Err: runstore.ErrUnavailable}
	}
	return s.RunStore.Commit(ctx, b)
}

// sessionsOfDriversThatDie crashes a driver after each commit of a step over its run and its
// session. The next driver finds the event either appended or absent, and that never changes.
func sessionsOfDriversThatDie(t *testing.T, store runstore.RunStore) {
	tp := tape.New(struct{ runstore.RunStore }{store}, nil)
	for n := 0; ; n++ {
		key := tape.RunKey{App: "dying", Session: "s", Invocation: fmt.Sprint(n)}
		session := tape.SessionKey{App: "dying", Session: fmt.Sprint(n)}
		lead, err := tp.BeginRun(t.Context(), tape.BeginRunRequest{Key: key})
		if err == nil {
			_, err = tp.CreateSession(t.Context(), session, "", runstore.Fence{})
		}
		if err != nil {
			t.Fatal(err)
		}
		s := &cutOff{store, n}
		_, died := tape.New(s, nil).AppendEvent(t.Context(), session, tape.SessionEvent{ID: "e"}, "", lead.Lease.Fence())
		next, err := tp.BeginRun(t.Context(), tape.BeginRunRequest{Key: key})
		if err != nil {
			t.Fatal(err)
		}
		left, err := store.ReadRecords(t.Context(), lead.ID, runstore.RecordQuery{Keys: []runstore.RecordKey{crossrun.IntentKey}})
		if err != nil || len(left) > 0 {
			t.Errorf("died after %d commits: the next driver finds a step under way: %v, %v", n, left, err)
		}
		got, _, err := tp.GetSession(t.Context(), session, 0)
		if applied := len(got.Events) == 1; err != nil || died == nil && !applied || runstore.OutcomeOf(died) == runstore.NotApplied && applied {
			t.Errorf("died after %d commits with %v: %d events, %v", n, died, len(got.Events), err)
		}
		late := tape.SessionEvent{ID: "late"}
		if _, err := tp.AppendEvent(t.Context(), session, late, "", lead.Lease.Fence()); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("died after %d commits, and woke up: %v, want ErrFenced", n, err)
		}
		if _, err := tp.AppendEvent(t.Context(), session, tape.SessionEvent{ID: "next"}, "", next.Lease.Fence()); err != nil {
			t.Errorf("died after %d commits: the next driver: %v", n, err)
		}
		if s.left >= 0 {
			if n < 5 {
				t.Errorf("the step takes %d commits", n)
			}
			return
		}
	}
}
