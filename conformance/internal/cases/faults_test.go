package cases

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// unanswered is a network whose server answers no request that was held.
type unanswered struct{ harness.Faults }

func (unanswered) AwaitAnswered(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestUnansweredRequests checks that a held request without an answer fails a case, unless the
// harness says that there may be such requests: then the report says that they were left out.
func TestUnansweredRequests(t *testing.T) {
	t.Parallel()
	for _, may := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New(nil)
			var leftOut []string
			failed, messages := harness.RunPlain(t.Context(), "case", func(p harness.T) {
				open := func(context.Context) (runstore.RunStore, error) { return store.Open(), nil }
				e := harness.NewEnv(p, harness.Harness{New: func(harness.T) harness.Instance { return harness.Instance{Open: open} }}, harness.Case{})
				defer func() { leftOut = e.LeftOut() }()
				network{Network: harness.Network{Faults: unanswered{}, MayLeaveUnanswered: may}, e: e}.awaitAnswered(p)
			})
			want := "[]"
			if may {
				want = "[the effects of requests without an answer]"
			}
			if failed == may || fmt.Sprint(leftOut) != want {
				t.Errorf("MayLeaveUnanswered %t: failed %t with %q, left out %q; want failed %t, left out %s", may, failed, messages, leftOut, !may, want)
			}
		})
	}
}
