package tape_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func await(t *testing.T, tp *tape.Tape, run runstore.RunID, gate string) (string, bool) {
	t.Helper()
	resolution, delivered, err := tp.AwaitSignal(t.Context(), tape.AwaitRequest{Run: run, Gate: gate})
	if err != nil {
		t.Fatalf("await %q: %v", gate, err)
	}
	return resolution, delivered
}

func signal(t *testing.T, tp *tape.Tape, run runstore.RunID, gate, resolution string) bool {
	t.Helper()
	sent, err := tp.SendSignal(t.Context(), tape.Signal{Run: run, Gate: gate, Resolution: resolution})
	if err != nil || sent.Run != run {
		t.Fatalf("signal %q: %+v, %v", gate, sent, err)
	}
	return sent.Released
}

// gateState returns a run's status, the gate at which it waits, and whether it is to be recovered.
func gateState(t *testing.T, tp *tape.Tape, id runstore.RunID) string {
	t.Helper()
	run, err := tp.GetRun(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := tp.ListRunsToRecover(t.Context(), time.Time{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	listed := ""
	for _, r := range runs {
		if r.ID == id {
			listed = " listed"
		}
	}
	return fmt.Sprintf("%d %s%s", run.Status, run.WaitingOn, listed)
}

func TestSignalReleasesTheRunThatWaits(t *testing.T) { // 51, 52
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	check := func(when, want string) {
		t.Helper()
		if got := gateState(t, tp, r.ID); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	if _, delivered := await(t, tp, r.ID, "a"); delivered {
		t.Error("a gate without a signal has delivered")
	}
	check("parked", "3 a")
	if run, err := s.GetRun(t.Context(), r.ID); err != nil || run.Holder != (runstore.Holder{}) {
		t.Errorf("parked: %+v, %v, want no holder", run.Holder, err)
	}
	if signal(t, tp, r.ID, "b", "early") {
		t.Error("a signal at another gate has released the run")
	}
	check("another gate's signal", "3 a listed")
	if got, delivered := await(t, tp, r.ID, "b"); !delivered || got != "early" {
		t.Errorf("await b: %q, %t", got, delivered)
	}
	check("consumed", "3 a")
	if !signal(t, tp, r.ID, "a", "yes") {
		t.Error("the gate's signal has not released the run")
	}
	check("released", "1  listed")
	if signal(t, tp, r.ID, "a", "no") {
		t.Error("a second signal has released the run again")
	}
	for range 2 {
		if got, delivered := await(t, tp, r.ID, "a"); !delivered || got != "no" {
			t.Errorf("await a: %q, %t, want the last resolution", got, delivered)
		}
	}
	check("at the end", "1  listed")
	if got := fmt.Sprint(historyOf(t, s, r.ID).kinds()); got != "[run gate gate]" {
		t.Errorf("journal: %s", got)
	}
}

func TestSignalBeforeAnyoneWaits(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	if signal(t, tp, r.ID, "a", "first") {
		t.Error("a run that does not wait was released")
	}
	before := historyOf(t, s, r.ID)
	for range 2 {
		if got, delivered := await(t, tp, r.ID, "a"); !delivered || got != "first" {
			t.Errorf("await: %q, %t", got, delivered)
		}
	}
	if after := historyOf(t, s, r.ID); len(after.events) != len(before.events) {
		t.Error("a look at a delivered signal was journaled")
	}
	if run, err := tp.GetRun(t.Context(), r.ID); err != nil || run.Status != tape.RunRunning || run.LeaseOwner == "" {
		t.Errorf("the run is %+v, %v, want it RUNNING under its lease", run, err)
	}
}

// A run that has ended is not revived: neither by a driver that parks nor by a signal.
func TestGatesOfAnEndedRun(t *testing.T) {
	t.Parallel()
	for _, status := range []tape.RunStatus{tape.RunTerminal, tape.RunFailed, tape.RunStuck, tape.RunCancelled} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			tp, _, _ := newTape(t)
			r := begin(t, tp, "i")
			await(t, tp, r.ID, "a")
			if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: status}); err != nil {
				t.Fatal(err)
			}
			if _, _, err := tp.AwaitSignal(t.Context(), tape.AwaitRequest{Run: r.ID, Gate: "b"}); !errors.Is(err, tape.ErrRefused) {
				t.Errorf("await: %v, want ErrRefused", err)
			}
			if signal(t, tp, r.ID, "a", "late") {
				t.Error("a signal has released a run that has ended")
			}
			if got, want := gateState(t, tp, r.ID), fmt.Sprintf("%d a", status); got != want {
				t.Errorf("the run: %q, want %q", got, want)
			}
			if got, delivered := await(t, tp, r.ID, "a"); !delivered || got != "late" {
				t.Errorf("await: %q, %t, want the signal that came late", got, delivered)
			}
			if got, want := gateState(t, tp, r.ID), fmt.Sprintf("%d a", status); got != want {
				t.Errorf("the run: %q, want %q", got, want)
			}
		})
	}
}

