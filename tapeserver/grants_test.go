package tapeserver_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// connections serves a store with grants by connection, and returns what opens connections of
// their own. Their clients know of no fences.
func connections(t *testing.T, store runstore.RunStore, opts tapeserver.Options) (connect func() tapepb.TapeClient) {
	t.Helper()
	opts.Fence = tape.FenceConnection
	address, _ := listen(t, store, &opts)
	return func() tapepb.TapeClient {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return tapepb.NewTapeClient(conn)
	}
}

func beginAs(t *testing.T, c tapepb.TapeClient, owner string) string {
	t.Helper()
	req := beginRequest("i")
	req.LeaseOwner, req.LeaseTtlMs = owner, 60_000
	r, err := c.BeginRun(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return r.GetRunId()
}

// acts reports whether a client that behaves as Tape's Python plugin calls the counterparty: unless
// BeginEffect answers PERMISSION_DENIED, it does. It swallows the errors of CompleteEffect.
func acts(ctx context.Context, c tapepb.TapeClient, id, key string) bool {
	_, err := c.BeginEffect(ctx, &tapepb.BeginEffectRequest{RunId: id, CustomKey: key, ToolName: "pay"})
	if status.Code(err) == codes.PermissionDenied {
		return false
	}
	_, _ = c.CompleteEffect(ctx, &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: key, Status: confirmed})
	return true
}

// The driver of a run is paused, another takes the run over, and the first one wakes up. It knows
// of no fences, and its owner's name may be the other's: it does not act again, and does not take
// the run back.
func TestPausedDriverOnItsConnection(t *testing.T) {
	t.Parallel()
	for _, owner := range []string{"A", "B"} { // the second driver's name is B
		t.Run(owner, func(t *testing.T) {
			t.Parallel()
			connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
			paused, next := connect(), connect()
			id := beginAs(t, paused, owner)
			if !acts(t.Context(), paused, id, "first") {
				t.Fatal("the driver may not act under its own grant")
			}
			if again := beginAs(t, next, "B"); again != id {
				t.Fatalf("another run: %s", again)
			}
			before := getRun(t, next, id)
			if acts(t.Context(), paused, id, "second") {
				t.Error("the paused driver acts after another took over")
			}
			_, err := paused.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: id})
			wantStatus(t, "RecordDecision", err, codes.FailedPrecondition, "fenced")
			_, err = paused.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: owner, LeaseTtlMs: 60_000})
			wantStatus(t, "ResumeRun", err, codes.Aborted, "held")
			req := beginRequest("i")
			req.LeaseOwner = owner
			_, err = paused.BeginRun(t.Context(), req)
			wantStatus(t, "BeginRun", err, codes.Aborted, "held")
			if acts(t.Context(), paused, id, "third") {
				t.Error("the paused driver acts after its heartbeat")
			}
			if after := getRun(t, next, id); after.GetToken() != before.GetToken() || after.GetSeqCursor() != before.GetSeqCursor() {
				t.Errorf("the paused driver changed %v to %v", before, after)
			}
			if !acts(t.Context(), next, id, "second") {
				t.Error("the next driver may not act")
			}
		})
	}
}

// A driver writes a value and knows of no fences. Once another took its run over, it writes none, until
// it begins a run that is its own. Clients that drive no run write values.
func TestValueOfAPausedDriver(t *testing.T) {
	t.Parallel()
	connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
	paused, next, user := connect(), connect(), connect()
	version := int64(0)
	write := func(c tapepb.TapeClient) error {
		_, err := c.WriteValue(t.Context(), &tapepb.WriteValueRequest{Key: "k", ValueJson: "1", IfVersion: -1})
		return err
	}
	written := func(who string, c tapepb.TapeClient) {
		t.Helper()
		if err := write(c); err != nil {
			t.Errorf("WriteValue by %s: %v", who, err)
		}
		version++
	}
	written("a driver before it begins", paused)
	beginAs(t, paused, "A")
	written("a driver", paused)
	beginAs(t, next, "A")
	for range 2 {
		err := write(paused)
		wantStatus(t, "WriteValue", err, codes.FailedPrecondition, "fenced")
		_, err = paused.DeleteValue(t.Context(), &tapepb.DeleteValueRequest{Key: "k"})
		wantStatus(t, "DeleteValue", err, codes.FailedPrecondition, "fenced")
	}
	written("the next driver", next)
	written("a user", user)
	if _, err := paused.BeginRun(t.Context(), beginRequest("of its own")); err != nil {
		t.Fatal(err)
	}
	written("the driver of another run", paused)
	got, err := user.GetValue(t.Context(), &tapepb.GetValueRequest{Key: "k"})
	if err != nil || got.GetValue().GetVersion() != version {
		t.Errorf("GetValue = %v, %v, want version %d", got, err, version)
	}
}

