package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// finding is the answer to one question about the evidence.
type finding struct {
	// Rule is what must be so.
	Rule string
	// Faults are what was not so; none if all was well.
	Faults []string
}

// rules are what the demo must show. Each one is about facts of its own, so that a
// doctored fact is found by its rule.
var rules = []struct {
	text  string
	check func(*evidence, *faults)
}{
	{"the run is TERMINAL", checkEnd},
	{"each decision was made once, and its effects begun once and confirmed once", checkOnce},
	{"the bank applied each effect exactly once, with the amount decided", checkApplied},
	{"the bank was called once for each effect, and once more for the one in flight at the kill", checkCalls},
	{"worker-1 died in mid-effect: applied at the bank, pending in the journal", checkKill},
	{"the journal has every seq once, each under a token, and tokens never decrease: 1, 2, 3", checkTokens},
	{"both takeovers came after the end of the lease on the store's clock", checkTakeovers},
	{"worker-2 kept its lease by heartbeats, for longer than it was granted, under one token", checkHeartbeats},
	{"worker-2 was stopped for longer than its lease lasts", checkPause},
	{"all writes of worker-2 after its sleep were refused: it is fenced", checkRefusals},
	{"they changed nothing: the run is what it was before", checkUnchanged},
	{"worker-2 stopped by itself, and worker-3 had finished", checkExits},
}

// check answers all questions.
func check(e evidence) (all []finding) {
	for _, r := range rules {
		f := &faults{}
		r.check(&e, f)
		all = append(all, finding{Rule: r.text, Faults: f.list})
	}
	return all
}

type faults struct{ list []string }

func (f *faults) add(format string, args ...any) {
	f.list = append(f.list, fmt.Sprintf(format, args...))
}

func checkEnd(e *evidence, f *faults) {
	if e.Status != tape.RunTerminal {
		f.add("its status is %v", tapepb.RunStatus(e.Status))
	}
	if n := len(e.Journal); n == 0 || e.Journal[n-1].Kind != "run" || e.Journal[n-1].Status != "terminal" {
		f.add("its journal does not end with its end")
	}
}

func checkOnce(e *evidence, f *faults) {
	count := map[string]int{}
	for _, j := range e.Journal {
		switch j.Kind {
		case "decision":
			count[fmt.Sprint("decision ", j.Decision)]++
		case "effect":
			count["effect "+j.Key+" "+j.Status]++
		}
	}
	expected := map[string]bool{}
	for index := range e.Plans {
		expected[fmt.Sprint("decision ", index)] = true
	}
	for _, x := range e.effects() {
		expected["effect "+x.Key+" pending"], expected["effect "+x.Key+" confirmed"] = true, true
	}
	if len(expected) == 0 {
		f.add("nothing was decided")
	}
	for what := range expected {
		if n := count[what]; n != 1 {
			f.add("%s is there %d times", what, n)
		}
	}
	for what := range count {
		if !expected[what] {
			f.add("nobody decided %s", what)
		}
	}
	slices.Sort(f.list)
}

func checkApplied(e *evidence, f *faults) {
	effects := e.effects()
	for _, x := range effects {
		p := find(e.Bank, x.Key)
		if p.Applied != 1 {
			f.add("%s was applied %d times", x.Key, p.Applied)
		}
		if p.Moved != x.Cents {
			f.add("%s moved %s, decided were %s", x.Key, money(p.Moved), money(x.Cents))
		}
	}
	for _, p := range e.Bank {
		if !slices.ContainsFunc(effects, func(x effect) bool { return x.Key == p.Key }) {
			f.add("nobody decided %s, which moved %s", p.Key, money(p.Moved))
		}
	}
}

func checkCalls(e *evidence, f *faults) {
	for _, x := range e.effects() {
		want := 1
		if x.Key == e.Killed.Key {
			want = 2
		}
		if n := find(e.Bank, x.Key).Calls; n != want {
			f.add("%d calls for %s, not %d", n, x.Key, want)
		}
	}
}

