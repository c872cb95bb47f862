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

// good returns the evidence of a demo with two decisions and two effects that went as it should.
func good() *evidence {
	const first, second = "r/decision-0/wire/0", "r/decision-1/buy/0"
	e := &evidence{
		TTL: 2 * time.Second, Run: "r", KilledKey: first, KilledEffect: tapepb.EffectStatus_EFFECT_STATUS_PENDING,
		Expiries: []int64{2000, 5500}, Stopped: 3 * time.Second, Before: &tapepb.RunState{SeqCursor: 8}, Unchanged: true,
		ZombieExit: exitLost, FinisherExit: exitDone, Status: tape.RunTerminal,
		Bank:  []*posting{{first, 2, 1, 100}, {second, 1, 1, 200}},
		Plans: map[int64]plan{0: {Steps: []step{{"wire", 100}}}, 1: {Steps: []step{{"buy", 200}}, Last: true}},
	}
	for i, j := range []entry{
		{Token: 1, Kind: "run", Status: "running"}, {Token: 1, Kind: "decision"},
		{Token: 1, Kind: "effect", Key: first, Status: "pending"},
		{Token: 2, Ms: 2000, Kind: "effect", Key: first, Status: "confirmed"}, {Token: 2, Ms: 2001, Kind: "decision", Decision: 1},
		{Token: 2, Ms: 2002, Kind: "effect", Key: second, Status: "pending"},
		{Token: 3, Ms: 5500, Kind: "effect", Key: second, Status: "confirmed"}, {Token: 3, Ms: 5501, Kind: "run", Status: "terminal"},
	} {
		j.Seq, j.Owner = runstore.Seq(i+1), runstore.Owner(fmt.Sprintf("worker-%d:1", j.Token))
		e.Journal = append(e.Journal, j)
	}
	for i := range 7 {
		e.Tried = append(e.Tried, report{Key: fmt.Sprint(i), Answer: "FENCED, token 2 is out and 3 is in"})
	}
	return e
}

// Each doctored fact is found by the rules that are about it, named by a part of their texts, and by no
// others.
func TestDoctoredEvidenceIsRejected(t *testing.T) {
	t.Parallel()
	const (
		once, bank, killed, tokens = "TERMINAL", "the bank", "mid-effect", "the tokens"
		leases, refused, exits     = "recovery", "was refused", "by itself"
	)
	for name, c := range map[string]struct {
		doctor func(*evidence)
		rules  []string
	}{
		"nothing":                      {func(*evidence) {}, nil},
		"the run failed":               {func(e *evidence) { e.Status = tape.RunFailed }, []string{once}},
		"the end is not in it":         {func(e *evidence) { e.Journal[7].Status = "failed" }, []string{once}},
		"a decision was made twice":    {func(e *evidence) { e.Journal[4].Decision = 0 }, []string{once}},
		"confirmed twice":              {func(e *evidence) { e.Journal[5].Status = "confirmed" }, []string{once}},
		"an effect without a decision": {func(e *evidence) { e.Journal[5].Key = "r/decision-9/buy/0" }, []string{once}},
		"paid twice":                   {func(e *evidence) { e.Bank[0].Applied = 2 }, []string{bank}},
		"never paid":                   {func(e *evidence) { e.Bank = e.Bank[:1] }, []string{bank}},
		"another amount":               {func(e *evidence) { e.Bank[1].Moved++ }, []string{bank}},
		"an extra call":                {func(e *evidence) { e.Bank[1].Calls = 2 }, []string{bank}},
		"an extra posting":             {func(e *evidence) { e.Bank = append(e.Bank, &posting{Key: "x"}) }, []string{bank}},
		"killed after the confirmation": {func(e *evidence) {
			e.KilledEffect = tapepb.EffectStatus_EFFECT_STATUS_CONFIRMED
		}, []string{killed}},
		"an old token after a new one": {func(e *evidence) { e.Journal[7].Token, e.Journal[7].Owner = 2, "worker-2:1" }, []string{tokens}},
		"another owner under a token":  {func(e *evidence) { e.Journal[4].Owner = "worker-1:1" }, []string{tokens}},
		"a gap in the journal":         {func(e *evidence) { e.Journal[7].Seq = 9 }, []string{tokens}},
		"worker-2 did not wait":        {func(e *evidence) { e.Expiries[0]++ }, []string{leases}},
		"worker-3 did not wait":        {func(e *evidence) { e.Expiries[1]++ }, []string{leases}},
		"no heartbeat":                 {func(e *evidence) { e.Expiries[1] = 4000 }, []string{leases}},
		"a short stop":                 {func(e *evidence) { e.Stopped = e.TTL }, []string{leases}},
		"a write was accepted":         {func(e *evidence) { e.Tried[0].Answer = "accepted" }, []string{refused}},
		"a write was not tried":        {func(e *evidence) { e.Tried = e.Tried[1:] }, []string{refused}},
		"the run was changed":          {func(e *evidence) { e.Unchanged = false }, []string{refused}},
		"an event came later":          {func(e *evidence) { e.Before.SeqCursor = 7 }, []string{refused}},
		"the zombie was content":       {func(e *evidence) { e.ZombieExit = exitDone }, []string{exits}},
		"nothing happened":             {func(e *evidence) { *e = evidence{} }, []string{once, killed, tokens, leases, refused, exits}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := good()
			c.doctor(e)
			var found []string
			for _, r := range e.check() {
				if len(r.faults) > 0 {
					found = append(found, r.text)
				}
			}
			if !slices.EqualFunc(found, c.rules, strings.Contains) {
				t.Errorf("found by %q, want %q", found, c.rules)
			}
		})
	}
}
