package tape_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// A heartbeat that presents no fence, by the owner of the live lease, renews it and gives the
// caller nothing to write with. Once the lease is over, or by another owner, ResumeRun takes it.
func TestHeartbeatIsNoTakeover(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	req := beginRequest("i")
	req.Owner, req.TTL = "driver", time.Minute
	r, err := tp.BeginRun(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	resume := func(owner string) (tape.Run, runstore.Lease) {
		t.Helper()
		run, lease, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: r.ID, Owner: owner, TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return run, lease
	}
	for range 3 {
		store.Advance(45 * time.Second)
		run, lease := resume("driver")
		if lease.Token != 0 || run.LeaseOwner != "driver" || run.Status != tape.RunRunning {
			t.Errorf("heartbeat: %+v, %+v, want no grant", run, lease)
		}
	}
	if _, err := tp.RecordDecision(t.Context(), r.ID, tape.Decision{}, r.Lease.Fence()); err != nil {
		t.Errorf("the driver after heartbeats: %v", err)
	}
	again, err := tp.BeginRun(t.Context(), req)
	if err != nil || again.Lease.Token != 2 {
		t.Fatalf("begin again: %+v, %v", again, err)
	}
	store.Advance(time.Minute)
	if _, lease := resume("driver"); lease.Token != 3 {
		t.Errorf("the owner after its lease was over: %+v, want token 3", lease)
	}
	if _, lease := resume("another"); lease.Token != 4 {
		t.Errorf("another owner: %+v, want token 4", lease)
	}
	for token := runstore.Token(5); token < 7; token++ { // two drivers without a name are not one
		if _, lease := resume(""); lease.Token != token {
			t.Errorf("no owner: %+v, want token %d", lease, token)
		}
	}
	if head, err := s.GetRun(t.Context(), r.ID); err != nil || head.Token != 6 {
		t.Errorf("%+v, %v", head, err)
	}
}

func TestResumeRunRevivesNoRunThatHasEnded(t *testing.T) {
	t.Parallel()
	for _, status := range []tape.RunStatus{tape.RunTerminal, tape.RunFailed, tape.RunStuck, tape.RunCancelled, tape.RunCompensating} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			tp, _, _ := newTape(t)
			r := begin(t, tp, "i")
			if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: status}); err != nil {
				t.Fatal(err)
			}
			run, lease, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: r.ID, Owner: "late"})
			unwinds := status == tape.RunCompensating
			if err != nil || run.Status != status || (lease.Token == 2) != unwinds {
				t.Errorf("ResumeRun = %+v, %+v, %v; want the status kept, and a grant to unwind only", run, lease, err)
			}
			if got, err := tp.GetRun(t.Context(), r.ID); err != nil || got.Status != status {
				t.Errorf("the run is %+v, %v", got, err)
			}
		})
	}
}

// A driver that unwinds its run keeps its lease up to the end that follows.
func TestUnwindingWorksToItsEnd(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	tp := tape.New(s, &tape.Options{Fence: tape.FenceRequired})
	r := begin(t, tp, "i")
	f := r.Lease.Fence()
	o, err := tp.RegisterCompensation(t.Context(), tape.Compensation{Run: r.ID, EffectKey: "K", Kind: "undo", Fence: f})
	if err == nil {
		_, err = tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunCompensating, Fence: f})
	}
	if err == nil {
		_, _, err = tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: r.ID, Fence: f})
	}
	if run, getErr := tp.GetRun(t.Context(), r.ID); err != nil || getErr != nil || run.Status != tape.RunCompensating {
		t.Fatalf("%v, the run is %+v, %v; want it COMPENSATING after a heartbeat", err, run, getErr)
	}
	if err == nil {
		_, err = tp.ResolveObligation(t.Context(), tape.ObligationResult{Run: r.ID, Seq: o.Seq, Status: tape.ObligationCompensated})
	}
	if err == nil {
		_, err = tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunFailed, Fence: f})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunTerminal, Fence: f}); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("an end after the end: %v, want ErrFenced", err)
	}
}

// COMPENSATING without a fence is not the driver's own word: it ends the driver's lease, so that the driver
// does not go on.
func TestUnwindingBegunByAnotherEndsTheLease(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	run, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunCompensating})
	if err != nil || run.LeaseOwner != "" {
		t.Errorf("EndRun = %+v, %v, want no holder", run, err)
	}
	if h := historyOf(t, s, r.ID).run.Holder; h.Token != 0 {
		t.Errorf("%q still holds the lease", h.Owner)
	}
	_, err = tp.RecordDecision(t.Context(), r.ID, tape.Decision{Response: "on"}, r.Lease.Fence())
	if !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("the driver goes on: %v, want ErrFenced", err)
	}
}

// The lease was granted by another program to the same owner name. The run's record has the id of a former
// grant, of which no fence can be built: a request without a fence takes the lease.
func TestResumeAfterAGrantOfAnotherProgram(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: r.ID, Preempt: "test", LeaseSpec: runstore.LeaseSpec{Owner: r.Lease.Owner, TTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	run, lease, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: r.ID, Owner: string(r.Lease.Owner)})
	if err != nil || lease.Token != 3 || run.Token != 3 {
		t.Errorf("ResumeRun = %+v, %+v, %v, want the lease under token 3", run, lease, err)
	}
}

