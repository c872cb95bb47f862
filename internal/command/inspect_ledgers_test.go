package command

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// ledgered fills each ledger of a run and returns its id. The run has ended, and is compacted.
func ledgered(t *testing.T, store runstore.RunStore) runstore.RunID {
	t.Helper()
	ctx, tp := t.Context(), tape.New(store, nil)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	key := tape.RunKey{App: "app", User: "user", Session: "s", Invocation: "i"}
	r, err := tp.BeginRun(ctx, tape.BeginRunRequest{Key: key, Owner: "driver", Reactor: "recovery"})
	must(err)
	f := r.Lease.Fence()
	_, err = tp.AppendEvent(ctx, tape.SessionKey{App: "app", User: "user", Session: "s"},
		tape.SessionEvent{ID: "event-1", Author: "ana", Invocation: "i", Content: `"hello"`}, `{"step":1}`, f)
	must(err)
	_, err = tp.RecordDecision(ctx, r.ID, tape.Decision{Index: 3, Model: "model-a", PolicyVersion: "v2", Request: "{}"}, f)
	must(err)
	_, err = tp.BeginEffect(ctx, tape.BeginEffectRequest{
		Run: r.ID, CustomKey: "pay", Tool: "bank", Mode: tape.Outbox, Semantics: tape.Idempotent, Fence: f,
	})
	must(err)
	_, _, _, err = tp.ClaimEffectDispatch(ctx, r.ID, "pay", tape.ClaimRequest{Claimer: "dispatcher-1"})
	must(err)
	o, err := tp.RegisterCompensation(ctx, tape.Compensation{Run: r.ID, EffectKey: "pay", Kind: "refund", Fence: f})
	must(err)
	_, err = tp.SetBudget(ctx, tape.BudgetCaps{Run: r.ID, USD: 10})
	must(err)
	_, err = tp.ChargeBudget(ctx, tape.BudgetCharge{Run: r.ID, USD: 2.5, Tokens: 70, Fence: f})
	must(err)
	_, err = tp.SendSignal(ctx, tape.Signal{Run: r.ID, Gate: "approval", Resolution: "true"})
	must(err)
	_, err = tp.SetTimer(ctx, tape.Timer{Run: r.ID, ID: "deadline", Kind: "timeout", FireAtMS: 1_600_000_000_000}, runstore.Fence{})
	must(err)
	_, err = tp.ResolveObligation(ctx, tape.ObligationResult{Run: r.ID, Seq: o.Seq, Result: `"done"`})
	must(err)
	_, err = tp.EndRun(ctx, tape.EndRunRequest{Run: r.ID, Status: tape.RunFailed, Fence: f})
	must(err)
	_, err = tp.CompactRun(ctx, r.ID, runstore.Fence{})
	must(err)
	return r.ID
}

