package tape_test

import (
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
		}, "[acquire get]"},
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
		{decision(tape.Decision{Request: huge}), runstore.ErrTooLarge, "request_json", "4194304"},
		{decision(tape.Decision{Rationale: mega}), runstore.ErrTooLarge, "rationale", "1048576"},
		{decision(tape.Decision{Model: "\xff"}), runstore.ErrInvalid, "model", "UTF-8"},
		{effect(tape.BeginEffectRequest{Request: huge}), runstore.ErrTooLarge, "request_json", "4194304"},
		{effect(tape.BeginEffectRequest{CustomKey: huge[:1018]}), runstore.ErrTooLarge, "custom_key", "1017"},
		{effect(tape.BeginEffectRequest{Tool: huge[:1018]}), runstore.ErrTooLarge, "tool_name", "1017"},
		{effect(tape.BeginEffectRequest{Connector: mega}), runstore.ErrTooLarge, "connector", "1048576"},
		{beginRun(func(r *tape.BeginRunRequest) { r.Owner = huge[:257] }), runstore.ErrTooLarge, "lease_owner", "256"},
		{beginRun(func(r *tape.BeginRunRequest) { r.TTL = time.Hour }), runstore.ErrInvalid, "lease_ttl_ms", "1800000"},
		{beginRun(func(r *tape.BeginRunRequest) { r.Key.User = mega }), runstore.ErrTooLarge, "user_id", "1048576"},
		{beginRun(func(r *tape.BeginRunRequest) { r.Identity.Labels["k"] = huge }), runstore.ErrTooLarge, "labels", "4194304"},
	} {
		var limit *runstore.LimitError
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

func TestLargeListsEndEarly(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	r := begin(t, tp, "i")
	for i := range 4 {
		req := tape.BeginEffectRequest{Run: r.ID, CustomKey: fmt.Sprint(i), Request: strings.Repeat("x", 2<<20)}
		if _, err := tp.BeginEffect(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	effects, err := tp.ListPendingEffects(t.Context(), tape.PendingQuery{})
	if err != nil || len(effects) != 1 || effects[0].Key != "0" {
		t.Errorf("%d effects, %v; want the first alone, to fit into one message", len(effects), err)
	}
}
