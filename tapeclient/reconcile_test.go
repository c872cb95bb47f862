package tapeclient_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// A claim that lost its reply, and whose repeat finds the effect settled, is not acted under.
func TestClaimOfASettledEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, net := f.client("driver:1")
		id := outbox(t, c, 1, tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT)
		other, _ := f.client("reconciler:1")
		net.set(func(method string, n int) fault {
			if method != "ClaimEffectDispatch" {
				return none
			}
			if n == 1 {
				return replyLost
			}
			_, err := other.Tape().ReconcileEffect(context.Background(), &tapepb.ReconcileEffectRequest{
				RunId: id, IdempotencyKey: "0", ResolvedStatus: confirmed, ResponseJson: `"paid by hand"`,
			})
			if err != nil {
				t.Error(err)
			}
			return none
		})
		loops(t, 10*time.Second, func(ctx context.Context) error {
			return c.DispatchEffects(ctx, tapeclient.Loop{}, "", func(_ context.Context, e *tapepb.EffectRecord) (string, error) {
				t.Errorf("dispatched an effect that is %v", e.GetStatus())
				return `"paid"`, nil
			})
		})
		if n := net.count("ClaimEffectDispatch"); n != 2 {
			t.Errorf("%d claims, want one and its repeat", n)
		}
	})
}

// A report that is not taken, after the counterparty was called, is an error of the loop: nothing
// else says that the counterparty has acted.
func TestReportThatIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, _ := f.client("driver:1")
		other, _ := f.client("reconciler:1")
		id := outbox(t, c, 1, tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT)
		var errs []error
		loops(t, 10*time.Second, func(ctx context.Context) error {
			l := tapeclient.Loop{Claim: 1, OnError: func(err error) { errs = append(errs, err) }}
			return c.DispatchEffects(ctx, l, "", func(ctx context.Context, e *tapepb.EffectRecord) (string, error) {
				_, err := other.Tape().ReconcileEffect(ctx, &tapepb.ReconcileEffectRequest{
					RunId: id, IdempotencyKey: "0", ResolvedStatus: failed,
				})
				return `"paid"`, err
			})
		})
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), "CONFIRMED") || !strings.Contains(errs[0].Error(), "FAILED") {
			t.Errorf("errors %v, want one that names both outcomes", errs)
		}
	})
}

// A reconciler settles UNKNOWN effects and old PENDING ones, and asks again about what it could not
// find out, without keeping the others away.
func TestReconcileEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		agent, _ := f.client("agent")
		id := outbox(t, agent, 8, tapepb.EffectSemantics_EFFECT_SEMANTICS_IDEMPOTENT)
		for i := range 6 {
			_, err := agent.Tape().RecordDispatchAttempt(t.Context(), &tapepb.RecordDispatchAttemptRequest{RunId: id, IdempotencyKey: fmt.Sprint(i)})
			if err != nil {
				t.Fatal(err)
			}
		}
		var asked tally
		loops(t, 90*time.Second, func(ctx context.Context) error {
			return agent.ReconcileEffects(ctx, tapeclient.Loop{Claim: 1}, time.Minute, func(_ context.Context, e *tapepb.EffectRecord) (*tapepb.RecordExternalObservationRequest, error) {
				if n := asked.add(e.GetIdempotencyKey()); e.GetIdempotencyKey() == "0" && n < 3 {
					return nil, nil // not known yet
				}
				if e.GetStatus() == pending && time.Since(time.UnixMilli(e.GetTsMs())) < time.Minute {
					t.Error("asked about an effect that is PENDING for less than a minute")
				}
				return &tapepb.RecordExternalObservationRequest{
					Resolution: tapepb.EffectResolution_EFFECT_RESOLUTION_CONFIRMED, ExternalRef: "ref",
				}, nil
			})
		})
		for i := range 8 {
			if e := effect(t, agent, id, fmt.Sprint(i)); e.GetStatus() != confirmed || e.GetExternalRef() != "ref" {
				t.Errorf("effect %d is %v, want it CONFIRMED", i, e.GetStatus())
			}
		}
		if asked.seen["0"] != 3 || asked.seen["1"] != 1 {
			t.Errorf("asked %v, want 3 times about 0 and once about 1", asked.seen)
		}
	})
}

// A loop that found as much as it could handle does not ask again at once about effects that it finds
// again: those whose dispatch is claimed, and those that are STUCK.
func TestReconcilerPausesBeforeItAsksAgain(t *testing.T) {
	for resolution, claimed := range map[tapepb.EffectResolution]bool{
		tapepb.EffectResolution_EFFECT_RESOLUTION_ABSENT:      true,
		tapepb.EffectResolution_EFFECT_RESOLUTION_STUCK:       false,
		tapepb.EffectResolution_EFFECT_RESOLUTION_UNSPECIFIED: false,
	} {
		t.Run(resolution.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				c, _ := f.client("reconciler:1")
				id := outbox(t, c, 1, tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT)
				var err error
				if claimed {
					_, err = c.Tape().ClaimEffectDispatch(t.Context(), &tapepb.ClaimEffectDispatchRequest{
						RunId: id, IdempotencyKey: "0", Claimer: "busy", LeaseTtlMs: time.Hour.Milliseconds(),
					})
				} else {
					_, err = c.Tape().RecordDispatchAttempt(t.Context(), &tapepb.RecordDispatchAttemptRequest{RunId: id, IdempotencyKey: "0"})
				}
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Minute)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				var asked tally
				began := time.Now()
				_ = c.ReconcileEffects(ctx, tapeclient.Loop{Claim: 1}, time.Minute, func(context.Context, *tapepb.EffectRecord) (*tapepb.RecordExternalObservationRequest, error) {
					if asked.add("") == 3 {
						stop()
					}
					return &tapepb.RecordExternalObservationRequest{Resolution: resolution}, nil
				})
				if paused := time.Since(began); paused < time.Second {
					t.Errorf("asked three times within %v, want a pause of about 1 s before each look", paused)
				}
				if e := effect(t, c, id, "0"); claimed && (e.GetStatus() != pending || e.GetDispatchClaimedBy() != "busy") {
					t.Errorf("the effect is %v, want it claimed by the dispatcher that is at work", e)
				}
			})
		})
	}
}

// Effects about which nothing is known yet do not keep the others away, however many they are.
func TestReconcilerGetsPastUnknownEffects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, _ := f.client("driver:1")
		const unknown = 200 // as many as one list has
		begin(t, c, func(ctx context.Context, run *tapeclient.Run) error {
			for i := range unknown + 1 {
				key := fmt.Sprintf("%03d", i)
				if _, err := run.Tape().BeginEffect(ctx, &tapepb.BeginEffectRequest{RunId: run.ID(), ToolName: "pay", CustomKey: key}); err != nil {
					return err
				}
				_, err := run.Tape().CompleteEffect(ctx, &tapepb.CompleteEffectRequest{
					RunId: run.ID(), IdempotencyKey: key, Status: tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN,
				})
				if err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		var asked tally
		loops(t, 5*time.Minute, func(ctx context.Context) error {
			return c.ReconcileEffects(ctx, tapeclient.Loop{}, 0, func(_ context.Context, e *tapepb.EffectRecord) (*tapepb.RecordExternalObservationRequest, error) {
				asked.add(e.GetIdempotencyKey())
				return nil, nil
			})
		})
		if asked.seen[fmt.Sprint(unknown)] == 0 {
			t.Errorf("the effect behind %d others was never asked about", unknown)
		}
	})
}
