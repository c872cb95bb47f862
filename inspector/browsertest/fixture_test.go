package browsertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// hostile is markup that runs a script wherever a page treats it as markup, and characters that change
// the direction of writing.
const hostile = `<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>` + "\u202e\x1b[31m"

// store is a store with runs as an on-call engineer finds them. Its clock begins at a fixed time, so
// that screenshots differ only in what the page has changed.
type store struct {
	*memory.Handle
	engine   *memory.Store
	incident runstore.RunID // a run that needs attention
}

func newStore(t *testing.T) *store {
	t.Helper()
	began := time.Now()
	engine := memory.New(&memory.Options{Clock: func() time.Time {
		return time.Date(2026, 3, 14, 3, 2, 11, 0, time.UTC).Add(time.Since(began))
	}})
	s := &store{Handle: engine.Open(), engine: engine}
	t.Cleanup(func() { _ = s.Close() })
	s.old(t)
	s.evil(t)
	engine.Advance(6 * time.Hour)
	s.crowd(t)
	s.incident = s.recovered(t)
	return s
}

func must[R any](t *testing.T) func(R, error) R {
	return func(r R, err error) R {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// old creates a run with a long journal, and one with a binary and a large value.
func (s *store) old(t *testing.T) {
	t.Helper()
	spec := runstore.RunSpec{ID: "ledger-import", Lease: &runstore.LeaseSpec{Owner: "import-1", Reactor: "agent", TTL: time.Minute}}
	created := must[runstore.Created](t)(s.CreateRun(t.Context(), spec))
	for i := range 13 {
		b := runstore.NewBatch(spec.ID, created.Lease.Fence())
		for j := range 10 {
			b.Append("line", fmt.Appendf(nil, `{"line":%d,"status":"imported"}`, i*10+j+1))
		}
		b.Put(runstore.RecordKey(fmt.Sprintf("progress/%02d", i)), fmt.Appendf(nil, `{"done":%d}`, (i+1)*10))
		must[runstore.Committed](t)(s.Commit(t.Context(), b))
	}
	b := runstore.NewBatch(spec.ID, created.Lease.Fence())
	b.Append("raw", []byte{0, 1, 2, 0xff, 0xfe})
	b.Append("report", []byte(`{"rows":"`+strings.Repeat("0123456789", 400)+`END"}`))
	b.Release = true
	must[runstore.Committed](t)(s.Commit(t.Context(), b))
}

// crowd creates enough runs for three pages.
func (s *store) crowd(t *testing.T) {
	t.Helper()
	tapes := tape.New(s, nil)
	for i := range 120 {
		key := tape.RunKey{App: "support", User: fmt.Sprintf("customer-%02d", i%17), Session: "chat", Invocation: fmt.Sprintf("turn-%03d", i)}
		begun, err := tapes.BeginRun(t.Context(), tape.BeginRunRequest{Key: key, Owner: fmt.Sprintf("agent-%d", i%4), TTL: 2 * time.Minute, Identity: tape.Identity{Tenant: []string{"north", "south"}[i%2]}})
		if err != nil {
			t.Fatal(err)
		}
		status := tape.RunTerminal
		if i%29 == 7 {
			status = tape.RunFailed
		}
		if i < 116 {
			must[tape.Run](t)(tapes.EndRun(t.Context(), tape.EndRunRequest{Run: key.ID(), Status: status, Fence: begun.Lease.Fence()}))
		}
		s.engine.Advance(3 * time.Second)
	}
}

// recovered creates a run whose first driver was lost: a recovery worker holds it, an effect has an
// unknown outcome, and an obligation is stuck.
func (s *store) recovered(t *testing.T) runstore.RunID {
	t.Helper()
	tapes := tape.New(s, nil)
	key := tape.RunKey{App: "billing", User: "acme", Session: "march", Invocation: "close-books"}
	begun, err := tapes.BeginRun(t.Context(), tape.BeginRunRequest{Key: key, Owner: "agent-7f9c", TTL: 30 * time.Second, Identity: tape.Identity{Tenant: "acme-eu"}})
	if err != nil {
		t.Fatal(err)
	}
	id, fence := key.ID(), begun.Lease.Fence()
	must[tape.Budget](t)(tapes.SetBudget(t.Context(), tape.BudgetCaps{Run: id, USD: 20, Tokens: 200_000, Fence: fence}))
	must[tape.Decision](t)(tapes.RecordDecision(t.Context(), id, tape.Decision{
		Model: "planner-2", Request: `{"prompt":"close the books of march"}`, Response: `{"plan":["fetch invoices","charge the card","notify"]}`,
	}, fence))
	fetch := must[tape.Effect](t)(tapes.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: id, Tool: "erp.invoices", Semantics: tape.ObserveOnly, Request: `{"month":"2026-03"}`, Fence: fence}))
	s.engine.Advance(2 * time.Second)
	must[tape.Effect](t)(tapes.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: id, Key: fetch.Key, Status: tape.EffectConfirmed, Response: `{"invoices":41,"total":"18250.00"}`, Fence: fence}))
	must[tape.Budget](t)(tapes.ChargeBudget(t.Context(), tape.BudgetCharge{Run: id, USD: 3.25, Tokens: 48_211, Fence: fence}))
	charge := must[tape.Effect](t)(tapes.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: id, Tool: "card.charge", CustomKey: "charge/acme/2026-03", Request: `{"amount":"18250.00","currency":"EUR"}`, Fence: fence}))
	must[tape.Timer](t)(tapes.SetTimer(t.Context(), tape.Timer{Run: id, ID: "dunning", Kind: "reminder", FireAtMS: must[time.Time](t)(s.Now(t.Context())).Add(48 * time.Hour).UnixMilli(), Payload: `{"to":"acme"}`}, fence))
	s.engine.Advance(3 * time.Minute)
	next, err := tapes.BeginRun(t.Context(), tape.BeginRunRequest{Key: key, Owner: "recovery-2b41", Reactor: "recovery", TTL: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	fence = next.Lease.Fence()
	must[tape.Effect](t)(tapes.CompleteEffect(t.Context(), tape.OutcomeRequest{Run: id, Key: charge.Key, Status: tape.EffectUnknown, Error: `"connection reset after the request was sent"`, Fence: fence}))
	duty := must[tape.Obligation](t)(tapes.RegisterCompensation(t.Context(), tape.Compensation{Run: id, EffectKey: charge.Key, Kind: "refund", Compensator: "billing.refund", Payload: `{"amount":"18250.00"}`, MaxAttempts: 1, Fence: fence}))
	s.engine.Advance(4 * time.Second)
	must[tape.Obligation](t)(tapes.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{Run: id, Seq: duty.Seq, Error: "the gateway answers 503", Fence: fence}))
	s.engine.Advance(9 * time.Second)
	return id
}

// evil creates a run in which every text is hostile.
func (s *store) evil(t *testing.T) {
	t.Helper()
	spec := runstore.RunSpec{ID: hostile, Lease: &runstore.LeaseSpec{Owner: hostile, Reactor: hostile, TTL: time.Minute}}
	spec.Writes.Append(hostile, []byte(`{"status":"`+"<img src=x onerror='window.pwned=1'>"+`"}`))
	spec.Writes.Append("event", []byte(hostile))
	spec.Writes.Put(hostile, []byte(hostile))
	must[runstore.Created](t)(s.CreateRun(t.Context(), spec))
}
