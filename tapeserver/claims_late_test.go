package tapeserver_test

import (
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// TestLateReportOfAFailure checks that the report of a failed attempt, without a generation and after the
// claim has lapsed, leaves the claim of another process alone: a third process would else do the work at the
// same time. The report of a claim that is still the last one counts, and so does a report on a connection
// without the claim.
func TestLateReportOfAFailure(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	connect := connections(t, store.Open(), tapeserver.Options{})
	driver := connect()
	id := beginAs(t, driver, "A")
	if _, err := driver.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "wire", ToolName: "wire", DispatchMode: outbox}); err != nil {
		t.Fatal(err)
	}
	o, err := driver.RegisterCompensation(t.Context(), &tapepb.RegisterCompensationRequest{RunId: id, EffectKey: "wire", Kind: "undo"})
	if err != nil {
		t.Fatal(err)
	}
	now := func() int64 {
		at, err := store.Open().Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return at.UnixMilli()
	}
	for name, work := range map[string]struct {
		claim func(c tapepb.TapeClient) (bool, error)
		fail  func(c tapepb.TapeClient) (attempts int32, err error)
	}{
		"effect": {
			func(c tapepb.TapeClient) (bool, error) {
				r, err := c.ClaimEffectDispatch(t.Context(), &tapepb.ClaimEffectDispatchRequest{RunId: id, IdempotencyKey: "wire", LeaseTtlMs: 60_000})
				return r.GetAcquired(), err
			},
			func(c tapepb.TapeClient) (int32, error) {
				r, err := c.RecordDispatchAttempt(t.Context(), &tapepb.RecordDispatchAttemptRequest{RunId: id, IdempotencyKey: "wire", NextDispatchAtMs: now()})
				return r.GetDispatchAttempts(), err
			},
		},
		"obligation": {
			func(c tapepb.TapeClient) (bool, error) {
				r, err := c.ClaimObligation(t.Context(), &tapepb.ClaimObligationRequest{RunId: id, ObligationSeq: o.GetSeq(), LeaseTtlMs: 60_000})
				return r.GetAcquired(), err
			},
			func(c tapepb.TapeClient) (int32, error) {
				r, err := c.RecordObligationAttempt(t.Context(), &tapepb.RecordObligationAttemptRequest{RunId: id, ObligationSeq: o.GetSeq(), NextAttemptAtMs: now()})
				return r.GetAttempts(), err
			},
		},
	} {
		late, next, third := connect(), connect(), connect()
		claims := func(c tapepb.TapeClient, want bool) {
			t.Helper()
			if got, err := work.claim(c); err != nil || got != want {
				t.Errorf("%s: claim = %t, %v; want %t", name, got, err, want)
			}
		}
		fails := func(c tapepb.TapeClient, want int32) {
			t.Helper()
			if got, err := work.fail(c); err != nil || got != want {
				t.Errorf("%s: %d attempts, %v; want %d", name, got, err, want)
			}
		}
		claims(late, true)
		store.Advance(61 * time.Second)
		claims(next, true)
		for range 2 {
			fails(late, 0)
			claims(third, false)
		}
		fails(next, 1)
		fails(next, 2) // the claim was reported: the connection has none
		fails(late, 2)
		claims(third, true)
		fails(driver, 3)
		claims(third, true)
	}
}
