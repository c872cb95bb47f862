package tapeclient_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Obligations are met once, tried again after a failure, and STUCK after a refusal.
func TestResolveObligations(t *testing.T) {
	for _, lost := range []string{"", "ClaimObligation", "ResolveObligation", "RecordObligationAttempt"} {
		t.Run("lost "+lost, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				agent, _ := f.client("agent")
				id := abandon(t, agent, func(ctx context.Context, run *tapeclient.Run) error {
					for _, kind := range []string{"undo", "fails once", "refused"} {
						if _, err := run.Tape().RegisterCompensation(ctx, &tapepb.RegisterCompensationRequest{RunId: run.ID(), Kind: kind}); err != nil {
							return err
						}
					}
					return nil
				})
				var calls tally
				worker := func(owner string) func(ctx context.Context) error {
					c, net := f.client(owner)
					net.once(lost, replyLost)
					return func(ctx context.Context) error {
						return c.ResolveObligations(ctx, tapeclient.Loop{}, func(_ context.Context, o *tapepb.ObligationRecord) (string, error) {
							n := calls.add(o.GetKind())
							switch {
							case o.GetKind() == "refused":
								return "", tapeclient.ErrPermanent
							case o.GetKind() == "fails once" && n == 1:
								return "", errors.New("timeout")
							}
							return `"undone"`, nil
						})
					}
				}
				loops(t, 30*time.Second, worker("comp:1"), worker("comp:2"))
				all, err := agent.Tape().ListObligations(t.Context(), &tapepb.ListObligationsRequest{RunId: id})
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range all.GetObligations() {
					status, attempts, handled := tapepb.ObligationStatus_OBLIGATION_STATUS_COMPENSATED, int32(0), 1
					switch o.GetKind() {
					case "fails once":
						attempts, handled = 1, 2
					case "refused":
						status, attempts = tapepb.ObligationStatus_OBLIGATION_STATUS_STUCK, 1
					}
					if o.GetStatus() != status || o.GetAttempts() != attempts || calls.seen[o.GetKind()] != handled {
						t.Errorf("%s: %v after %d attempts and %d calls, want %v, %d and %d",
							o.GetKind(), o.GetStatus(), o.GetAttempts(), calls.seen[o.GetKind()], status, attempts, handled)
					}
				}
			})
		})
	}
}

// A compensation that was not recorded is an error of the loop: its claim had lapsed, and another worker has
// compensated too, or is about to.
func TestCompensationThatIsNotRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration // the time that the other worker takes
		want  string
	}{"compensated twice": {0, "under claim 1"}, "claimed again": {time.Minute / 2, "COMMITTED"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := serve(t, required())
				late, _ := f.client("late")
				next, _ := f.client("next")
				abandon(t, late, func(ctx context.Context, run *tapeclient.Run) error {
					_, err := run.Tape().RegisterCompensation(ctx, &tapepb.RegisterCompensationRequest{RunId: run.ID(), Kind: "undo"})
					return err
				})
				var errs []error
				loops(t, 100*time.Second, func(ctx context.Context) error {
					l := tapeclient.Loop{OnError: func(err error) { errs = append(errs, err) }}
					return late.ResolveObligations(ctx, l, func(ctx context.Context, _ *tapepb.ObligationRecord) (string, error) {
						<-ctx.Done()
						time.Sleep(20 * time.Second) // it does not stop
						return `"late"`, nil
					})
				}, func(ctx context.Context) error {
					time.Sleep(5 * time.Second)
					return next.ResolveObligations(ctx, tapeclient.Loop{}, func(context.Context, *tapepb.ObligationRecord) (string, error) {
						time.Sleep(c.takes)
						return `"next"`, nil
					})
				})
				if len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want) {
					t.Errorf("errors %v, want one that contains %q", errs, c.want)
				}
			})
		})
	}
}
