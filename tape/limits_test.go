package tape_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// TestWhatBeganCanEnd begins a run and effects with the largest texts that are let in.
// Their outcome and end may be as large as those of the smallest.
func TestWhatBeganCanEnd(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	text := func(n int) string { return strings.Repeat("x", n) }
	req := beginRequest("i")
	req.Identity.Labels["k"] = text(tape.MaxRunNames - 500)
	r, err := tp.BeginRun(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	names := text(tape.MaxEffectNames - 500)
	settle := map[string]func(tape.OutcomeRequest) (tape.Effect, error){
		"complete":  func(req tape.OutcomeRequest) (tape.Effect, error) { return tp.CompleteEffect(t.Context(), req) },
		"reconcile": func(req tape.OutcomeRequest) (tape.Effect, error) { return tp.ReconcileEffect(t.Context(), req) },
	}
	for key, settle := range settle {
		_, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{
			Run: r.ID, CustomKey: key, Tool: names, Request: text(tape.MaxRequest),
		})
		if err != nil {
			t.Fatal(err)
		}
		outcome := tape.OutcomeRequest{
			Run: r.ID, Key: key, Status: tape.EffectConfirmed,
			Response: text(tape.MaxOutcome - 10), Error: text(11),
		}
		var limit *runstore.InputError
		if _, err := settle(outcome); !errors.As(err, &limit) || limit.Field != "response_json" {
			t.Errorf("%s with an outcome one byte too large = %v, want a refusal that names response_json", key, err)
		}
		outcome.Error = text(10)
		if e, err := settle(outcome); err != nil || e.Response != outcome.Response || e.Status != tape.EffectConfirmed {
			t.Errorf("%s with the largest outcome = %d bytes, %v, want it recorded", key, len(e.Response), err)
		}
	}
	// All else that an effect may have, as JSON six times as long.
	odd := func(n int) string { return strings.Repeat("\x01", n) }
	begun, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{
		Run: r.ID, CustomKey: "outbox", Tool: names[:len(names)-200], Connector: "bank", Request: text(tape.MaxRequest), Mode: tape.Outbox,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tp.RecordDispatchAttempt(t.Context(), tape.DispatchReport{
		Run: r.ID, Key: begun.Key, Error: odd(tape.MaxDispatchError), Next: time.UnixMilli(1),
	}); err != nil {
		t.Errorf("RecordDispatchAttempt with the largest error = %v", err)
	}
	if _, acquired, _, err := tp.ClaimEffectDispatch(t.Context(), r.ID, begun.Key, tape.ClaimRequest{Claimer: odd(tape.MaxClaimer)}); !acquired || err != nil {
		t.Errorf("ClaimEffectDispatch with the longest name = %t, %v", acquired, err)
	}
	seen := tape.Observation{Run: r.ID, Key: begun.Key, ExternalRef: odd(tape.MaxExternalRef), Response: text(tape.MaxOutcome)}
	if _, err := tp.RecordExternalObservation(t.Context(), seen); err != nil {
		t.Errorf("RecordExternalObservation with the largest texts = %v", err)
	}
	outcome := tape.OutcomeRequest{Run: r.ID, Key: begun.Key, Status: tape.EffectConfirmed, Response: text(tape.MaxOutcome)}
	if e, err := tp.ReconcileEffect(t.Context(), outcome); err != nil || e.Response != outcome.Response || len(e.ExternalRef) != tape.MaxExternalRef {
		t.Errorf("ReconcileEffect of the largest effect = %d bytes, %v, want it recorded", len(e.Response), err)
	}
	if _, err := tp.EndRun(t.Context(), tape.EndRunRequest{Run: r.ID, Status: tape.RunFailed, Detail: text(tape.MaxDetail)}); err != nil {
		t.Errorf("EndRun with the largest detail = %v", err)
	}
}

// TestLargeListsEndEarly fills lists with entries of each size. A list ends where the next
// entry would make it larger than 4 MiB, and holds as many as fit.
func TestLargeListsEndEarly(t *testing.T) {
	t.Parallel()
	const answer = 4 << 20
	for _, c := range []struct {
		name         string
		n, key, text int
		least, most  int
	}{
		{"large texts", 3, 10, tape.MaxRequest, 2, 2},
		{"long keys", 5000, 1000, 0, answer / 2000, answer / 1040},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tp, _, _ := newTape(t)
			r := begin(t, tp, "i")
			for i := range c.n {
				req := tape.BeginEffectRequest{
					Run: r.ID, CustomKey: fmt.Sprintf("%0*d", c.key, i), Request: strings.Repeat("x", c.text),
				}
				if _, err := tp.BeginEffect(t.Context(), req); err != nil {
					t.Fatal(err)
				}
			}
			effects, err := tp.ListPendingEffects(t.Context(), tape.PendingQuery{Limit: c.n})
			if n := len(effects); err != nil || n < c.least || n > c.most {
				t.Errorf("%d effects, %v; want %d to %d, to fit into one answer", n, err, c.least, c.most)
			}
		})
	}
	t.Run("runs", func(t *testing.T) {
		t.Parallel()
		tp, _, store := newTape(t)
		for i := range 17 {
			req := beginRequest(fmt.Sprint(i))
			req.Identity.Labels["k"] = strings.Repeat("x", tape.MaxRunNames-500)
			if _, err := tp.BeginRun(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		store.Advance(time.Hour)
		if runs, err := tp.ListRunsToRecover(t.Context(), time.Time{}, 17); err != nil || len(runs) != 16 {
			t.Errorf("%d runs, %v, want 16, to fit into one answer", len(runs), err)
		}
	})
}

// TestOneValueHidesNoOthers lists beside values that cannot be read or answered. They are
// logged, and the others are listed.
func TestOneValueHidesNoOthers(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	s := store.Open()
	defer func() { _ = s.Close() }()
	var log bytes.Buffer
	tp := tape.New(s, &tape.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	bad := begin(t, tp, "bad")
	put := func(key runstore.RecordKey, value string, places ...runstore.Place) {
		t.Helper()
		b := runstore.NewBatch(bad.ID, runstore.Unguarded("test"))
		b.Put(key, []byte(value), places...)
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	pending := runstore.Place{Index: tape.IndexPending, At: runstore.After(0)}
	put("effect/newer", `{"v":2}`+"\n", pending)
	const half = 2_090_000
	put("effect/large", fmt.Sprintf(`{"v":1,"b":[%d,%d,0],"h":{"status":1,"tool":%q}}`+"\n%s", half, half, strings.Repeat("t", 14_200),
		strings.Repeat("x", 2*half)), pending)
	put(runstore.SummaryKey, `{"v":2}`+"\n")
	good := begin(t, tp, "good")
	if _, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: good.ID, CustomKey: "K"}); err != nil {
		t.Fatal(err)
	}
	store.Advance(time.Hour)
	effects, err := tp.ListPendingEffects(t.Context(), tape.PendingQuery{})
	if err != nil || len(effects) != 1 || effects[0].Key != "K" {
		t.Errorf("%d effects, %v, want the one of the good run", len(effects), err)
	}
	runs, err := tp.ListRunsToRecover(t.Context(), time.Time{}, 0)
	if err != nil || len(runs) != 1 || runs[0].ID != good.ID {
		t.Errorf("%d runs, %v, want the good one", len(runs), err)
	}
	for _, want := range []string{"record=effect/newer", "record=effect/large", "run=" + string(bad.ID)} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not name %s: %s", want, log.String())
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 3 {
		t.Errorf("%d lines of log, want 3", n)
	}
}
