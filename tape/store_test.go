package tape_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	prepared := prepare(t, inner)
	c := &counter{RunStore: s}
	tp := tape.New(c, nil)
	fence := prepared.Lease.Fence()
	var obligation runstore.Seq
	for _, op := range []struct {
		name string
		do   func() error
		want string
	}{
		{"BeginRun, fresh", func() error { _, err := tp.BeginRun(t.Context(), beginRequest("other")); return err }, "[create]"},
		{"RecordDecision", func() error {
			_, err := tp.RecordDecision(t.Context(), prepared.ID, tape.Decision{Index: 1}, fence)
			return err
		}, "[commit]"},
		{"RecordDecision, replayed", func() error {
			_, err := tp.RecordDecision(t.Context(), prepared.ID, tape.Decision{Index: 1}, fence)
			return err
		}, "[commit records]"},
		{"GetDecision", func() error { _, _, err := tp.GetDecision(t.Context(), prepared.ID, 1); return err }, "[records]"},
		{"BeginEffect", func() error {
			_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: prepared.ID, CustomKey: "k", Fence: fence})
			return err
		}, "[commit]"},
		{"BeginEffect, replayed", func() error {
			_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: prepared.ID, CustomKey: "k", Fence: fence})
			return err
		}, "[commit records]"},
		{"BeginEffect, scoped", func() error {
			_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: prepared.ID, CustomKey: "s", Scope: "pay", Fence: fence})
			return err
		}, "[get commit]"},
		{"BeginEffect, business key, ahead", func() error {
			_, err := tp.BeginEffect(t.Context(), business(prepared.ID, "invoice-1"))
			return err
		}, "[commit create commit commit]"},
		{"BeginEffect, business key, replayed", func() error {
			_, err := tp.BeginEffect(t.Context(), business(prepared.ID, "invoice-1"))
			return err
		}, "[commit records]"},
		{"BeginEffect, business key of another run", func() error {
			_, err := tp.BeginEffect(t.Context(), business(beginRequest("other").Key.ID(), "invoice-1"))
			return err
		}, "[commit create commit commit records records records]"},
		{"CompleteEffect", func() error {
			_, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: prepared.ID, Key: "k", Status: tape.EffectConfirmed, Fence: fence})
			return err
		}, "[records commit]"},
		{"CompleteEffect, replayed without a fence", func() error {
			_, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: prepared.ID, Key: "k", Status: tape.EffectConfirmed})
			return err
		}, "[records]"},
		{"CompleteEffect, replayed", func() error {
			_, err := tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: prepared.ID, Key: "k", Status: tape.EffectConfirmed, Fence: fence})
			return err
		}, "[records commit]"},
		{"GetEffect", func() error { _, _, err := tp.GetEffect(t.Context(), prepared.ID, "k"); return err }, "[records]"},
		{"GetRun", func() error { _, err := tp.GetRun(t.Context(), prepared.ID); return err }, "[get]"},
		{"ReadJournal", func() error { _, err := tp.ReadJournal(t.Context(), prepared.ID, 0, 10); return err }, "[journal]"},
		{"ListPendingEffects, pending", func() error {
			_, err := tp.ListPendingEffects(t.Context(), tape.PendingQuery{Pending: true, Limit: 1})
			return err
		}, "[scan]"},
		{"RegisterCompensation", func() error {
			o, err := tp.RegisterCompensation(t.Context(), tape.Compensation{Run: prepared.ID, EffectKey: "k", Fence: fence})
			obligation = o.Seq
			return err
		}, "[commit]"},
		{"RegisterCompensation, replayed", func() error {
			_, err := tp.RegisterCompensation(t.Context(), tape.Compensation{Run: prepared.ID, EffectKey: "k", Fence: fence})
			return err
		}, "[commit records]"},
		{"ClaimObligation", func() error {
			_, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{Run: prepared.ID, Seq: obligation, Fence: fence})
			return err
		}, "[journal records commit]"},
		{"ClaimObligation, lost without a fence", func() error {
			_, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{Run: prepared.ID, Seq: obligation})
			return err
		}, "[journal records now]"},
		{"RecordObligationAttempt", func() error {
			_, err := tp.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{
				Run: prepared.ID, Seq: obligation, Next: time.UnixMilli(1), Generation: 1, Fence: fence})
			return err
		}, "[journal records commit]"},
		{"ClaimObligation, after a retry that is due", func() error {
			_, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{Run: prepared.ID, Seq: obligation, Fence: fence})
			return err
		}, "[journal records commit]"},
		{"RecordObligationAttempt, repeated without a fence", func() error {
			_, err := tp.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{Run: prepared.ID, Seq: obligation, Generation: 1})
			return err
		}, "[journal records]"},
		{"ResolveObligation", func() error {
			_, err := tp.ResolveObligation(t.Context(), tape.ObligationResult{Run: prepared.ID, Seq: obligation, Fence: fence})
			return err
		}, "[journal records commit]"},
		{"ResolveObligation, repeated", func() error {
			_, err := tp.ResolveObligation(t.Context(), tape.ObligationResult{Run: prepared.ID, Seq: obligation, Fence: fence})
			return err
		}, "[journal records commit]"},
		{"ListObligations, the only page", func() error {
			_, err := tp.ListObligations(t.Context(), tape.ObligationQuery{Run: prepared.ID})
			return err
		}, "[records records]"},
		{"ListUnresolvedObligations, pending", func() error {
			_, err := tp.ListUnresolvedObligations(t.Context(), tape.UnresolvedQuery{Limit: 1})
			return err
		}, "[scan]"},
		{"SetBudget", func() error {
			_, err := tp.SetBudget(t.Context(), tape.BudgetCaps{Run: prepared.ID, Fence: fence})
			return err
		}, "[records commit]"},
		{"ChargeBudget", func() error {
			_, err := tp.ChargeBudget(t.Context(), tape.BudgetCharge{Run: prepared.ID, Fence: fence})
			return err
		}, "[records commit]"},
		{"AdmitBudget", func() error { _, err := tp.AdmitBudget(t.Context(), prepared.ID, 1, 1); return err }, "[records]"},
		{"SetTimer", func() error {
			_, err := tp.SetTimer(t.Context(), tape.Timer{Run: prepared.ID, ID: "new", FireAtMS: 1}, fence)
			return err
		}, "[commit]"},
		{"SetTimer, replayed", func() error {
			_, err := tp.SetTimer(t.Context(), tape.Timer{Run: prepared.ID, ID: "new", FireAtMS: 1}, fence)
			return err
		}, "[commit records]"},
		{"SetTimer, changed", func() error {
			_, err := tp.SetTimer(t.Context(), tape.Timer{Run: prepared.ID, ID: "new", FireAtMS: 2}, fence)
			return err
		}, "[commit records commit]"},
		{"ListDueTimers", func() error { // of "t" and "new"
			_, err := tp.ListDueTimers(t.Context(), tape.DueTimersQuery{Limit: 2})
			return err
		}, "[scan]"},
		{"ListDueTimers, claiming", func() error {
			_, err := tp.ListDueTimers(t.Context(), tape.DueTimersQuery{Limit: 2, Claim: true})
			return err
		}, "[scan commit commit]"},
		{"CancelTimer", func() error { _, err := tp.CancelTimer(t.Context(), prepared.ID, "new", fence); return err },
			"[records commit]"},
		{"CancelTimer, replayed without a fence", func() error {
			_, err := tp.CancelTimer(t.Context(), prepared.ID, "new", runstore.Fence{})
			return err
		}, "[records]"},
		{"ResumeRun, heartbeat", func() error {
			_, _, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: prepared.ID, Fence: fence})
			return err
		}, "[renew get]"},
		{"EndRun", func() error {
			_, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: prepared.ID, Status: tape.RunFailed, Fence: fence})
			return err
		}, "[get commit]"},
		{"BeginRun, existing", func() error { _, err := tp.BeginRun(t.Context(), beginRequest("i")); return err }, "[create acquire]"},
		{"ResumeRun, takeover", func() error {
			_, _, err := tp.ResumeRun(t.Context(), tape.ResumeRunRequest{Run: prepared.ID})
			return err
		}, "[get acquire]"},
		{"EndRun, unfenced", func() error {
			_, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: prepared.ID, Status: tape.RunFailed})
			return err
		}, "[get commit]"},
		{"ListCompactableRuns", func() error {
			_, err := tp.ListCompactableRuns(t.Context(), time.Time{}, 1)
			return err
		}, "[scan]"},
		{"CompactRun", func() error {
			open, err := inner.ListObligations(t.Context(), tape.ObligationQuery{Run: prepared.ID, Unresolved: true})
			for _, o := range open { // a run with one is not settled
				if err == nil {
					_, err = inner.ResolveObligation(t.Context(), tape.ObligationResult{Run: prepared.ID, Seq: o.Seq})
				}
			}
			if err == nil {
				_, err = tp.CompactRun(t.Context(), prepared.ID, runstore.Fence{})
			}
			return err
		}, "[get records now commit]"},
		{"CompactRun, replayed", func() error { _, err := tp.CompactRun(t.Context(), prepared.ID, runstore.Fence{}); return err },
			"[get records]"},
		{"BeginRun, compacted", func() error { _, err := tp.BeginRun(t.Context(), beginRequest("i")); return err },
			"[create acquire records acquire]"},
		{"EndRun, compacted", func() error {
			_, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: prepared.ID, Status: tape.RunFailed})
			return err
		}, "[get commit records get commit]"},
	} {
		if err := op.do(); err != nil {
			t.Errorf("%s: %v", op.name, err)
		}
		if got := fmt.Sprint(c.take()); got != op.want {
			t.Errorf("%s made the calls %s, want %s", op.name, got, op.want)
		}
	}
}

