package conformance

import (
	"bytes"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// dump writes down everything that the store tells about a run, byte for byte,
// but for the times, which differ between two runs of the same story.
func dump(t T, s runstore.RunStore, id runstore.RunID, indexes ...runstore.IndexName) string {
	t.Helper()
	var b bytes.Buffer
	run, err := s.GetRun(t.Context(), id)
	if err != nil {
		t.Fatalf("get run %q: %v", id, err)
	}
	fmt.Fprintf(&b, "run status=%d seq=%d token=%d holder=%q/%q/%d/%t/%q runnable=%t summary=%d:%q\n",
		run.Status, run.LastSeq, run.Token, run.Holder.Owner, run.Holder.Reactor, run.Holder.Token, run.Holder.Strict,
		run.Holder.Preempted, !run.RunnableAt.IsZero(), run.Summary.Version, run.Summary.Value)
	for e, err := range runstore.Journal(t.Context(), s, id, 1) {
		if err != nil {
			t.Fatalf("journal of %q: %v", id, err)
		}
		fmt.Fprintf(&b, "event %d %q %q token=%d owner=%q\n", e.Seq, e.Kind, e.Data, e.Token, e.Owner)
	}
	for r, err := range runstore.Records(t.Context(), s, id, "") {
		if err != nil {
			t.Fatalf("records of %q: %v", id, err)
		}
		fmt.Fprintf(&b, "record %q v%d %q created=%d updated=%d\n", r.Key, r.Version, r.Value, r.Created.Seq, r.Updated.Seq)
	}
	for _, name := range indexes {
		q := runstore.IndexQuery{Index: name, Until: runstore.EndOfTime}
		for entry, err := range runstore.Entries(t.Context(), s, q) {
			if err != nil {
				t.Fatalf("index %q: %v", name, err)
			}
			if entry.Run == id {
				fmt.Fprintf(&b, "index %q %q v%d\n", name, entry.Record.Key, entry.Record.Version)
			}
		}
	}
	return b.String()
}

// same fails the case unless the run is now as it was.
func same(t T, what, before, after string) {
	t.Helper()
	if before != after {
		t.Errorf("%s changed the run:\n--- before\n%s--- after\n%s", what, before, after)
	}
}
