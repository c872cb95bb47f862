package cuts_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Each timer is a commit of its own, of several in flight: a claim may be cut between any of them. No
// timer is answered twice. One that a cut claim has fired is lost with its answer, and no other is.
func TestClaimsOfManyTimers(t *testing.T) {
	t.Parallel()
	c := entry{setup: func(e *env) {
		begin(e)
		for i := range 4 {
			must[proto.Message](e)(setTimer(fmt.Sprint("t", i))(e, e.first(e.clean)))
		}
	}, do: claimTimers}
	calls := len(c.calls(t, false))
	for _, h := range []harm{killedBefore, killedAfter, lostRequest, lostReply, silenced, frozenBefore, frozenAfter, lostLate, unheard} {
		for n := 1; n <= calls; n++ {
			t.Run(fmt.Sprintf("%v call %d", h, n), func(t *testing.T) {
				t.Parallel()
				claimManyTimers(t, c, n, h)
			})
		}
	}
}

func claimManyTimers(t *testing.T, c entry, n int, h harm) {
	e := newEnv(t, c)
	defer e.close()
	cut := newCutter(e.touched, h, n)
	client := tapepb.NewTapeClient(e.serve(cut))
	first := make(chan []string, 1)
	go func() { first <- timerIDs(claimTimers(e, e.first(client))) }()
	var answered []string
	meanwhile := h >= frozenBefore
	if meanwhile {
		select {
		case <-cut.reached:
		case got := <-first:
			t.Fatalf("the claim is answered %v before it makes the call", got)
		}
		answered = append(answered, timerIDs(claimTimers(e, e.second()))...)
		close(cut.resume)
	}
	answered = append(answered, <-first...)
	unfired := timerIDs(e.clean.ListDueTimers(t.Context(), &tapepb.ListDueTimersRequest{}))
	for _, id := range unfired {
		if slices.Contains(answered, id) {
			t.Errorf("timer %s is answered as fired, and is not", id)
		}
	}
	if again := timerIDs(claimTimers(e, e.second())); !slices.Equal(again, unfired) {
		t.Errorf("the next claim is answered %v, want the timers that are left, %v", again, unfired)
	}
	answered = append(answered, unfired...)
	slices.Sort(answered)
	if got := len(slices.Compact(slices.Clone(answered))); got != len(answered) {
		t.Errorf("the answers are %v, want each timer once", answered)
	}
	if (meanwhile || h == lostReply || h == lostRequest) && len(answered) != 4 {
		t.Errorf("the answers are %v, want all timers: no answer was lost", answered)
	}
}

// timerIDs returns the ids of the timers in an answer, sorted; none of a call that failed.
func timerIDs(m proto.Message, err error) (ids []string) {
	if err == nil {
		for _, timer := range m.(*tapepb.ListDueTimersResponse).GetTimers() {
			ids = append(ids, timer.GetTimerId())
		}
	}
	slices.Sort(ids)
	return ids
}
