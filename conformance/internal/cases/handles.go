package cases

import (
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// handlesComeAndGo targets engines that take a lock when their first or last handle opens or
// closes.
func handlesComeAndGo(t harness.T, e *harness.Env) {
	const writers = 2
	comings, each := e.Scaled(t, "handles", 10, 25), e.Scaled(t, "commits of each writer", 15, 40)
	ctx := t.Context()
	e.Create(t, "run")
	churn := func() error {
		for i := range comings {
			s, err := e.Open(ctx)
			if err != nil {
				return fmt.Errorf("open handle %d: %w", i, err)
			}
			if _, err := s.GetRun(ctx, "run"); err != nil {
				return fmt.Errorf("get run by handle %d: %w", i, err)
			}
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Append("coming", nil)
			if _, err := s.Commit(ctx, b); err != nil {
				return fmt.Errorf("commit by handle %d: %w", i, err)
			}
			if err := s.Close(); err != nil {
				return fmt.Errorf("close handle %d: %w", i, err)
			}
		}
		return nil
	}
	stores := kit.OpenHandles(t, e, writers)
	kit.RunConcurrently(t, writers+2, func(i int) error {
		if i >= writers {
			return churn()
		}
		for n := range each {
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Append("event", nil)
			if _, err := stores[i].Commit(ctx, b); err != nil {
				return fmt.Errorf("commit %d: %w", n, err)
			}
			if _, err := stores[i].ReadJournal(ctx, "run", 1, 10); err != nil {
				return fmt.Errorf("read %d: %w", n, err)
			}
		}
		return nil
	})
	if want := runstore.Seq(2*comings + writers*each); e.Get(t, "run").LastSeq != want {
		t.Errorf("last seq: got %d, want %d", e.Get(t, "run").LastSeq, want)
	}
}
