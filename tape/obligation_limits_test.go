package tape_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func TestLimitsOfObligations(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	o := register(t, tp, r.ID, "E", "K", 0)
	before := historyOf(t, s, r.ID)
	huge := strings.Repeat("x", 3<<20)
	compensation := func(c tape.Compensation) error {
		c.Run = r.ID
		_, err := tp.RegisterCompensation(t.Context(), c)
		return err
	}
	claim := func(c tape.ObligationClaimRequest) error {
		c.Run, c.Seq = r.ID, o.Seq
		_, err := tp.ClaimObligation(t.Context(), c)
		return err
	}
	attempt := func(a tape.ObligationAttempt) error {
		a.Run, a.Seq = r.ID, o.Seq
		_, err := tp.RecordObligationAttempt(t.Context(), a)
		return err
	}
	resolve := func(text string) error {
		_, err := tp.ResolveObligation(t.Context(), tape.ObligationResult{Run: r.ID, Seq: o.Seq, Result: text})
		return err
	}
	_, listErr := tp.ListObligations(t.Context(), tape.ObligationQuery{})
	for _, c := range []struct {
		err          error
		kind         error
		field, limit string
	}{
		{listErr, runstore.ErrInvalid, "run_id", "256"},
		{compensation(tape.Compensation{EffectKey: huge[:65_536]}), runstore.ErrTooLarge, "effect_key", "65536"},
		{compensation(tape.Compensation{Kind: huge[:65_536]}), runstore.ErrTooLarge, "kind", "65536"},
		{compensation(tape.Compensation{Kind: "a\x00b"}), runstore.ErrInvalid, "kind", "zero byte"},
		{compensation(tape.Compensation{Payload: huge[:2_000_001]}), runstore.ErrTooLarge, "payload_json", "2000000"},
		{compensation(tape.Compensation{Compensator: huge[:4097]}), runstore.ErrTooLarge, "compensator_ref", "4096"},
		{compensation(tape.Compensation{EffectKey: "\xff"}), runstore.ErrInvalid, "effect_key", "UTF-8"},
		{compensation(tape.Compensation{Kind: "\xff"}), runstore.ErrInvalid, "kind", "UTF-8"},
		{compensation(tape.Compensation{Payload: "\xff"}), runstore.ErrInvalid, "payload_json", "UTF-8"},
		{compensation(tape.Compensation{Compensator: "\xff"}), runstore.ErrInvalid, "compensator_ref", "UTF-8"},
		{claim(tape.ObligationClaimRequest{Claimer: huge[:1025]}), runstore.ErrTooLarge, "claimer", "1024"},
		{claim(tape.ObligationClaimRequest{Claimer: "\xff"}), runstore.ErrInvalid, "claimer", "UTF-8"},
		{claim(tape.ObligationClaimRequest{TTL: time.Microsecond}), runstore.ErrInvalid, "lease_ttl_ms", "limits are 1 and 86400000"},
		{claim(tape.ObligationClaimRequest{TTL: 24*time.Hour + 1}), runstore.ErrInvalid, "lease_ttl_ms", "limits are 1 and 86400000"},
		{attempt(tape.ObligationAttempt{Error: "\xff"}), runstore.ErrInvalid, "error", "UTF-8"},
		{attempt(tape.ObligationAttempt{Next: time.UnixMilli(0)}), runstore.ErrInvalid, "next_attempt_at_ms", "1970"},
		{attempt(tape.ObligationAttempt{Next: time.UnixMilli(1 << 62)}), runstore.ErrInvalid, "next_attempt_at_ms", "9999"},
		{resolve(huge[:1_000_001]), runstore.ErrTooLarge, "result_json", "1000000"},
		{resolve("\xff"), runstore.ErrInvalid, "result_json", "UTF-8"},
	} {
		var limit *runstore.InputError
		if !errors.As(c.err, &limit) || limit.Kind != c.kind || limit.Field != c.field || !strings.Contains(limit.Problem, c.limit) {
			t.Errorf("%v, want %v naming %s and %s", c.err, c.kind, c.field, c.limit)
		}
	}
	if after := historyOf(t, s, r.ID); !reflect.DeepEqual(before, after) {
		t.Errorf("refused input changed %+v to %+v", before, after)
	}
}

// A row at all of its limits, of the text that grows most in JSON, is stored and resolved.
func TestAnObligationAtItsLimitsCanBeResolved(t *testing.T) {
	t.Parallel()
	tp, _, _ := newTape(t)
	r := begin(t, tp, "i")
	const control = "\x01"
	o, err := tp.RegisterCompensation(t.Context(), tape.Compensation{
		Run: r.ID, EffectKey: strings.Repeat(control, 10_000), Kind: strings.Repeat("k", 5000),
		Payload: strings.Repeat(control, tape.MaxCompensation), Compensator: strings.Repeat(control, tape.MaxCompensator),
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := tp.ClaimObligation(t.Context(), tape.ObligationClaimRequest{
		Run: r.ID, Seq: o.Seq, Claimer: strings.Repeat(control, tape.MaxClaimer), TTL: 24 * time.Hour})
	if err != nil || !c.Acquired {
		t.Fatal(c.Acquired, err)
	}
	if _, err = tp.RecordObligationAttempt(t.Context(), tape.ObligationAttempt{
		Run: r.ID, Seq: o.Seq, Error: strings.Repeat(control, tape.MaxAttemptError+1), Next: runstore.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	o, err = tp.ResolveObligation(t.Context(), tape.ObligationResult{
		Run: r.ID, Seq: o.Seq, Status: tape.ObligationStuck, Result: strings.Repeat(control, tape.MaxResult)})
	if err != nil || len(o.LastError) != tape.MaxAttemptError || len(o.Result) != tape.MaxResult {
		t.Fatalf("ResolveObligation: %v, want an error of %d bytes and a result of %d", err, tape.MaxAttemptError, tape.MaxResult)
	}
	got, err := tp.ListUnresolvedObligations(t.Context(), tape.UnresolvedQuery{Stuck: true})
	if err != nil || len(got) != 1 || got[0] != o {
		t.Errorf("%d obligations, %v, want the one", len(got), err)
	}
}
