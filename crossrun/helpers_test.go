package crossrun_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// dying is a store whose process dies after so many commits. It is no
// MultiCommitter.
type dying struct {
	runstore.RunStore
	after int
}

func (s *dying) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.after == 0 {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Err: runstore.ErrUnknownOutcome, Cause: errDead}
	}
	s.after--
	return s.RunStore.Commit(ctx, b)
}

// content writes down a run, but for the times of commits.
func content(t *testing.T, s runstore.RunStore, id runstore.RunID) string {
	t.Helper()
	var b strings.Builder
	run, err := s.GetRun(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "%s status=%d held=%t never=%t\n", id, run.Status, run.Holder.Token != 0, run.RunnableAt.IsZero())
	for e, err := range runstore.Journal(t.Context(), s, id, 1) {
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%d %q %q token=%v\n", e.Seq, e.Kind, e.Data, e.Token)
	}
	for r, err := range runstore.Records(t.Context(), s, id, "") {
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%q=%q v%d seq=%d\n", r.Key, r.Value, r.Version, r.Updated.Seq)
	}
	for _, index := range []runstore.IndexName{"absolute", "relative"} {
		for e, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Run == id {
				fmt.Fprintf(&b, "%s %q after=%t %v\n", index, e.Record.Key, e.At.After(e.Record.Updated.Time), index == "relative" || e.At.Year() == 2030)
			}
		}
	}
	return b.String()
}
