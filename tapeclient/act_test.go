package tapeclient_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// servers are those that answer the run and the mode of an effect, and those that do not.
var servers = map[string]bool{"": false, " on an older server": true}

// An effect of the outbox is recorded and not called, also where BeginEffect returns an effect that was
// begun with other fields: that of another run's business key, or of an earlier version of the work.
func TestActCallsNoEffectOfTheOutbox(t *testing.T) {
	for server, older := range servers {
		for name, business := range map[string]string{"same key in the run": "", "business key of another run": "invoice-7"} {
			t.Run(name+server, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := serve(t, required())
					client, net := f.client("driver:1")
					net.older.Store(older)
					calls := 0
					begin(t, client, func(ctx context.Context, run *tapeclient.Run) error {
						e, err := run.Act(ctx, &tapepb.BeginEffectRequest{
							ToolName: "pay", Connector: "bank", BusinessKey: business, Scope: "pay",
							Semantics:    tapepb.EffectSemantics_EFFECT_SEMANTICS_NON_IDEMPOTENT,
							DispatchMode: tapepb.EffectDispatchMode_EFFECT_DISPATCH_MODE_OUTBOX,
						}, paid(&calls))
						if err != nil || e.Status != pending {
							t.Errorf("Act = %+v, %v, want PENDING", e, err)
						}
						return nil
					})
					req := beginRequest()
					if business != "" {
						req.InvocationId = "2"
					}
					err := client.Begin(t.Context(), req, func(ctx context.Context, run *tapeclient.Run) error {
						inline := pay()
						inline.Connector, inline.BusinessKey = "bank", business
						e, err := run.Act(ctx, inline, paid(&calls))
						// An older server does not answer the mode of another run's effect.
						if unsettled := older && business != ""; e.Status != pending || errors.Is(err, tapeclient.ErrUnsettled) != unsettled || !unsettled && err != nil {
							t.Errorf("Act inline = %+v, %v, want PENDING", e, err)
						}
						return nil
					})
					if err != nil || calls != 0 {
						t.Errorf("Begin = %v, %d calls of an effect that a dispatcher calls, want none", err, calls)
					}
				})
			})
		}
	}
}

// The effect of a business key is the run's that began it: a second run does not call too, while the
// first one's driver may be calling. It reads the outcome once that is on record.
func TestActCallsNoEffectOfAnotherRun(t *testing.T) {
	for server, older := range servers {
		t.Run("another run"+server, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				one, net1 := f.client("driver:1")
				two, net2 := f.client("driver:2")
				net1.older.Store(older)
				net2.older.Store(older)
				// Both runs have an effect of that key, so that it does not say which run's it is.
				req := func(business string) *tapepb.BeginEffectRequest {
					r := pay()
					r.Connector, r.BusinessKey, r.CustomKey = "bank", business, "k"
					return r
				}
				calls, other := 0, 0
				second := func(work tapeclient.Work) {
					r := beginRequest()
					r.InvocationId = "2"
					if err := two.Begin(t.Context(), r, work); err != nil {
						t.Error(err)
					}
				}
				begin(t, one, func(ctx context.Context, run *tapeclient.Run) error {
					e, err := run.Act(ctx, req("invoice-7"), func(context.Context, string) (string, error) {
						calls++
						second(func(ctx context.Context, run *tapeclient.Run) error {
							if _, err := run.Act(ctx, req(""), paid(&other)); err != nil || other != 1 {
								t.Errorf("Act of an effect of its own = %v, %d calls, want 1", err, other)
							}
							later := req("invoice-7")
							later.CustomKey = "later"
							e, err := run.Act(ctx, later, paid(&calls))
							if e.Key != "k" || e.Status != pending || !errors.Is(err, tapeclient.ErrUnsettled) {
								t.Errorf("the second run's Act = %+v, %v, want PENDING and ErrUnsettled", e, err)
							}
							return nil
						})
						return `"paid"`, nil
					})
					if err != nil || e.Status != confirmed {
						t.Errorf("Act = %+v, %v, want CONFIRMED", e, err)
					}
					return nil
				})
				second(func(ctx context.Context, run *tapeclient.Run) error {
					later := req("invoice-7")
					later.CustomKey = "later"
					e, err := run.Act(ctx, later, paid(&calls))
					if err != nil || e.Status != confirmed || !e.Replayed {
						t.Errorf("Act once the first run's is confirmed = %+v, %v, want its outcome", e, err)
					}
					return nil
				})
				if calls != 1 {
					t.Errorf("%d calls for one business key, want 1", calls)
				}
			})
		})
	}
}

// An effect that became UNKNOWN during the call stays so, and Act says that its outcome is open.
func TestActOfAnEffectThatBecameUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, _ := f.client("driver:1")
		begin(t, c, func(ctx context.Context, run *tapeclient.Run) error {
			e, err := run.Act(ctx, pay(), func(ctx context.Context, key string) (string, error) {
				_, err := run.Tape().CompleteEffect(ctx, &tapepb.CompleteEffectRequest{
					RunId: run.ID(), IdempotencyKey: key, Status: tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN,
				})
				return `"paid"`, err
			})
			if e.Status != tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN || !errors.Is(err, tapeclient.ErrUnsettled) {
				t.Errorf("Act = %+v, %v, want UNKNOWN and ErrUnsettled", e, err)
			}
			return nil
		})
	})
}
