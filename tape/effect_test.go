package tape_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func TestDecisionFirstOneWins(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	d := tape.Decision{Index: 0, Model: "m", Request: "{\"a\": 1}\n", Response: "réponse\x00", Rationale: "<why>", PolicyVersion: "p"}
	first, err := tp.RecordDecision(t.Context(), r.ID, d, runstore.Fence{})
	if err != nil || first.Seq != 2 {
		t.Fatalf("RecordDecision = %+v, %v, want seq 2", first, err)
	}
	h := historyOf(t, s, r.ID)
	if want := `{"decision_index":0,"model":"m","policy_version":"p","rationale":"<why>"}`; string(h.events[1].Data) != want {
		t.Errorf("entry = %s, want %s", h.events[1].Data, want)
	}
	d.Seq, d.Time = 2, h.events[1].Time
	if first != d {
		t.Errorf("recorded %+v, want %+v", first, d)
	}
	again, err := tp.RecordDecision(t.Context(), r.ID, tape.Decision{Index: 0, Model: "other"}, runstore.Fence{})
	stored, found, getErr := tp.GetDecision(t.Context(), r.ID, 0)
	if err != nil || getErr != nil || !found || again != first || stored != first {
		t.Errorf("again %+v, %v; stored %+v, %v; want the first %+v", again, err, stored, getErr, first)
	}
	if after := historyOf(t, s, r.ID); !reflect.DeepEqual(h, after) {
		t.Errorf("the replay changed %+v to %+v", h, after)
	}
	if _, found, err := tp.GetDecision(t.Context(), r.ID, 1); found || err != nil {
		t.Errorf("GetDecision(1) = %v, %v, want not found", found, err)
	}
	if _, found, err := tp.GetDecision(t.Context(), "no-such-run", 1); found || err != nil {
		t.Errorf("GetDecision of no run = %v, %v, want not found", found, err)
	}
	if _, err := tp.RecordDecision(t.Context(), "no-such-run", d, runstore.Fence{}); !errors.Is(err, tape.ErrNoSuchRun) {
		t.Errorf("RecordDecision of no run = %v, want ErrNoSuchRun", err)
	}
}

func TestEffectKeys(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	r := begin(t, tp, "i")
	for _, c := range []struct {
		req  tape.BeginEffectRequest
		want string
	}{
		{tape.BeginEffectRequest{Decision: 0, Tool: "execute_sweep", Call: 0}, string(r.ID) + "/decision-0/execute_sweep/0"},
		{tape.BeginEffectRequest{Decision: -1, Tool: "post_gl"}, string(r.ID) + "/no-decision/post_gl/0"},
		{tape.BeginEffectRequest{Decision: -7, Tool: "post/gl", Call: 3}, string(r.ID) + "/no-decision/post/gl/3"},
		{tape.BeginEffectRequest{CustomKey: "K"}, "K"},
	} {
		c.req.Run = r.ID
		e, err := tp.BeginEffect(t.Context(), c.req)
		if err != nil || e.Key != c.want || e.Status != tape.EffectPending {
			t.Errorf("BeginEffect(%+v) = %+v, %v, want key %s", c.req, e, err, c.want)
		}
	}
}

func TestEffectLife(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	r := begin(t, tp, "i")
	req := tape.BeginEffectRequest{Run: r.ID, Tool: "pay", CustomKey: "K", Request: `{"n":1}`, Connector: "bank", Mode: tape.Outbox}
	fresh, err := tp.BeginEffect(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	want := tape.Effect{
		Run: r.ID, Key: "K", Tool: "pay", Semantics: tape.Idempotent, Mode: tape.Outbox, Connector: "bank",
		Status: tape.EffectPending, Request: `{"n":1}`, Seq: 2, Time: fresh.Time, NextDispatch: fresh.Time,
	}
	if fresh != want || fresh.Time.IsZero() {
		t.Errorf("BeginEffect = %+v, want %+v", fresh, want)
	}
	store.Advance(time.Second)
	if again, err := tp.BeginEffect(t.Context(), req); err != nil || again != fresh {
		t.Errorf("BeginEffect again = %+v, %v, want %+v", again, err, fresh)
	}
	done, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "K", Status: tape.EffectConfirmed, Response: "R"})
	want.Status, want.Response, want.Time = tape.EffectConfirmed, "R", done.Time
	if err != nil || done != want || !done.Time.After(fresh.Time) {
		t.Errorf("CompleteEffect = %+v, %v, want %+v", done, err, want)
	}
	before := historyOf(t, s, r.ID)
	late, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "K", Status: tape.EffectFailed, Error: "E"})
	if err != nil || late != done {
		t.Errorf("late CompleteEffect = %+v, %v, want the first outcome", late, err)
	}
	if again, err := tp.BeginEffect(t.Context(), req); err != nil || again != done {
		t.Errorf("BeginEffect after all = %+v, %v, want %+v", again, err, done)
	}
	if late, err := tp.ReconcileEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "K", Status: tape.EffectFailed}); err != nil || late != done {
		t.Errorf("late ReconcileEffect = %+v, %v, want the first outcome", late, err)
	}
	if after := historyOf(t, s, r.ID); !reflect.DeepEqual(before, after) {
		t.Errorf("replays changed %+v to %+v", before, after)
	}
	for i, want := range []string{
		`{"business_key":"","connector":"bank","decision_index":0,"dispatch_mode":2,"idempotency_key":"K","scope":"","semantics":1,"status":"pending","tool":"pay"}`,
		`{"idempotency_key":"K","status":"confirmed","tool":"pay"}`,
	} {
		if got := string(before.events[1+i].Data); got != want {
			t.Errorf("entry = %s, want %s", got, want)
		}
	}
}