func TestWaitForLease(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	begin := func(owner string) (tape.BeginRunResult, error) {
		req := beginRequest("i")
		req.Owner, req.TTL, req.Takeover = owner, time.Minute, tape.TakeOwn
		return tp.BeginRun(t.Context(), req)
	}
	resume := func(id runstore.RunID, owner string) (runstore.Lease, error) {
		_, lease, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: id, Owner: owner, TTL: time.Minute, Takeover: tape.TakeOwn})
		return lease, err
	}
	first, err := begin("A")
	if err != nil || first.Lease.Token != 1 {
		t.Fatal(first, err)
	}
	_, beginErr := begin("B")
	_, resumeErr := resume(first.ID, "B")
	for what, err := range map[string]error{"begin": beginErr, "resume": resumeErr} {
		var held *runstore.LeaseHeldError
		if !errors.As(err, &held) || held.Holder.Owner != "A" || held.Remaining <= 0 || held.Remaining > time.Minute {
			t.Errorf("%s by B: %v, want the lease held by A", what, err)
		}
	}
	if again, err := begin("A"); err != nil || again.Lease.Token != 2 {
		t.Errorf("A again: %+v, %v, want token 2", again, err)
	}
	store.Advance(time.Minute)
	if lease, err := resume(first.ID, "B"); err != nil || lease.Token != 3 {
		t.Errorf("B after A's lease: %+v, %v, want token 3", lease, err)
	}
}

// takeByB lets the driver B take the lease of the run of the invocation i.
func takeByB(t *testing.T, tp *tape.Tape) func() {
	return func() {
		req := beginRequest("i")
		req.Owner = "B"
		if _, err := tp.BeginRun(t.Context(), req); err != nil {
			t.Error(err)
		}
	}
}

// checkHeldByB checks that B has the run's last grant, of token 2.
func checkHeldByB(t *testing.T, s runstore.RunStore, id runstore.RunID) {
	t.Helper()
	if head, err := s.GetRun(t.Context(), id); err != nil || head.Holder.Owner != "B" || head.Token != 2 {
		t.Errorf("the run is held by %+v, %v, want B under token 2", head.Holder, err)
	}
}

// A may end a lease that A was granted, and no other. After A has read the run, B takes the lease: A's
// request is refused.
func TestOwnTakeoverEndsNoLaterLease(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	req := beginRequest("i")
	req.Owner, req.Takeover = "A", tape.TakeOwn
	first, err := tp.BeginRun(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tape.New(ahead(s, "acquire", 1, takeByB(t, tp)), nil).BeginRun(t.Context(), req)
	var held *runstore.LeaseHeldError
	if !errors.As(err, &held) || held.Holder.Owner != "B" {
		t.Errorf("A again: %v, want the lease held by B", err)
	}
	checkHeldByB(t, s, first.ID)
}

// B takes the lease over between the renewal of a heartbeat and its reading of the run: the heartbeat
// is fenced, and does not return the run of B.
func TestHeartbeatThatIsTakenOverBehindItsRenewal(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	first := begin(t, tp, "i")
	run, lease, err := tape.New(behind(s, "renew", 1, takeByB(t, tp)), nil).
		ResumeRun(t.Context(), tape.ResumeRunRequest{Run: first.ID, Fence: first.Lease.Fence()})
	var fenced *runstore.FencedError
	if !errors.As(err, &fenced) || fenced.Presented != 1 || fenced.Current != 2 || fenced.Holder.Owner != "B" {
		t.Errorf("heartbeat: %+v, %+v, %v, want it fenced by B", run, lease, err)
	}
	checkHeldByB(t, s, first.ID)
}

// B takes the lease over ahead of the renewal of a heartbeat without a fence, or behind it. The request
// starts over: it takes the lease from B if it may, and is refused as held otherwise.
func TestHeartbeatWithoutAFenceThatIsTakenOver(t *testing.T) {
	t.Parallel()
	for where, interpose := range map[string]func(runstore.RunStore, string, int, func()) runstore.RunStore{"ahead": ahead, "behind": behind} {
		for may, takeover := range map[string]tape.Takeover{"any": tape.TakeAny, "own": tape.TakeOwn} {
			t.Run(where+"/"+may, func(t *testing.T) {
				t.Parallel()
				tp, s, _ := newTape(t)
				first := begin(t, tp, "i")
				run, lease, err := tape.New(interpose(s, "renew", 1, takeByB(t, tp)), nil).
					ResumeRun(t.Context(), tape.ResumeRunRequest{Run: first.ID, Owner: beginRequest("i").Owner, Takeover: takeover})
				if takeover == tape.TakeAny {
					if err != nil || lease.Token != 3 || run.Token != 3 {
						t.Errorf("heartbeat: %+v, %+v, %v, want the lease under token 3", run, lease, err)
					}
					return
				}
				if !errors.Is(err, runstore.ErrLeaseHeld) {
					t.Errorf("heartbeat: %+v, %+v, %v, want the lease held by B", run, lease, err)
				}
				checkHeldByB(t, s, first.ID)
			})
		}
	}
}

// A heartbeat under a former grant, when the store clock cannot be read, changes nothing and says so.
func TestFormerGrantWithoutTheClock(t *testing.T) {
	t.Parallel()
	tp, s, clock := newTape(t)
	r := begin(t, tp, "i")
	clock.Advance(2 * time.Minute)
	if _, _, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: r.ID, Owner: "next", TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	before := historyOf(t, s, r.ID)
	noClock := tape.New(hook(s, func(op string) error {
		if op == "now" {
			return errDown
		}
		return nil
	}, nil), nil)
	req := tape.ResumeRunRequest{Run: r.ID, Owner: beginRequest("i").Owner, TTL: time.Minute, Former: r.Lease.Fence()}
	_, granted, err := noClock.ResumeRun(t.Context(), req)
	if changed := !reflect.DeepEqual(historyOf(t, s, r.ID), before); !errors.Is(err, runstore.ErrUnavailable) || changed || granted != (runstore.Lease{}) {
		t.Errorf("%+v, %v, changed: %t, want ErrUnavailable, no grant and no change", granted, err, changed)
	}
}