func TestLostRepliesAreResolved(t *testing.T) {
	t.Parallel()
	_, s, _ := newTape(t)
	tp := tape.New(&lossy{RunStore: s}, nil)
	r := begin(t, tp, "i")
	if r.Resumed || r.Lease.Token != 1 {
		t.Errorf("BeginRun = %+v, want a fresh run under token 1", r)
	}
	f := r.Lease.Fence()
	d, err := tp.RecordDecision(t.Context(), r.ID, tape.Decision{Response: "x"}, f)
	if err != nil || d.Seq != 2 {
		t.Errorf("RecordDecision = %+v, %v, want seq 2", d, err)
	}
	e, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: "K", Fence: f})
	if err != nil || e.Seq != 3 {
		t.Errorf("BeginEffect = %+v, %v, want seq 3", e, err)
	}
	if _, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: "L", Scope: "admin", Fence: f}); !errors.Is(err, tape.ErrScope) {
		t.Errorf("BeginEffect = %v, want ErrScope", err)
	}
	e, err = tp.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "K", Status: tape.EffectConfirmed, Fence: f})
	if err != nil || e.Status != tape.EffectConfirmed || e.Seq != 3 {
		t.Errorf("CompleteEffect = %+v, %v, want CONFIRMED", e, err)
	}
	run, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunFailed, Fence: f})
	if err != nil || run.LastSeq != 6 {
		t.Errorf("EndRun = %+v, %v, want seq 6", run, err)
	}
	again := begin(t, tp, "i")
	if !again.Resumed || again.Lease.Token != 2 {
		t.Errorf("BeginRun again = %+v, want token 2", again)
	}
	if got, want := fmt.Sprint(historyOf(t, s, r.ID).kinds()), "[run decision effect policy effect run]"; got != want {
		t.Errorf("journal = %s, want %s", got, want)
	}
}

