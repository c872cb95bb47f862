package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// evidence is the input of the checks: observations from outside while the script ran, and the
// final state of the bank and the store.
type evidence struct {
	TTL time.Duration
	Run string

	// KilledKey is the key of the effect in flight when worker-1 was killed, KilledEffect its
	// status in the journal at that time.
	KilledKey    string
	KilledEffect tapepb.EffectStatus
	// Expiries are the expiries of the leases of worker-1 and worker-2, in ms of the store's clock.
	Expiries []int64

	zombie       *process
	Stopped      time.Duration // how long worker-2 was stopped
	Tried        []report
	Before       *tapepb.RunState // the run before worker-2 was resumed
	Unchanged    bool             // the run was the same after worker-2 had ended
	ZombieExit   int
	FinisherExit int
	Bank         []*posting
	Status       tape.RunStatus
	Journal      []entry
	Plans        map[int64]plan // by decision
}

// entry is an event of the journal with its decoded payload.
type entry struct {
	Seq      runstore.Seq   `json:"-"`
	Ms       int64          `json:"-"` // its time, on the store's clock
	Token    runstore.Token `json:"-"`
	Owner    runstore.Owner `json:"-"`
	Kind     string         `json:"-"`
	Status   string         `json:"status"`
	Decision int64          `json:"decision_index"`
	Key      string         `json:"idempotency_key"`
}

// String returns the event in a few words.
func (j entry) String() string {
	switch j.Kind {
	case "decision":
		return fmt.Sprint("decision ", j.Decision)
	case "effect":
		return "effect " + j.Key + " " + j.Status
	default:
		return j.Kind + " " + j.Status
	}
}

// readJournal reads the run, its journal and its decisions.
func (e *evidence) readJournal(ctx context.Context, store runstore.RunStore) error {
	run, err := store.GetRun(ctx, runstore.RunID(e.Run))
	if err != nil {
		return err
	}
	e.Status, e.Plans = tape.RunStatus(run.Status), map[int64]plan{}
	for event, err := range runstore.Journal(ctx, store, run.ID, 1) {
		if err != nil {
			return err
		}
		j := entry{Seq: event.Seq, Ms: event.Time.UnixMilli(), Token: event.Token, Owner: event.Owner, Kind: event.Kind}
		if err := json.Unmarshal(event.Data, &j); err != nil {
			return fmt.Errorf("event %d: %w", event.Seq, err)
		}
		e.Journal = append(e.Journal, j)
		if j.Kind != "decision" {
			continue
		}
		d, _, err := tape.New(store, nil).GetDecision(ctx, run.ID, j.Decision)
		if err != nil {
			return err
		}
		var p plan
		if err := json.Unmarshal([]byte(d.Response), &p); err != nil {
			return err
		}
		e.Plans[j.Decision] = p
	}
	return nil
}

// amounts returns the amounts of the recorded decisions, in cents by idempotency key.
func (e *evidence) amounts() map[string]int64 {
	all := map[string]int64{}
	for index, p := range e.Plans {
		for _, s := range p.Steps {
			all[fmt.Sprintf("%s/decision-%d/%s/0", e.Run, index, s.Tool)] = s.Cents
		}
	}
	return all
}

// rule is one check, with its failures.
type rule struct {
	text   string
	faults []string
}