// A run that unwinds does not park: a signal would release it, and recovery would drive it forward
// again after a part of its effects was undone.
func TestGatesOfACompensatingRun(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	signal(t, tp, r.ID, "early", "yes")
	f := r.Lease.Fence()
	if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunCompensating, Fence: f}); err != nil {
		t.Fatal(err)
	}
	before := historyOf(t, s, r.ID)
	for _, fence := range []runstore.Fence{f, {}} {
		_, delivered, err := tp.AwaitSignal(t.Context(), tape.AwaitRequest{Run: r.ID, Gate: "g", Fence: fence})
		if !errors.Is(err, tape.ErrRefused) || delivered || !strings.Contains(err.Error(), "COMPENSATING") {
			t.Errorf("await: %t, %v, want ErrRefused for a COMPENSATING run", delivered, err)
		}
	}
	if after := historyOf(t, s, r.ID); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a refused await changed %+v to %+v", before, after)
	}
	if got, delivered := await(t, tp, r.ID, "early"); !delivered || got != "yes" {
		t.Errorf("await of a delivered signal: %q, %t, want yes", got, delivered)
	}
	if signal(t, tp, r.ID, "g", "late") {
		t.Error("a signal has released a run that does not wait")
	}
	run, lease, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: r.ID, Owner: "recovery", Reactor: "recovery"})
	if err != nil || run.Status != tape.RunCompensating || lease.Token <= f.Token() {
		t.Errorf("ResumeRun: %+v, %+v, %v, want it COMPENSATING under a new grant", run, lease, err)
	}
	if got := gateState(t, tp, r.ID); got != "6 " {
		t.Errorf("the run: %q, want it COMPENSATING", got)
	}
	if got, delivered := await(t, tp, r.ID, "g"); !delivered || got != "late" {
		t.Errorf("await: %q, %t, want the signal that came meanwhile", got, delivered)
	}
}

// A signal that replaces another one at its gate adds nothing to consume: a run that waits at another
// gate is not to be recovered once the gate was consumed.
func TestRepeatedSignalIsConsumedOnce(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	r := begin(t, tp, "i")
	await(t, tp, r.ID, "a")
	for _, resolution := range []string{"first", "second"} {
		signal(t, tp, r.ID, "b", resolution)
		if got := gateState(t, tp, r.ID); got != "3 a listed" {
			t.Errorf("after the %s signal: %q, want it listed", resolution, got)
		}
	}
	if got, delivered := await(t, tp, r.ID, "b"); !delivered || got != "second" {
		t.Errorf("await b: %q, %t, want the last resolution", got, delivered)
	}
	if got := gateState(t, tp, r.ID); got != "3 a" {
		t.Errorf("after both were consumed: %q, want it WAITING with nothing to consume", got)
	}
	signal(t, tp, r.ID, "b", "third") // the run has consumed the gate before
	if got := gateState(t, tp, r.ID); got != "3 a" {
		t.Errorf("after a signal at a consumed gate: %q, want it WAITING with nothing to consume", got)
	}
}