func TestLimitsNameTheFieldAndTheLimit(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	before := historyOf(t, s, r.ID)
	huge := strings.Repeat("x", 5<<20)
	mega := huge[:1<<20]
	decision := func(d tape.Decision) error {
		_, err := tp.RecordDecision(t.Context(), r.ID, d, runstore.Fence{})
		return err
	}
	effect := func(req tape.BeginEffectRequest) error {
		req.Run = r.ID
		_, err := tp.BeginEffect(t.Context(), req)
		return err
	}
	beginRun := func(change func(*tape.BeginRunRequest)) error {
		req := beginRequest("other")
		change(&req)
		_, err := tp.BeginRun(t.Context(), req)
		return err
	}
	complete := func(req tape.OutcomeRequest) error {
		req.Run, req.Key = r.ID, "k"
		_, err := tp.CompleteEffect(t.Context(), req)
		return err
	}
	_, endErr := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Detail: huge[:2_000_001]})
	_, _, getErr := tp.GetDecision(t.Context(), "", 0)
	_, _, longErr := tp.GetEffect(t.Context(), r.ID, huge[:1100])
	_, _, idErr := tp.GetEffect(t.Context(), runstore.RunID(huge[:257]), "k")
	for _, c := range []struct {
		err   error
		kind  error
		field string
		limit string
	}{
		{getErr, runstore.ErrInvalid, "run_id", "256"},
		{idErr, runstore.ErrTooLarge, "run_id", "256"},
		{longErr, runstore.ErrTooLarge, "idempotency_key", "1017"},
		{decision(tape.Decision{Request: huge}), runstore.ErrTooLarge, "request_json", "4000000"},
		{decision(tape.Decision{Rationale: mega}), runstore.ErrTooLarge, "rationale", "1048576"},
		{decision(tape.Decision{Model: "\xff"}), runstore.ErrInvalid, "model", "UTF-8"},
		{effect(tape.BeginEffectRequest{Request: huge[:2_000_001]}), runstore.ErrTooLarge, "request_json", "2000000"},
		{effect(tape.BeginEffectRequest{CustomKey: huge[:1018]}), runstore.ErrTooLarge, "custom_key", "1017"},
		{effect(tape.BeginEffectRequest{Tool: huge[:1018]}), runstore.ErrTooLarge, "tool_name", "1017"},
		{effect(tape.BeginEffectRequest{Connector: huge[:64<<10]}), runstore.ErrTooLarge, "connector", "65536"},
		{effect(tape.BeginEffectRequest{CustomKey: "k", Tool: huge[:64<<10]}), runstore.ErrTooLarge, "tool_name", "65536"},
		{beginRun(func(r *tape.BeginRunRequest) { r.Owner = huge[:257] }), runstore.ErrTooLarge, "lease_owner", "256"},
		{beginRun(func(r *tape.BeginRunRequest) { r.Reactor = huge[:257] }), runstore.ErrTooLarge, "reactor", "256"},
		{beginRun(func(r *tape.BeginRunRequest) { r.Reactor = "\xff" }), runstore.ErrInvalid, "reactor", "UTF-8"},
		{beginRun(func(r *tape.BeginRunRequest) { r.Key.User = mega }), runstore.ErrTooLarge, "user_id", "262144"},
		{beginRun(func(r *tape.BeginRunRequest) { r.Identity.Labels["k"] = huge }), runstore.ErrTooLarge, "labels", "262144"},
		{beginRun(func(r *tape.BeginRunRequest) { r.Identity.Scopes = make([]string, 100_000) }), runstore.ErrTooLarge, "scopes", "262144"},
		{complete(tape.OutcomeRequest{Response: huge[:1_000_000], Error: huge[:1_000_001]}), runstore.ErrTooLarge, "error_json", "2000000"},
		{endErr, runstore.ErrTooLarge, "detail_json", "2000000"},
	} {
		var limit *runstore.InputError
		if !errors.As(c.err, &limit) || limit.Kind != c.kind || limit.Field != c.field || !strings.Contains(limit.Problem, c.limit) {
			t.Errorf("%v, want %v naming %s and %s", c.err, c.kind, c.field, c.limit)
		}
	}
	if n := len(historyOf(t, s, r.ID).events); n != len(before.events) {
		t.Errorf("refused input wrote %d entries", n-len(before.events))
	}
	if _, err := tp.GetRun(t.Context(), beginRequest("other").Key.ID()); !errors.Is(err, tape.ErrNoSuchRun) {
		t.Errorf("refused input made a run: %v", err)
	}
}