// Every ledger of a run is shown, in words and as JSON.
func TestInspectLedgers(t *testing.T) {
	t.Parallel()
	const url = "memory:inspect-ledgers"
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	id := ledgered(t, store)
	damaged := runstore.NewBatch(id, runstore.Unguarded("a test"))
	damaged.Put("timer/damaged", []byte("?"))
	if _, err := store.Commit(t.Context(), damaged); err != nil {
		t.Fatal(err)
	}
	words, notes, err := here(t, "", "inspect", "run", string(id), "--store", url)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(notes, "timer/damaged cannot be read") {
		t.Errorf("notes %q, want one on the damaged record", notes)
	}
	lines := strings.Split(words, "\n")
	for _, want := range []string{ // words of one line, in order
		`"{\"step\":1}"`, "event-1 ana i", "3 model-a v2", "pay pending bank idempotent outbox",
		"pay pending dispatcher-1 for 1 0", "pay refund compensated free 0 0 of", "USD 2.5 10", "tokens 70 none",
		"approval delivered", "deadline timeout due", "done 6 1 0 2", "status failed", "token 1", "lease free",
	} {
		if !hasLine(lines, strings.Fields(want)) {
			t.Errorf("no line has %q", want)
		}
	}
	if t.Failed() {
		t.Log(words)
	}
	out, _, err := here(t, "", "inspect", "run", string(id), "--store", url, "--format", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	at := func(path string) any {
		var v any = got
		for _, step := range strings.Split(path, ".") {
			switch x := v.(type) {
			case map[string]any:
				v = x[step]
			case []any:
				if len(x) != 1 {
					return fmt.Sprintf("%d elements", len(x))
				}
				v = x[0].(map[string]any)[step]
			}
		}
		return v
	}
	for path, want := range map[string]any{
		"session_state.state": `{"step":1}`, "session_state.last_events.content": `"hello"`,
		"decisions.index": 3.0, "decisions.model": "model-a",
		"effects.status": "pending", "effects.dispatch": "outbox",
		"outbox.claimed_by": "dispatcher-1", "outbox.claim_generation": 1.0,
		"obligations.status": "compensated", "obligations.result": `"done"`,
		"budget.usd_spent": 2.5, "budget.tokens_spent": 70.0,
		"gates.name": "approval", "gates.state": "delivered", "gates.resolution": "true",
		"timers.id": "deadline", "timers.state": "due",
		"compaction.state": "done", "compaction.decisions": 1.0, "status": "failed", "lease": "free",
	} {
		if v := at(path); v != want {
			t.Errorf("%s is %v, want %v", path, v, want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// openedRun returns a store of its own with a run.
func openedRun(t *testing.T, url string) (runstore.RunStore, *tape.Tape, runstore.RunID) {
	t.Helper()
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	tp := tape.New(store, nil)
	r, err := tp.BeginRun(t.Context(), tape.BeginRunRequest{Key: tape.RunKey{App: "a", User: "u", Session: "s", Invocation: "i"}, Owner: "d"})
	if err != nil {
		t.Fatal(err)
	}
	return store, tp, r.ID
}

// The claim of an effect ends with its outcome.
func TestInspectSettledEffect(t *testing.T) {
	t.Parallel()
	const url = "memory:inspect-settled"
	_, tp, id := openedRun(t, url)
	_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: id, CustomKey: "k", Mode: tape.Outbox})
	if err == nil {
		_, _, _, err = tp.ClaimEffectDispatch(t.Context(), id, "k", tape.ClaimRequest{Claimer: "dispatcher-1"})
	}
	if err == nil {
		_, err = tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: id, Key: "k", Status: tape.EffectConfirmed})
	}
	if err != nil {
		t.Fatal(err)
	}
	words, _, err := here(t, "", "inspect", "run", string(id), "--store", url)
	if err != nil || !hasLine(strings.Split(words, "\n"), strings.Fields("k confirmed free 1")) {
		t.Errorf("the outbox shows\n%s%v; want the effect unclaimed, and generation 1", words, err)
	}
}

// A timer of any time that SetTimer takes is shown, in UTC as all times are.
func TestInspectTimers(t *testing.T) {
	t.Parallel()
	const url = "memory:inspect-timers"
	_, tp, id := openedRun(t, url)
	for name, at := range map[string]int64{
		"at-once": math.MinInt64, "never": runstore.EndOfTime.UnixMilli(), "noon": time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).UnixMilli(),
	} {
		if _, err := tp.SetTimer(t.Context(), tape.Timer{Run: id, ID: name, FireAtMS: at}, runstore.Fence{}); err != nil {
			t.Fatal(err)
		}
	}
	words, _, err := here(t, "", "inspect", "run", string(id), "--store", url)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"at-once due 1970-01-01 00:00:00.000", "never set 9999-12-31 23:59:59.999", "noon 2026-01-01 12:00:00.000"} {
		if !hasLine(strings.Split(words, "\n"), strings.Fields(want)) {
			t.Errorf("no line has %q in\n%s", want, words)
		}
	}
	var l ledgers
	if l.add(time.Time{}, tape.Timer{FireAtMS: 1}); l.Timers[0].Fires.Location() != time.UTC { // on a machine in UTC too
		t.Errorf("a timer fires at %v, want UTC", l.Timers[0].Fires)
	}
	out, _, err := here(t, "", "inspect", "run", string(id), "--store", url, "--format", "json")
	if err != nil || !json.Valid([]byte(out)) || !strings.Contains(out, `"fires": "2026-01-01T12:00:00Z"`) {
		t.Errorf("inspect run --format json: %v, %q; want the time of noon in UTC", err, out)
	}
}