// A signal at a gate that the run has consumed replaces the answer. The decision that recorded the answer
// stays, so a run that branches on the decision takes the same way in a replay.
func TestLateSignalReplacesAConsumedAnswer(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	r := begin(t, tp, "i")
	drive := func() (answer, decided string) {
		t.Helper()
		answer, _ = await(t, tp, r.ID, "approval")
		d, err := tp.RecordDecision(t.Context(), r.ID, tape.Decision{Index: 1, Response: answer}, runstore.Fence{})
		if err != nil {
			t.Fatal(err)
		}
		return answer, d.Response
	}
	signal(t, tp, r.ID, "approval", "yes")
	if answer, decided := drive(); answer != "yes" || decided != "yes" {
		t.Fatalf("the first driver gets %q and decides %q, want yes", answer, decided)
	}
	signal(t, tp, r.ID, "approval", "too late")
	if answer, decided := drive(); answer != "too late" || decided != "yes" {
		t.Errorf("the next driver gets %q and decides %q, want the late signal and the first decision", answer, decided)
	}
}

// A signal that arrives between the look at a gate and the parking of the run is not lost, nor is
// one at another gate.
func TestNoSignalIsLostBetweenLookAndPark(t *testing.T) {
	t.Parallel()
	for gate, want := range map[string]string{"a": "2 ", "b": "3 a listed"} {
		t.Run(gate, func(t *testing.T) {
			t.Parallel()
			tp, s, _ := newTape(t)
			r := begin(t, tp, "i")
			slow := tape.New(ahead(s, "commit", 1, func() { signal(t, tp, r.ID, gate, "now") }), nil)
			_, delivered := await(t, slow, r.ID, "a")
			if delivered != (gate == "a") {
				t.Errorf("delivered %t", delivered)
			}
			if got := gateState(t, tp, r.ID); got != want {
				t.Errorf("the run: %q, want %q", got, want)
			}
		})
	}
}

// The run parks between a signal's look and its commit: the signal releases it.
func TestNoParkIsMissedBySignal(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	slow := tape.New(ahead(s, "commit", 1, func() { await(t, tp, r.ID, "a") }), nil)
	if !signal(t, slow, r.ID, "a", "now") {
		t.Error("the signal has not released the run")
	}
	if got := gateState(t, tp, r.ID); got != "1  listed" {
		t.Errorf("the run: %q, want it RUNNABLE", got)
	}
}

func TestManySignalsAndOneRun(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	r := begin(t, tp, "i")
	const gates = 12
	var all sync.WaitGroup
	for i := range gates {
		all.Go(func() { signal(t, tp, r.ID, fmt.Sprint(i), "x") })
	}
	await(t, tp, r.ID, "driver's")
	all.Wait()
	if got := gateState(t, tp, r.ID); got != "3 driver's listed" {
		t.Errorf("the run: %q, want it WAITING with signals to consume", got)
	}
	for i := range gates {
		if _, delivered := await(t, tp, r.ID, fmt.Sprint(i)); !delivered {
			t.Errorf("the signal at gate %d is lost", i)
		}
	}
	if got := gateState(t, tp, r.ID); got != "3 driver's" {
		t.Errorf("the run: %q, want it WAITING with nothing to consume", got)
	}
}

func TestSignalFindsTheNewestRunOfItsSession(t *testing.T) { // 53
	t.Parallel()
	tp, _, store := newTape(t)
	var newest runstore.RunID
	for _, invocation := range []string{"first", "second"} {
		store.Advance(time.Second)
		newest = begin(t, tp, invocation).ID
	}
	key := beginRequest("first").Key
	if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: newest, Status: tape.RunTerminal}); err != nil {
		t.Fatal(err)
	}
	sent, err := tp.SendSignal(t.Context(), tape.Signal{App: key.App, User: key.User, Session: key.Session, Gate: "g"})
	if err != nil || sent.Run != newest {
		t.Errorf("the signal went to %q, %v, want %q", sent.Run, err, newest)
	}
	_, err = tp.SendSignal(t.Context(), tape.Signal{App: key.App, User: key.User, Session: "none", Gate: "g"})
	if !errors.Is(err, tape.ErrRefused) || !strings.Contains(err.Error(), "no run for that session") {
		t.Errorf("an unknown session: %v", err)
	}
}