func TestScopesAreThoseOfTheCommit(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]string{
		"pay":   "[get commit records get commit]", // granted, and looked at again
		"admin": "[get commit get commit]",         // denied, and looked at again
	} {
		inner, s, _ := newTape(t)
		r := begin(t, inner, "i")
		c := &counter{RunStore: ahead(s, "commit", 1, func() {
			if _, err := inner.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunFailed}); err != nil {
				t.Error(err)
			}
		})}
		_, err := tape.New(c, nil).BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: "K", Scope: scope})
		if denied := errors.Is(err, tape.ErrScope); denied != (scope == "admin") {
			t.Errorf("%s: %v", scope, err)
		}
		if got := fmt.Sprint(c.take()); got != want {
			t.Errorf("%s: calls %s, want %s", scope, got, want)
		}
	}
}

func TestAnEffectThatMovesBetweenTheQueuesIsListedOnce(t *testing.T) {
	t.Parallel()
	inner, s, store := newTape(t)
	r := begin(t, inner, "i")
	if _, err := inner.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: r.ID, CustomKey: "K"}); err != nil {
		t.Fatal(err)
	}
	// The first scan is of the PENDING ones.
	tp := tape.New(behind(s, "scan", 1, func() {
		store.Advance(time.Second)
		if _, err := inner.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: r.ID, Key: "K", Status: tape.EffectUnknown}); err != nil {
			t.Error(err)
		}
	}), nil)
	// The limit keeps both scans to one page, so that the first has been made when
	// the effect moves.
	effects, err := tp.ListPendingEffects(t.Context(), tape.PendingQuery{Limit: 10})
	if err != nil || len(effects) != 1 {
		t.Errorf("%d effects, %v, want 1", len(effects), err)
	}
}

// lagging has a feed that has not reached the events from a seq on.
type lagging struct {
	runstore.RunStore
	from runstore.Seq
}

func (s *lagging) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	events, err := s.RunStore.ReadJournal(ctx, id, from, limit)
	for i := range events {
		if events[i].Seq >= s.from {
			events[i].Position = 0
		}
	}
	return events, err
}

// A journal shows what was committed, also while the feed has not reached it.
func TestEntriesAreShownBeforeTheyHaveAPosition(t *testing.T) {
	t.Parallel()
	inner, s, _ := newTape(t)
	r := prepare(t, inner)
	tp := tape.New(&lagging{RunStore: s, from: 3}, nil)
	want := len(historyOf(t, s, r.ID).events)
	entries, err := tp.ReadJournal(t.Context(), r.ID, 0, 100)
	if err != nil || len(entries) != want {
		t.Fatalf("got %d entries, %v, want %d", len(entries), err, want)
	}
	for i, e := range entries {
		if e.Seq != runstore.Seq(i+1) || (e.Position == 0) != (e.Seq >= 3) {
			t.Errorf("entry %d has seq %d and position %d, want seq %d, and no position from seq 3 on", i, e.Seq, e.Position, i+1)
		}
	}
}