func TestReconcileEffect(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	if _, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: "K", Tool: "pay"}); err != nil {
		t.Fatal(err)
	}
	if _, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "K", Status: tape.EffectUnknown}); err != nil {
		t.Fatal(err)
	}
	e, err := tp.ReconcileEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "K", Status: tape.EffectConfirmed, Response: "found"})
	if err != nil || e.Status != tape.EffectConfirmed || e.Response != "found" || e.Seq != 2 {
		t.Errorf("ReconcileEffect = %+v, %v, want CONFIRMED with seq 2", e, err)
	}
	h := historyOf(t, s, r.ID)
	want := `{"idempotency_key":"K","resolved_to":2,"status":"reconciled","tool":"pay"}`
	if got := string(h.events[3].Data); got != want {
		t.Errorf("entry = %s, want %s", got, want)
	}
	for _, run := range []runstore.RunID{r.ID, "no-such-run"} {
		if _, err := tp.ReconcileEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: "x"}); !errors.Is(err, tape.ErrNoSuchEffect) {
			t.Errorf("ReconcileEffect of nothing = %v, want ErrNoSuchEffect", err)
		}
		if _, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: "x"}); !errors.Is(err, tape.ErrNotBegun) {
			t.Errorf("CompleteEffect of nothing = %v, want ErrNotBegun", err)
		}
	}
}

func TestBeginEffectRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		req  tape.BeginEffectRequest
		kind error
		text string
		last string // kind of the journal's last entry
	}{
		{"inline", tape.BeginEffectRequest{Semantics: tape.NonIdempotent, Scope: "pay"}, tape.ErrRefused, "NON_IDEMPOTENT", "run"},
		{"no scope", tape.BeginEffectRequest{Semantics: tape.NonIdempotent, Mode: tape.Outbox}, tape.ErrScope, `scope "<required>" not granted`, "run"},
		{"other scope", tape.BeginEffectRequest{Scope: "admin"}, tape.ErrScope, `policy violation — scope "admin" not granted to run`, "policy"},
		{"business key alone", tape.BeginEffectRequest{BusinessKey: "b"}, tape.ErrRefused, "business_key requires connector", "run"},
		{"business key", tape.BeginEffectRequest{BusinessKey: "b", Connector: "c"}, nil, "", "effect"},
		{"granted", tape.BeginEffectRequest{Scope: "pay", Semantics: tape.NonIdempotent, Mode: tape.Outbox}, nil, "", "effect"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tp, s, _ := newTape(t)
			r := begin(t, tp, "i")
			c.req.Run, c.req.CustomKey, c.req.Tool = r.ID, "K", "pay"
			_, err := tp.BeginEffect(t.Context(), c.req)
			if !errors.Is(err, c.kind) || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("BeginEffect = %v, want %v with %q", err, c.kind, c.text)
			}
			if _, found, _ := tp.GetEffect(t.Context(), r.ID, "K"); found != (c.kind == nil) {
				t.Errorf("effect found: %v, want %v", found, c.kind == nil)
			}
			h := historyOf(t, s, r.ID)
			last := h.events[len(h.events)-1]
			if last.Kind != c.last {
				t.Errorf("last entry = %s, want %s", last.Kind, c.last)
			}
			want := `{"decision_index":0,"granted_scopes":["pay","read"],"required_scope":"admin","tool":"pay","violation":"scope_not_granted"}`
			if c.last == "policy" && string(last.Data) != want {
				t.Errorf("entry = %s, want %s", last.Data, want)
			}
		})
	}
}

