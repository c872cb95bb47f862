package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// told returns the evidence of a story that went as it should: two decisions, three
// effects.
func told() evidence {
	const id = "r"
	start := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	e := evidence{
		TTL: 2 * time.Second, RunID: id, Status: tape.RunTerminal, FinisherExit: exitDone,
		Plans: []plan{
			{Action: "sweep", Steps: []step{{"wire", 100}}},
			{Action: "hedge", Steps: []step{{"sell", 200}, {"buy", 300}}, Last: true},
		},
	}
	keys := []string{id + "/decision-0/wire/0", id + "/decision-1/sell/0", id + "/decision-1/buy/0"}
	event := func(s float64, token runstore.Token, kind string, p payload) {
		e.Journal = append(e.Journal, entry{
			Seq: runstore.Seq(len(e.Journal) + 1), Time: at(s), Token: token, Owner: fmt.Sprintf("worker-%d:1", token),
			Kind: kind, payload: p,
		})
	}
	event(0, 1, "run", payload{Status: "running"})
	event(0, 1, "decision", payload{})
	event(0, 1, "effect", payload{Status: "pending", Key: keys[0]})
	event(2, 2, "effect", payload{Status: "confirmed", Key: keys[0]})
	event(2, 2, "decision", payload{Decision: 1})
	event(2, 2, "effect", payload{Status: "pending", Key: keys[1]})
	event(2, 2, "effect", payload{Status: "confirmed", Key: keys[1]})
	event(2, 2, "effect", payload{Status: "pending", Key: keys[2]})
	event(5.5, 3, "effect", payload{Status: "confirmed", Key: keys[2]})
	event(5.5, 3, "run", payload{Status: "terminal"})
	e.Killed = killed{
		Exit: "signal: killed", Key: keys[0], Effect: tapepb.EffectStatus_EFFECT_STATUS_PENDING,
		Bank: []posting{{Key: keys[0], Calls: 1, Applied: 1, Moved: 100}}, LeaseUntil: at(2),
	}
	e.Zombie = zombie{
		Key: keys[2], LeaseUntil: at(5.5), Paused: 3 * time.Second, Exit: exitFenced,
		Before: &tapepb.RunState{RunId: id, SeqCursor: 10}, After: &tapepb.RunState{RunId: id, SeqCursor: 10},
	}
	for _, w := range writes {
		e.Zombie.Attempts = append(e.Zombie.Attempts, attempt{Call: w.call, Refused: true, Reason: "FENCED", Presented: "2", Current: "3"})
	}
	e.Bank = []posting{
		{Key: keys[0], Calls: 2, Applied: 1, Moved: 100},
		{Key: keys[1], Calls: 1, Applied: 1, Moved: 200},
		{Key: keys[2], Calls: 1, Applied: 1, Moved: 300},
	}
	return e
}

// faulty returns the rules that e breaks.
func faulty(e evidence) (broken []string) {
	for _, f := range check(e) {
		if len(f.Faults) > 0 {
			broken = append(broken, f.Rule)
		}
	}
	return broken
}

func TestAGoodStoryPasses(t *testing.T) {
	t.Parallel()
	for _, f := range check(told()) {
		if len(f.Faults) > 0 {
			t.Errorf("%s: %s, want no fault", f.Rule, strings.Join(f.Faults, "; "))
		}
	}
}