func TestGateInput(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	before := historyOf(t, s, r.ID)
	awaits := func(req tape.AwaitRequest) error {
		req.Run = r.ID
		_, _, err := tp.AwaitSignal(t.Context(), req)
		return err
	}
	_, longErr := tp.SendSignal(t.Context(), tape.Signal{Run: r.ID, Gate: "g", Resolution: strings.Repeat("x", tape.MaxSignal+1)})
	_, unknownErr := tp.SendSignal(t.Context(), tape.Signal{Run: "none", Gate: "g"})
	for field, err := range map[string]error{
		"gate_name": awaits(tape.AwaitRequest{Gate: strings.Repeat("g", 1024)}), "resolution_json": longErr,
		"payload_json": awaits(tape.AwaitRequest{Gate: "g", Context: strings.Repeat("x", tape.MaxGateContext+1)}),
	} {
		var limit *runstore.InputError
		if !errors.As(err, &limit) || limit.Field != field {
			t.Errorf("%v, want an error that names %s", err, field)
		}
	}
	if !errors.Is(unknownErr, tape.ErrNoSuchRun) {
		t.Errorf("an unknown run: %v", unknownErr)
	}
	if after := historyOf(t, s, r.ID); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("refused input changed %+v to %+v", before, after)
	}
	// Both at their limits fit into one gate.
	if err := awaits(tape.AwaitRequest{Gate: "g", Context: strings.Repeat("x", tape.MaxGateContext)}); err != nil {
		t.Error(err)
	}
	signal(t, tp, r.ID, "g", strings.Repeat("x", tape.MaxSignal))
}

// TestResumeOfAParkedRun checks that a heartbeat leaves a run parked that has no signal to consume, and takes
// one that has. BeginRun takes either, and so does ResumeRun that waits for the lease.
func TestResumeOfAParkedRun(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	r := begin(t, tp, "i")
	await(t, tp, r.ID, "g")
	for _, req := range []tape.ResumeRunRequest{
		{Owner: beginRequest("i").Owner},
		{Owner: beginRequest("i").Owner, RenewExpired: true},
		{Owner: "b"},
		{Owner: "b", Takeover: tape.TakeOwn},
	} {
		req.Run = r.ID
		run, lease, err := tp.ResumeRun(t.Context(), req)
		if err != nil || run.Status != tape.RunWaiting || lease.Token != 0 {
			t.Errorf("ResumeRun(%+v): %+v, %+v, %v, want it WAITING without a grant", req, run, lease, err)
		}
	}
	if got := gateState(t, tp, r.ID); got != "3 g" {
		t.Errorf("the run: %q, want it WAITING", got)
	}
	signal(t, tp, r.ID, "other", "yes")
	run, lease, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: r.ID, Owner: "b"})
	if err != nil || run.Status != tape.RunRunning || lease.Token <= r.Lease.Token {
		t.Errorf("ResumeRun after a signal at another gate: %+v, %+v, %v, want it RUNNING under a new grant", run, lease, err)
	}
	await(t, tp, r.ID, "other")
	await(t, tp, r.ID, "g")
	run, waited, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: r.ID, Owner: "b", Takeover: tape.TakeNone})
	if err != nil || run.Status != tape.RunRunning || waited.Token <= lease.Token {
		t.Errorf("ResumeRun that is no heartbeat: %+v, %+v, %v, want it RUNNING under a new grant", run, waited, err)
	}
	await(t, tp, r.ID, "g")
	if again := begin(t, tp, "i"); again.Status != tape.RunRunning || again.Lease.Token <= waited.Token {
		t.Errorf("BeginRun of a parked run: %+v, want it RUNNING under a new grant", again)
	}
}
