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

// A compensation that was not recorded is an error of the loop: another caller had given the
// obligation up meanwhile.
func TestCompensationThatIsNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, _ := f.client("comp:1")
		id := abandon(t, c, func(ctx context.Context, run *tapeclient.Run) error {
			_, err := run.Tape().RegisterCompensation(ctx, &tapepb.RegisterCompensationRequest{RunId: run.ID(), Kind: "undo"})
			return err
		})
		var errs []error
		loops(t, 5*time.Second, func(ctx context.Context) error {
			l := tapeclient.Loop{OnError: func(err error) { errs = append(errs, err) }}
			return c.ResolveObligations(ctx, l, func(ctx context.Context, o *tapepb.ObligationRecord) (string, error) {
				_, err := c.Tape().ResolveObligation(ctx, &tapepb.ResolveObligationRequest{
					RunId: id, ObligationSeq: o.GetSeq(), Status: tapepb.ObligationStatus_OBLIGATION_STATUS_STUCK,
				})
				return `"undone"`, err
			})
		})
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), "STUCK") {
			t.Errorf("errors %v, want one that names the obligation's state", errs)
		}
	})
}