func checkKill(e *evidence, f *faults) {
	if p := find(e.Killed.Bank, e.Killed.Key); p.Applied != 1 || p.Calls != 1 {
		f.add("by then the bank had applied %q %d times in %d calls", e.Killed.Key, p.Applied, p.Calls)
	}
	if e.Killed.Effect != tapepb.EffectStatus_EFFECT_STATUS_PENDING {
		f.add("in the journal it was %v", e.Killed.Effect)
	}
	if !strings.Contains(e.Killed.Exit, "killed") {
		f.add("worker-1 ended with: %s", e.Killed.Exit)
	}
}

func checkTokens(e *evidence, f *faults) {
	var last runstore.Token
	owners := map[runstore.Token]string{}
	for i, j := range e.Journal {
		if want := runstore.Seq(i + 1); j.Seq != want {
			f.add("seq %d stands where %d should", j.Seq, want)
		}
		if j.Token < last {
			f.add("event %d is under token %v, after one under %v", j.Seq, j.Token, last)
		}
		last = j.Token
		if o, known := owners[j.Token]; known && o != j.Owner {
			f.add("event %d is by %s, token %v was granted to %s", j.Seq, j.Owner, j.Token, o)
		}
		owners[j.Token] = j.Owner
	}
	for token := runstore.Token(1); token <= 3; token++ {
		if want := fmt.Sprintf("worker-%d:", token); !strings.HasPrefix(owners[token], want) {
			f.add("token %v is that of %q, not of %s…", token, owners[token], want)
		}
	}
	if len(owners) != 3 {
		f.add("events under %d tokens, not 3", len(owners))
	}
}

func checkTakeovers(e *evidence, f *faults) {
	// The wire tells the end of a lease in whole milliseconds.
	ends := map[runstore.Token]int64{2: e.Killed.LeaseUntil.UnixMilli(), 3: e.Zombie.LeaseUntil.UnixMilli()}
	for _, j := range e.Journal {
		if until := ends[j.Token]; j.Token > 1 && (until <= 0 || j.Time.UnixMilli() < until) {
			f.add("event %d under token %v came at %v, the lease before it ended at %v", j.Seq, j.Token,
				j.Time.UTC(), time.UnixMilli(until).UTC())
		}
	}
}

func checkHeartbeats(e *evidence, f *faults) {
	for _, j := range e.Journal {
		if j.Token != 2 {
			continue
		}
		// The grant was made before the first event under it.
		if kept := e.Zombie.LeaseUntil.Sub(j.Time); kept <= e.TTL {
			f.add("the lease of %v ended %v after event %d", e.TTL, kept, j.Seq)
		}
		return
	}
	f.add("no event under token 2")
}

func checkPause(e *evidence, f *faults) {
	if e.Zombie.Paused <= e.TTL {
		f.add("stopped for %v, its lease lasts %v", e.Zombie.Paused, e.TTL)
	}
}

func checkRefusals(e *evidence, f *faults) {
	count := map[string]int{}
	for _, a := range e.Zombie.Attempts {
		count[a.Call]++
		switch {
		case !a.Refused && a.Reason == "":
			f.add("%s was accepted", a.Call)
		case !a.Refused || a.Reason != "FENCED" || a.Presented != "2" || a.Current != "3":
			f.add("%s was not refused for token 2 being out and 3 in: %s", a.Call, a.Reason)
		}
	}
	for _, w := range writes {
		if count[w.call] == 0 {
			f.add("%s was not tried", w.call)
		}
	}
}

func checkUnchanged(e *evidence, f *faults) {
	if e.Zombie.Before == nil || !proto.Equal(e.Zombie.Before, e.Zombie.After) {
		f.add("before: %v; after: %v", e.Zombie.Before, e.Zombie.After)
	}
	if n := int64(len(e.Journal)); n != e.Zombie.Before.GetSeqCursor() {
		f.add("before it had %d events, and now it has %d", e.Zombie.Before.GetSeqCursor(), n)
	}
}

func checkExits(e *evidence, f *faults) {
	if e.Zombie.Exit != exitFenced {
		f.add("the exit status of worker-2 is %d, not %d", e.Zombie.Exit, exitFenced)
	}
	if e.FinisherExit != exitDone {
		f.add("the exit status of worker-3 is %d", e.FinisherExit)
	}
}