func TestAScopeIsAskedForOnReplaysToo(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	req := tape.BeginEffectRequest{Run: r.ID, CustomKey: "K", Scope: "pay"}
	if _, err := tp.BeginEffect(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	req.Scope = "admin"
	for range 2 {
		if _, err := tp.BeginEffect(t.Context(), req); !errors.Is(err, tape.ErrScope) {
			t.Errorf("BeginEffect = %v, want ErrScope", err)
		}
	}
	if got, want := fmt.Sprint(historyOf(t, s, r.ID).kinds()), "[run effect policy policy]"; got != want {
		t.Errorf("journal = %s, want %s", got, want)
	}
}

func TestListPendingEffects(t *testing.T) {
	t.Parallel()
	tp, _, store := newTape(t)
	a, b := begin(t, tp, "a"), begin(t, tp, "b")
	times := map[string]time.Time{}
	put := func(run runstore.RunID, key string, mode tape.DispatchMode) {
		t.Helper()
		store.Advance(10 * time.Millisecond)
		e, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: run, CustomKey: key, Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		times[key] = e.Time
	}
	settle := func(run runstore.RunID, key string, s tape.EffectStatus) {
		t.Helper()
		store.Advance(10 * time.Millisecond)
		if _, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: run, Key: key, Status: s}); err != nil {
			t.Fatal(err)
		}
	}
	put(a.ID, "a1", tape.Inline)
	put(b.ID, "b1", tape.Outbox)
	put(a.ID, "a2", tape.Inline)
	put(a.ID, "a3", tape.Inline)
	put(b.ID, "b2", tape.Inline)
	settle(a.ID, "a2", tape.EffectUnknown) // changed last, so it comes last
	settle(a.ID, "a3", tape.EffectConfirmed)
	for _, c := range []struct {
		name string
		q    tape.PendingQuery
		want string
	}{
		{"neither flag", tape.PendingQuery{}, "[a1 b1 b2 a2]"},
		{"both flags", tape.PendingQuery{Pending: true, Unknown: true}, "[a1 b1 b2 a2]"},
		{"pending", tape.PendingQuery{Pending: true}, "[a1 b1 b2]"},
		{"unknown", tape.PendingQuery{Unknown: true}, "[a2]"},
		{"limit", tape.PendingQuery{Limit: 2}, "[a1 b1]"},
		{"older than b2", tape.PendingQuery{OlderThan: times["b2"]}, "[a1 b1 a2]"},
		{"before all times", tape.PendingQuery{OlderThan: time.UnixMilli(-5)}, "[a2]"},
		{"after all times", tape.PendingQuery{OlderThan: time.UnixMilli(1 << 62)}, "[a1 b1 b2 a2]"},
	} {
		effects, err := tp.ListPendingEffects(t.Context(), c.q)
		keys := make([]string, 0, len(effects))
		for _, e := range effects {
			keys = append(keys, e.Key)
		}
		if got := fmt.Sprint(keys); err != nil || got != c.want {
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
}

func TestOutboxEffectsStandInTheDispatchQueue(t *testing.T) {
	t.Parallel()
	tp, s, store := newTape(t)
	r := begin(t, tp, "i")
	for _, mode := range []tape.DispatchMode{tape.Inline, tape.Outbox} {
		if _, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: fmt.Sprint(int(mode)), Mode: mode}); err != nil {
			t.Fatal(err)
		}
	}
	due := func() []runstore.IndexEntry {
		t.Helper()
		entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: tape.IndexDispatch, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	first := due()
	if len(first) != 1 || first[0].Record.Key != "effect/2" {
		t.Fatalf("queue = %+v, want the outbox effect", first)
	}
	store.Advance(time.Second)
	// A completion that leaves it PENDING leaves it due when it was due.
	if _, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "2", Status: tape.EffectPending}); err != nil {
		t.Fatal(err)
	}
	if again := due(); len(again) != 1 || !again[0].At.Equal(first[0].At) {
		t.Errorf("queue = %+v, want the effect due at %v still", again, first[0].At)
	}
	if _, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "2", Status: tape.EffectUnknown}); err != nil {
		t.Fatal(err)
	}
	if left := due(); len(left) != 0 {
		t.Errorf("queue = %+v, want nothing: an UNKNOWN effect is never sent again by itself", left)
	}
}