// A driver appends the events of its run to its session, and knows of no fences. Once another took
// over, it appends none. Events of users, of other runs and of runs that have ended are appended.
func TestSessionOfAPausedDriver(t *testing.T) {
	t.Parallel()
	connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
	paused, next, user := connect(), connect(), connect()
	begun := beginRequest("i")
	add := func(c tapepb.TapeClient, id, invocation string) error {
		_, err := c.AppendEvent(t.Context(), &tapepb.AppendEventRequest{
			AppName: begun.GetAppName(), UserId: begun.GetUserId(), SessionId: begun.GetSessionId(),
			Event: &tapepb.EventRecord{Id: id, InvocationId: invocation},
		})
		return err
	}
	var want []string
	appended := func(c tapepb.TapeClient, id, invocation string) {
		t.Helper()
		if err := add(c, id, invocation); err != nil {
			t.Errorf("event %s: %v", id, err)
		}
		want = append(want, id)
	}
	appended(user, "question", "i") // before the run begins
	id := beginAs(t, paused, "A")
	appended(paused, "first", "i")
	beginAs(t, next, "A")
	err := add(paused, "late", "i")
	wantStatus(t, "AppendEvent", err, codes.FailedPrecondition, "fenced")
	if reason := infoOf(t, err).GetReason(); reason != "FENCED" {
		t.Errorf("reason %s, want FENCED", reason)
	}
	appended(next, "second", "i")
	appended(user, "by a user", "i")
	appended(paused, "another run's", "j")
	appended(paused, "nobody's", "")
	if _, err := next.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL}); err != nil {
		t.Fatal(err)
	}
	appended(next, "after the end", "i")
	wantStatus(t, "AppendEvent", add(paused, "later", "i"), codes.FailedPrecondition, "fenced")
	r, err := user.GetSession(t.Context(), &tapepb.GetSessionRequest{
		AppName: begun.GetAppName(), UserId: begun.GetUserId(), SessionId: begun.GetSessionId(),
	})
	var got []string
	for _, e := range r.GetSession().GetEvents() {
		got = append(got, e.GetId())
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("events %q, %v, want %q", got, err, want)
	}
}

// Helpers of an SDK send heartbeats over a connection of their own: the driver's grant stays.
func TestHeartbeatFromAnotherConnection(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	connect := connections(t, store.Open(), tapeserver.Options{})
	driver, helper := connect(), connect()
	id := beginAs(t, driver, "host:1")
	for range 3 {
		store.Advance(45 * time.Second)
		r, err := helper.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1", LeaseTtlMs: 60_000})
		if err != nil || r.GetGrant() != nil || r.GetRun().GetToken() != 1 {
			t.Fatalf("heartbeat = %v, %v, want no grant and token 1", r, err)
		}
	}
	if runs, err := helper.ListRunsToRecover(t.Context(), &tapepb.ListRunsToRecoverRequest{}); err != nil || len(runs.GetRuns()) != 0 {
		t.Errorf("to recover: %v, %v, want nothing while the helper heartbeats", runs, err)
	}
	if !acts(t.Context(), driver, id, "k") {
		t.Error("the driver may not act")
	}
	if acts(t.Context(), helper, id, "l") {
		t.Error("the helper acts, though no grant was answered on its connection")
	}
	own, err := driver.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "host:1"})
	if err != nil || own.GetGrant().GetToken() != 1 {
		t.Errorf("the driver's own heartbeat = %v, %v, want its grant", own, err)
	}
}

