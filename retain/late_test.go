package retain_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
)

// A purge of unknown outcome may be applied late. If the store is away for the next try, before its commit or at it,
// the decision does not say that the run is surely there.
func TestPurgeThatIsAppliedLate(t *testing.T) {
	t.Parallel()
	for name, atCommit := range map[string]bool{"before the next commit": false, "at the next commit": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachEngine(t, func(t *testing.T, s runstore.RunStore, clock *clock) {
				endedRun(t, s, "run")
				clock.advance(window + day)
				must(s.CreateRun(t.Context(), runstore.RunSpec{ID: admin.OperationsRun, Unlisted: true}))(t)
				commits, reads := 0, 0 // reads of the head after the first purge
				var late func(context.Context) error
				cut := intercepted(s, func(ctx context.Context, op string, do func(context.Context) error) error {
					switch {
					case op == "commit":
						commits++
					case commits == 2 && op == "get":
						reads++
					default:
						return do(ctx)
					}
					switch {
					case op == "commit" && commits == 2: // the first is the intent
						late = do
						return &runstore.OpError{Op: op, Err: runstore.ErrUnknownOutcome, Cause: errors.New("cut by the test")}
					case op == "commit" && commits == 3 && atCommit, op == "get" && reads == 2 && !atCommit:
						must(0, late(ctx))(t)
						return &runstore.OpError{Op: op, Err: runstore.ErrUnavailable, Cause: errors.New("away")}
					}
					return do(ctx)
				})
				o := options(t)
				var got retain.Decision
				o.Decided = func(d retain.Decision) { got = d }
				report, err := retain.Pass(t.Context(), cut, o)
				if late == nil || exists(t, s, "run") || got.Purged || report.Failed != 1 {
					t.Fatalf("%+v, %v; want that the late purge is applied, and counts as a failure", report, err)
				}
				if runstore.OutcomeOf(got.Err) != runstore.Unknown || !errors.Is(got.Err, runstore.ErrUnavailable) {
					t.Errorf("got %v, want ErrUnavailable, of unknown outcome", got.Err)
				}
			})
		})
	}
}
