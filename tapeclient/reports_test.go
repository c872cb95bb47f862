package tapeclient_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// texts are errors that the protocol or a server would refuse.
var texts = map[string]string{"not UTF-8": "Gel\xf6scht", "long": strings.Repeat("x", 5_000_000), "long as JSON": strings.Repeat("\x00", 1_000_000)}

// The attempts of a compensation count, and a refusal makes its obligation STUCK, also with such a text.
func TestReportsOfCompensations(t *testing.T) {
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				agent, _ := f.client("agent")
				id := abandon(t, agent, func(ctx context.Context, run *tapeclient.Run) error {
					for _, kind := range []string{"refused", "fails"} {
						if _, err := run.Tape().RegisterCompensation(ctx, &tapepb.RegisterCompensationRequest{RunId: run.ID(), Kind: kind, MaxAttempts: 3}); err != nil {
							return err
						}
					}
					return nil
				})
				var calls tally
				worker, _ := f.client("comp:1")
				loops(t, 10*time.Minute, func(ctx context.Context) error {
					return worker.ResolveObligations(ctx, tapeclient.Loop{}, func(_ context.Context, o *tapepb.ObligationRecord) (string, error) {
						calls.add(o.GetKind())
						if o.GetKind() == "refused" {
							return "", fmt.Errorf("%w: %s", tapeclient.ErrPermanent, text)
						}
						return "", errors.New(text)
					})
				})
				all, err := agent.Tape().ListObligations(t.Context(), &tapepb.ListObligationsRequest{RunId: id})
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range all.GetObligations() {
					want := map[string]int{"refused": 1, "fails": 3}[o.GetKind()]
					if o.GetStatus() != tapepb.ObligationStatus_OBLIGATION_STATUS_STUCK || int(o.GetAttempts()) != want || calls.seen[o.GetKind()] != want {
						t.Errorf("%s: %v after %d calls and %d attempts, want STUCK after %d", o.GetKind(), o.GetStatus(), calls.seen[o.GetKind()], o.GetAttempts(), want)
					}
				}
			})
		})
	}
}

// An effect is FAILED after a refusal, and due again after Loop.Retry if it was not sent, also with such a
// text.
func TestReportsOfDispatches(t *testing.T) {
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				agent, _ := f.client("agent")
				id := outbox(t, agent, 2, tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT)
				worker, _ := f.client("out:1")
				loops(t, 35*time.Second, func(ctx context.Context) error {
					return worker.DispatchEffects(ctx, tapeclient.Loop{}, "", func(_ context.Context, e *tapepb.EffectRecord) (string, error) {
						if e.GetIdempotencyKey() == "0" {
							return "", fmt.Errorf("%w: %s", tapeclient.ErrPermanent, text)
						}
						return "", fmt.Errorf("%w: %s", tapeclient.ErrNotSent, text)
					})
				})
				if e := effect(t, agent, id, "0"); e.GetStatus() != failed {
					t.Errorf("the refused effect is %v, want FAILED", e.GetStatus())
				}
				if e := effect(t, agent, id, "1"); e.GetStatus() != pending || e.GetDispatchAttempts() < 2 {
					t.Errorf("the effect that was not sent is %v after %d attempts, want PENDING after two or more", e.GetStatus(), e.GetDispatchAttempts())
				}
			})
		})
	}
}

// A compensation that was not sent is no attempt: the handler is called again, more often than the obligation has
// attempts, until it can call the counterparty.
func TestCompensationThatWasNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		agent, _ := f.client("agent")
		id := abandon(t, agent, func(ctx context.Context, run *tapeclient.Run) error {
			_, err := run.Tape().RegisterCompensation(ctx, &tapepb.RegisterCompensationRequest{RunId: run.ID(), Kind: "undo", MaxAttempts: 3})
			return err
		})
		var calls tally
		var errs []error
		worker, _ := f.client("comp:1")
		loops(t, 10*time.Minute, func(ctx context.Context) error {
			l := tapeclient.Loop{OnError: func(err error) { errs = append(errs, err) }}
			return worker.ResolveObligations(ctx, l, func(context.Context, *tapepb.ObligationRecord) (string, error) {
				if calls.add("undo") <= 5 {
					return "", fmt.Errorf("%w: connection refused", tapeclient.ErrNotSent)
				}
				return `"undone"`, nil
			})
		})
		all, err := agent.Tape().ListObligations(t.Context(), &tapepb.ListObligationsRequest{RunId: id})
		if err != nil {
			t.Fatal(err)
		}
		o := all.GetObligations()[0]
		if o.GetStatus() != tapepb.ObligationStatus_OBLIGATION_STATUS_COMPENSATED || o.GetAttempts() != 0 || calls.seen["undo"] != 6 {
			t.Errorf("%v after %d calls and %d attempts, want COMPENSATED after 6 calls and no attempt", o.GetStatus(), calls.seen["undo"], o.GetAttempts())
		}
		if len(errs) != 5 || !errors.Is(errs[0], tapeclient.ErrNotSent) {
			t.Errorf("errors %v, want 5 that match ErrNotSent", errs)
		}
	})
}