// A connection without a grant writes nothing that needs one; what needs none goes through.
func TestConnectionWithoutAGrant(t *testing.T) {
	t.Parallel()
	for _, w := range calls {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
			driver, other := connect(), connect()
			id := prepare(t, driver).GetRunId()
			err := w.do(t.Context(), other, id, nil)
			if w.free() {
				if err != nil {
					t.Errorf("%s = %v, want no error", w.name, err)
				}
				return
			}
			wantStatus(t, w.name, err, w.refusal(codes.FailedPrecondition), "call BeginRun")
			if err := w.do(t.Context(), driver, id, nil); err != nil {
				t.Errorf("%s on the driver's connection = %v", w.name, err)
			}
		})
	}
}

// After a broken connection, or on another server over the same store, a client begins again.
func TestNewConnectionBeginsAgain(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	first, second := connections(t, store.Open(), tapeserver.Options{})(), connections(t, store.Open(), tapeserver.Options{})()
	id := beginAs(t, first, "host:1")
	if acts(t.Context(), second, id, "k") {
		t.Error("a connection to another server acts without a grant of its own")
	}
	beginAs(t, second, "host:1")
	if !acts(t.Context(), second, id, "k") {
		t.Error("the new connection may not act")
	}
	if acts(t.Context(), first, id, "l") {
		t.Error("the former connection acts")
	}
}

// Reports on an outbox effect and observations need no lease: the run may have ended. Operators
// may cancel a run.
func TestWorkThatOutlivesItsRun(t *testing.T) {
	t.Parallel()
	connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
	driver, worker := connect(), connect()
	id := prepare(t, driver).GetRunId()
	if _, err := driver.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL}); err != nil {
		t.Fatal(err)
	}
	if r, err := worker.ClaimEffectDispatch(t.Context(), &tapepb.ClaimEffectDispatchRequest{RunId: id, IdempotencyKey: "outbox"}); err != nil || !r.GetAcquired() {
		t.Errorf("claim = %v, %v", r, err)
	}
	if _, err := worker.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "outbox", Status: confirmed}); err != nil {
		t.Errorf("a dispatcher's CompleteEffect = %v", err)
	}
	_, err := worker.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "open", Status: confirmed})
	wantStatus(t, "CompleteEffect of an inline effect", err, codes.FailedPrecondition, "call BeginRun")
	if _, err := worker.ReconcileEffect(t.Context(), &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "open", ResolvedStatus: confirmed}); err != nil {
		t.Errorf("a reconciler's ReconcileEffect = %v", err)
	}
	// A process that drove the run once is a worker like any other.
	if _, err := driver.ReconcileEffect(t.Context(), &tapepb.ReconcileEffectRequest{RunId: id, IdempotencyKey: "open", ResolvedStatus: confirmed}); err != nil {
		t.Errorf("the former driver's ReconcileEffect = %v", err)
	}
	if _, err := worker.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_CANCELLED}); err != nil {
		t.Errorf("an operator's EndRun(CANCELLED) = %v", err)
	}
}

// A driver dispatches an effect of its own run, and another takes the run over meanwhile: the outcome
// is recorded, so that the effect is not dispatched again.
func TestDispatcherWhoseRunWasTakenOver(t *testing.T) {
	t.Parallel()
	connect := connections(t, memory.New(nil).Open(), tapeserver.Options{})
	first, second := connect(), connect()
	id := prepare(t, first).GetRunId()
	claim, err := first.ClaimEffectDispatch(t.Context(), &tapepb.ClaimEffectDispatchRequest{RunId: id, IdempotencyKey: "outbox", Claimer: "first"})
	if err != nil || !claim.GetAcquired() {
		t.Fatal(claim, err)
	}
	beginAs(t, second, "second")
	done, err := first.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{
		RunId: id, IdempotencyKey: "outbox", Status: confirmed, ClaimGeneration: claim.GetGeneration(),
	})
	if err != nil || done.GetStatus() != confirmed {
		t.Errorf("CompleteEffect = %v, %v, want it CONFIRMED", done, err)
	}
	_, err = first.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "open", Status: confirmed})
	wantStatus(t, "CompleteEffect of an inline effect", err, codes.FailedPrecondition, "fenced")
	_, err = first.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_TERMINAL})
	wantStatus(t, "EndRun", err, codes.FailedPrecondition, "fenced")
}