// check applies every rule to the evidence.
func (e *evidence) check() (rules []*rule) {
	// expect adds a fault to the last rule.
	expect := func(ok bool, format string, args ...any) {
		if r := rules[len(rules)-1]; !ok {
			r.faults = append(r.faults, fmt.Sprintf(format, args...))
		}
	}
	begin := func(text string) { rules = append(rules, &rule{text: text}) }
	amounts := e.amounts()
	keys := slices.Sorted(maps.Keys(amounts))

	begin("the run is TERMINAL: each decision was made once, its effects were begun once and confirmed once")
	expect(e.Status == tape.RunTerminal, "its status is %v", tapepb.RunStatus(e.Status))
	want := []string{"run running", "run terminal"}
	for index := range e.Plans {
		want = append(want, fmt.Sprint("decision ", index))
	}
	for _, key := range keys {
		want = append(want, "effect "+key+" pending", "effect "+key+" confirmed")
	}
	var got []string
	for _, j := range e.Journal {
		got = append(got, j.String())
	}
	slices.Sort(want)
	slices.Sort(got)
	expect(len(keys) > 0 && slices.Equal(got, want), "the journal has %q, want %q", got, want)

	begin("the bank applied each effect once, with the amount decided, and was called twice only for the one in flight at the kill")
	for _, key := range keys {
		p, calls := find(e.Bank, key), 1
		if key == e.KilledKey {
			calls = 2
		}
		expect(p != nil && p.Applied == 1 && p.Moved == amounts[key] && p.Calls == calls, "%s: %+v, want one payment in %d calls", key, p, calls)
	}
	expect(len(e.Bank) == len(keys), "%d postings for %d effects", len(e.Bank), len(keys))

	begin("worker-1 died in mid-effect: the effect was pending in the journal")
	expect(amounts[e.KilledKey] > 0 && e.KilledEffect == tapepb.EffectStatus_EFFECT_STATUS_PENDING, "%q was %v", e.KilledKey, e.KilledEffect)

	begin("the journal has every seq once; the tokens are 1, 2 and 3, in this order, one for each worker")
	last := runstore.Token(1)
	for i, j := range e.Journal {
		expect(j.Seq == runstore.Seq(i+1), "seq %d is in the place of %d", j.Seq, i+1)
		expect(j.Token == last || j.Token == last+1, "event %d is under token %v after %v", j.Seq, j.Token, last)
		expect(strings.HasPrefix(string(j.Owner), fmt.Sprintf("worker-%d:", j.Token)), "event %d is by %s under token %v", j.Seq, j.Owner, j.Token)
		last = j.Token
	}
	expect(last == 3, "the last token is %v", last)

	begin("each recovery came after the end of the lease before it; heartbeats extended that of worker-2, whose stop outlasted it")
	first := map[runstore.Token]int64{}
	for _, j := range e.Journal {
		if _, ok := first[j.Token]; !ok {
			first[j.Token] = j.Ms
		}
	}
	for i, end := range e.Expiries {
		expect(end > 0 && first[runstore.Token(i+2)] >= end, "token %d came at %d, the lease before it ended at %d", i+2, first[runstore.Token(i+2)], end)
	}
	expect(len(e.Expiries) == 2 && e.Expiries[1]-first[2] > e.TTL.Milliseconds(), "the lease of worker-2 ended at %v, its first event was at %d", e.Expiries, first[2])
	expect(e.Stopped > e.TTL, "stopped for %v under a lease of %v", e.Stopped, e.TTL)

	begin("worker-2 was refused all of its writes after it woke up, and they changed nothing")
	const fenced = "FENCED, token 2 is out and 3 is in"
	calls := map[string]bool{}
	for _, r := range e.Tried {
		calls[r.Key] = true
		expect(r.Answer == fenced, "%s: %s", r.Key, r.Answer)
	}
	expect(len(calls) == 7, "%d kinds of writes were tried, want 7", len(calls))
	expect(e.Unchanged && e.Before.GetSeqCursor() == int64(len(e.Journal)), "the run was %v before, and has %d events now", e.Before, len(e.Journal))

	begin("worker-2 stopped by itself because its lease was lost, and worker-3 had finished")
	expect(e.ZombieExit == exitLost && e.FinisherExit == exitDone, "their exit statuses are %d and %d", e.ZombieExit, e.FinisherExit)
	return rules
}

// print prints the evidence and the rules. It returns an error if a rule failed.
func (e *evidence) print(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nThe journal, read from the store's file\n\n  seq\ttoken\towner\twhat\n")
	for _, j := range e.Journal {
		fmt.Fprintf(t, "  %d\t%v\t%s\t%s\n", j.Seq, j.Token, j.Owner, strings.ReplaceAll(j.String(), e.Run, "…"))
	}
	fmt.Fprintf(t, "\nThe bank's ledger\n\n  calls\tapplied\tmoved\tidempotency key\n")
	for _, p := range e.Bank {
		note := ""
		if p.Key == e.KilledKey {
			note = "  (in flight at the kill)"
		}
		fmt.Fprintf(t, "  %d\t%d\t%s\t%s%s\n", p.Calls, p.Applied, money(p.Moved), strings.ReplaceAll(p.Key, e.Run, "…"), note)
	}
	_ = t.Flush()
	fmt.Fprintln(out)
	failed, rules := 0, e.check()
	for _, r := range rules {
		mark := "ok    "
		if len(r.faults) > 0 {
			mark = "FAILED"
			failed++
		}
		fmt.Fprintf(out, "  %s  %s\n", mark, strings.Join(append([]string{r.text}, r.faults...), "\n            "))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(rules))
	}
	fmt.Fprintf(out, "\nAll %d checks passed.\n", len(rules))
	return nil
}