// A session that cannot be read does not hide its run.
func TestInspectDamagedSession(t *testing.T) {
	t.Parallel()
	const url = "memory:inspect-damaged-session"
	store, tp, id := openedRun(t, url)
	key := tape.SessionKey{App: "a", User: "u", Session: "s"}
	if _, err := tp.AppendEvent(t.Context(), key, tape.SessionEvent{ID: "e", Author: "ana"}, `{}`, runstore.Fence{}); err != nil {
		t.Fatal(err)
	}
	damaged := 0
	sum := sha256.Sum256([]byte(`["a","u","s"]`))
	session := runstore.RunID("session/" + hex.EncodeToString(sum[:]))
	for rec, err := range runstore.Records(t.Context(), store, session, "") {
		if err != nil {
			t.Fatal(err)
		}
		b := runstore.NewBatch(session, runstore.Unguarded("a test"))
		b.Put(rec.Key, []byte("?"))
		if _, err := store.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		damaged++
	}
	words, notes, err := here(t, "", "inspect", "run", string(id), "--store", url)
	if damaged == 0 || err != nil || !hasLine(strings.Split(words, "\n"), []string{"status", "running"}) || !strings.Contains(notes, "session of the run cannot be read") {
		t.Errorf("inspect run of a session with %d damaged records: %v, %q, %q; want the run, and a note", damaged, err, words, notes)
	}
}

// A cap of tokens is shown as it is.
func TestInspectCap(t *testing.T) {
	t.Parallel()
	const url = "memory:inspect-cap"
	_, tp, id := openedRun(t, url)
	if _, err := tp.SetBudget(t.Context(), tape.BudgetCaps{Run: id, Tokens: 1<<53 + 1}); err != nil {
		t.Fatal(err)
	}
	words, _, err := here(t, "", "inspect", "run", string(id), "--store", url)
	if err != nil || !hasLine(strings.Split(words, "\n"), strings.Fields("tokens 0 9007199254740993")) {
		t.Errorf("the cap of 9007199254740993 tokens is shown as\n%s%v", words, err)
	}
}

// hasLine reports whether a line has the words in order.
func hasLine(lines []string, words []string) bool {
	for _, line := range lines {
		left := words
		for _, field := range strings.Fields(line) {
			if len(left) > 0 && field == left[0] {
				left = left[1:]
			}
		}
		if len(left) == 0 {
			return true
		}
	}
	return false
}

// A run that somebody holds shows by whom, in which role and for how long.
func TestInspectGrant(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	store := memory.New(&memory.Options{Clock: func() time.Time { return now }}).Open()
	in := &inspection{store: store, now: now.Add(3 * time.Minute)}
	for name, want := range map[string]string{"": "free", "a": "a, expired 1m0s ago", "b": "b for 1m0s"} {
		head := runstore.Run{}
		if name != "" {
			head.Holder = runstore.Holder{Owner: runstore.Owner(name), Token: 1}
			head.ExpiresAt = map[string]time.Time{"a": now.Add(2 * time.Minute), "b": now.Add(4 * time.Minute)}[name]
		}
		if got := in.lease(head); got != want {
			t.Errorf("the lease of %q is %q, want %q", name, got, want)
		}
	}
}
