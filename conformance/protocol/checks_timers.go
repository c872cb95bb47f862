package protocol

import (
	"math/rand/v2"
	"slices"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func timerCases() []Case {
	return []Case{
		{Group: "timers", Check: 54, Name: "claimed-once", Alone: true, Run: timerClaimedOnce,
			Doc: "A due timer is handed to one claimer, once; a timer without an id gets a generated id."},
		{Group: "timers", Check: 55, Name: "cancelled-and-set-again", Alone: true, Run: timerSetAgain,
			Doc: "CancelTimer reports whether the timer existed; a timer that has fired can be set again."},
	}
}

// earlyTime returns a time in January 1970. Cases claim only timers that are due at such times, so
// they fire no timer that another client has set.
func earlyTime() int64 { return 1 + rand.Int64N(1_000_000_000) }

func (e *Env) setTimer(t T, run, id string, at int64) *tapepb.TimerRecord {
	t.Helper()
	r, _ := e.Client.SetTimer(t.Context(), &tapepb.SetTimerRequest{RunId: run, TimerId: id, FireAtMs: at, Kind: "k", PayloadJson: `{"p":1}`})
	return r
}

// due returns the timers of a run that ListDueTimers lists at the given time.
func (p *Process) due(t T, run string, now int64, claim bool) []*tapepb.TimerRecord {
	t.Helper()
	r, _ := p.Client.ListDueTimers(t.Context(), &tapepb.ListDueTimersRequest{NowMs: now, Claim: claim, Limit: everything})
	return slices.DeleteFunc(r.GetTimers(), func(timer *tapepb.TimerRecord) bool { return timer.GetRunId() != run })
}

func timerClaimedOnce(t T, e *Env) {
	id, at := e.begin(t), earlyTime()
	set := e.setTimer(t, id, "", at)
	require(t, set.GetTimerId() != "" && set.GetFireAtMs() == at && set.GetKind() == "k" && set.GetCreatedAtMs() > 0 && !set.GetFired(), "SetTimer = %v", set)
	expect(t, len(e.due(t, id, at-1, true)) == 0, "the timer is listed before its time")
	expect(t, len(e.due(t, id, at, false)) == 1, "the timer is not listed at its time")
	got := e.due(t, id, at, true)
	require(t, len(got) == 1, "the claim returns %v, want the timer", got)
	expect(t, got[0].GetTimerId() == set.GetTimerId() && got[0].GetFired() && got[0].GetPayloadJson() == `{"p":1}`, "the claim returns %v, want it fired", got[0])
	for _, claim := range []bool{true, false} {
		expect(t, len(e.due(t, id, at+1000, claim)) == 0, "the fired timer is listed again")
	}
	// Several processes claim one timer.
	for range e.Rounds(4) {
		e.setTimer(t, id, "raced", at)
		counts := make([]int, 4)
		together(len(counts), func(i int) {
			r, err := e.Try.ListDueTimers(t.Context(), &tapepb.ListDueTimersRequest{NowMs: at, Claim: true, Limit: everything})
			if err != nil {
				t.Errorf("ListDueTimers: %v", err)
			}
			for _, timer := range r.GetTimers() {
				if timer.GetRunId() == id {
					counts[i]++
				}
			}
		})
		sum := 0
		for _, n := range counts {
			sum += n
		}
		expect(t, sum == 1, "%d claimers got the timer, want 1", sum)
	}
}

func timerSetAgain(t T, e *Env) {
	id, at := e.begin(t), earlyTime()
	created := e.setTimer(t, id, "T", at).GetCreatedAtMs()
	require(t, len(e.due(t, id, at, true)) == 1, "the timer is not handed out")
	again := e.setTimer(t, id, "T", at)
	expect(t, !again.GetFired() && again.GetCreatedAtMs() == created, "the timer that was set again is %v, want it unfired", again)
	expect(t, len(e.due(t, id, at, true)) == 1, "the timer that was set again is not handed out")
	e.setTimer(t, id, "T", at)
	for _, want := range []bool{true, false} {
		r, _ := e.Client.CancelTimer(t.Context(), &tapepb.CancelTimerRequest{RunId: id, TimerId: "T"})
		expect(t, r.GetCancelled() == want, "CancelTimer = %v, want %t", r, want)
	}
	expect(t, len(e.due(t, id, at, true)) == 0, "the cancelled timer is handed out")
}