// With WaitForLease two workers that list the same run do not evict each other.
func TestTakeoverOfExpiredLeasesOnly(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	connect := connections(t, store.Open(), tapeserver.Options{WaitForLease: true})
	first, second := connect(), connect()
	id := beginAs(t, first, "A")
	req := beginRequest("i")
	req.LeaseOwner = "B"
	_, err := second.BeginRun(t.Context(), req)
	wantStatus(t, "BeginRun", err, codes.Aborted, "held")
	if info := infoOf(t, err); info.GetReason() != "LEASE_HELD" || info.GetMetadata()["holder"] != "A" || info.GetMetadata()["remaining_ms"] == "" {
		t.Errorf("details = %v, want the holder and its remaining time", info)
	}
	store.Advance(time.Minute)
	if _, err := second.BeginRun(t.Context(), req); err != nil {
		t.Errorf("BeginRun after the lease = %v", err)
	}
	if acts(t.Context(), first, id, "k") || !acts(t.Context(), second, id, "k") {
		t.Error("the first driver acts, or the second one does not")
	}
}

// ResumeRun that waits for a lease renews none, also by the holder's name: a process that asks again
// and again does not keep the lease of a dead one alive. Without the field it is a heartbeat.
func TestResumeThatWaitsRenewsNothing(t *testing.T) {
	t.Parallel()
	for _, opts := range []tapeserver.Options{{}, {WaitForLease: true}} {
		store := memory.New(nil)
		connect := connections(t, store.Open(), opts)
		first, second := connect(), connect()
		id := beginAs(t, first, "A")
		waiting := &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "A", LeaseTtlMs: 600_000, WaitForLease: true}
		expires := func() int64 {
			run, err := first.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: id})
			if err != nil {
				t.Fatal(err)
			}
			return run.GetLeaseExpiresAtMs()
		}
		began := expires()
		for name, request := range map[string]func() error{
			"ResumeRun": func() error { _, err := first.ResumeRun(t.Context(), waiting); return err },
			"BeginRun": func() error {
				again := beginRequest("i")
				again.LeaseOwner, again.WaitForLease = "B", true
				_, err := first.BeginRun(t.Context(), again)
				return err
			},
			"BeginRun by the same owner": func() error {
				again := beginRequest("i")
				again.LeaseOwner, again.WaitForLease = "A", true
				_, err := first.BeginRun(t.Context(), again)
				return err
			},
		} { // the connection has the grant, but another caller on it may drive the run
			wantStatus(t, name+" that waits, on the driver's connection", request(), codes.Aborted, "held")
		}
		_, err := second.ResumeRun(t.Context(), waiting)
		wantStatus(t, "ResumeRun that waits", err, codes.Aborted, "held")
		if m := infoOf(t, err).GetMetadata(); infoOf(t, err).GetReason() != "LEASE_HELD" || m["holder"] != "A" || m["remaining_ms"] == "" {
			t.Errorf("details = %v, want the holder and its remaining time", m)
		}
		if got := expires(); got != began {
			t.Errorf("%+v: ResumeRun that waits has renewed the lease by %d ms", opts, got-began)
		}
		beat, err := second.ResumeRun(t.Context(), &tapepb.ResumeRunRequest{RunId: id, LeaseOwner: "A", LeaseTtlMs: 120_000})
		if err != nil || beat.GetGrant() != nil || expires() <= began {
			t.Errorf("%+v: a heartbeat by name: %v, %v; want a later expiry", opts, beat, err)
		}
		store.Advance(2 * time.Minute)
		if r, err := second.ResumeRun(t.Context(), waiting); err != nil || r.GetGrant().GetToken() != 2 {
			t.Errorf("%+v: ResumeRun after the lease: %v, %v; want token 2", opts, r, err)
		}
	}
}

// A server counts the writes of drivers that present no fence, so that its operator sees whether
// required would refuse any.
func TestUnfencedWritesAreCounted(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	c, stop := start(t, memory.New(nil).Open(), &tapeserver.Options{Logger: slog.New(slog.NewTextHandler(&out, nil))})
	r := begin(t, c, "i")
	for i, f := range []*tapepb.Fence{nil, fenceField(r.GetGrant()), nil} {
		if _, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: r.GetRunId(), DecisionIndex: int64(i), Fence: f}); err != nil {
			t.Fatal(err)
		}
	}
	if err := stop(); err != nil || !strings.Contains(out.String(), "mode=presented writes=2") {
		t.Errorf("Serve = %v, log %q; want two writes without a fence", err, out.String())
	}
}