// Each doctored fact must be found by the rules that are about it, named by a part
// of their texts, and by no others.
func TestDoctoredEvidenceIsRejected(t *testing.T) {
	t.Parallel()
	const (
		end, once, applied, calls  = "TERMINAL", "made once", "applied each effect", "called once"
		kill, tokens, takeovers    = "mid-effect", "tokens never decrease", "takeovers"
		heartbeat, pause, refusals = "by heartbeats", "stopped for longer", "were refused"
		unchanged, exits           = "changed nothing", "stopped by itself"
	)
	for _, c := range []struct {
		name   string
		doctor func(*evidence)
		rules  []string
	}{
		{"the run is running", func(e *evidence) { e.Status = tape.RunRunning }, []string{end}},
		{"the run failed", func(e *evidence) { e.Status = tape.RunFailed }, []string{end}},
		{"the end is not in the journal", func(e *evidence) { e.Journal[9].Status = "failed" }, []string{end}},

		{"a decision was made twice", func(e *evidence) { e.Journal[4].Decision = 0 }, []string{once}},
		{"an effect was confirmed twice", func(e *evidence) { e.Journal[5].Status = "confirmed" }, []string{once}},
		{"an effect was never confirmed", func(e *evidence) { e.Journal[8].Status = "failed" }, []string{once}},
		{"an effect that nobody decided", func(e *evidence) { e.Journal[5].Key = "r/decision-99/wire/0" }, []string{once}},
		{"an empty run", func(e *evidence) { e.Plans, e.Bank = nil, nil }, []string{once}},

		{"the bank applied one twice", func(e *evidence) { e.Bank[0].Applied = 2 }, []string{applied}},
		{"the bank applied one never", func(e *evidence) { e.Bank[2].Applied = 0 }, []string{applied}},
		{"the bank moved another amount", func(e *evidence) { e.Bank[1].Moved = 201 }, []string{applied}},
		{"the bank moved the amount twice", func(e *evidence) { e.Bank[1].Moved *= 2 }, []string{applied}},
		{"the bank did what nobody decided", func(e *evidence) {
			e.Bank = append(e.Bank, posting{Key: "r/decision-99/wire_again/0", Calls: 1, Applied: 1, Moved: 1})
		}, []string{applied}},
		{"the bank knows nothing", func(e *evidence) { e.Bank = nil }, []string{applied, calls}},

		{"an extra call for another effect", func(e *evidence) { e.Bank[1].Calls = 2 }, []string{calls}},
		{"a third call for the one in flight", func(e *evidence) { e.Bank[0].Calls = 3 }, []string{calls}},
		{"the extra call is for the wrong effect", func(e *evidence) { e.Bank[0].Calls, e.Bank[2].Calls = 1, 2 }, []string{calls}},

		{"killed before the bank applied", func(e *evidence) { e.Killed.Bank = nil }, []string{kill}},
		{"killed after the confirmation", func(e *evidence) {
			e.Killed.Effect = tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED
		}, []string{kill}},
		{"not killed at all", func(e *evidence) { e.Killed.Exit = "exit status 1" }, []string{kill}},

		{"an old token after a new one", func(e *evidence) {
			e.Journal[9].Token, e.Journal[9].Owner = 2, "worker-2:1"
		}, []string{tokens}},
		{"an event under no token", func(e *evidence) { e.Journal[0].Token, e.Journal[0].Owner = 0, "" }, []string{tokens}},
		{"two owners under one token", func(e *evidence) { e.Journal[4].Owner = "worker-1:1" }, []string{tokens}},
		{"a token skipped", func(e *evidence) { e.Journal[8].Token, e.Journal[9].Token = 4, 4 }, []string{tokens, takeovers}},
		{"a gap in the journal", func(e *evidence) { e.Journal[9].Seq = 11 }, []string{tokens}},
		{"a seq twice", func(e *evidence) { e.Journal[5].Seq = 5 }, []string{tokens}},

		{"worker-2 did not wait", func(e *evidence) { e.Killed.LeaseUntil = e.Killed.LeaseUntil.Add(time.Millisecond) }, []string{takeovers}},
		{"worker-3 did not wait", func(e *evidence) { e.Zombie.LeaseUntil = e.Zombie.LeaseUntil.Add(time.Millisecond) }, []string{takeovers}},
		{"an unknown end of a lease", func(e *evidence) { e.Killed.LeaseUntil = time.UnixMilli(0) }, []string{takeovers}},
		{"no heartbeat", func(e *evidence) { e.Zombie.LeaseUntil = e.Zombie.LeaseUntil.Add(-1500 * time.Millisecond) }, []string{heartbeat}},
		{"a short sleep", func(e *evidence) { e.Zombie.Paused = e.TTL }, []string{pause}},

		{"a write of the zombie was accepted", func(e *evidence) {
			e.Zombie.Attempts[0] = attempt{Call: "CompleteEffect"}
		}, []string{refusals}},
		{"a write failed for another reason", func(e *evidence) {
			e.Zombie.Attempts[1] = attempt{Call: "ReconcileEffect", Reason: "connection reset"}
		}, []string{refusals}},
		{"refused, but not as fenced", func(e *evidence) { e.Zombie.Attempts[2].Reason = "FENCE_REQUIRED" }, []string{refusals}},
		{"refused for another token", func(e *evidence) { e.Zombie.Attempts[3].Current = "2" }, []string{refusals}},
		{"a kind of write was not tried", func(e *evidence) { e.Zombie.Attempts = e.Zombie.Attempts[1:] }, []string{refusals}},
		{"nothing was tried", func(e *evidence) { e.Zombie.Attempts = nil }, []string{refusals}},

		{"the zombie prolonged a lease", func(e *evidence) { e.Zombie.After.LeaseExpiresAtMs = 1 }, []string{unchanged}},
		{"the zombie appended an event", func(e *evidence) { e.Zombie.After.SeqCursor = 11 }, []string{unchanged}},
		{"an event came later", func(e *evidence) {
			e.Zombie.Before.SeqCursor, e.Zombie.After.SeqCursor = 9, 9
		}, []string{unchanged}},
		{"nobody looked", func(e *evidence) { e.Zombie.Before, e.Zombie.After = nil, nil }, []string{unchanged}},

		{"the zombie thought that all was well", func(e *evidence) { e.Zombie.Exit = exitDone }, []string{exits}},
		{"the zombie was killed", func(e *evidence) { e.Zombie.Exit = -1 }, []string{exits}},
		{"worker-3 failed", func(e *evidence) { e.FinisherExit = exitFailed }, []string{exits}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := told()
			c.doctor(&e)
			got := faulty(e)
			if !slices.EqualFunc(got, c.rules, strings.Contains) {
				t.Errorf("found by %q, want %q", got, c.rules)
			}
		})
	}
}
