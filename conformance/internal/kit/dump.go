package kit

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/runstore"
)

// Dump returns everything that the store reports about a run, byte for byte, without the times:
// those differ between two runs of the same scenario.
func Dump(t harness.T, s runstore.RunStore, id runstore.RunID, indexes ...runstore.IndexName) string {
	t.Helper()
	return DumpAll(t, s, []runstore.RunID{id}, indexes...)
}

// DumpAll returns the dumps of several runs, one after the other, and scans each index once.
func DumpAll(t harness.T, s runstore.RunStore, ids []runstore.RunID, indexes ...runstore.IndexName) (all string) {
	t.Helper()
	texts := dumpExisting(t, s, ids, indexes...)
	for _, id := range ids {
		text, exists := texts[id]
		if !exists {
			t.Fatalf("there is no run %q", id)
		}
		all += text
	}
	return all
}

// DumpIfAny is Dump for a run that may not exist.
func DumpIfAny(t harness.T, s runstore.RunStore, id runstore.RunID, indexes ...runstore.IndexName) (text string, exists bool) {
	t.Helper()
	text, exists = dumpExisting(t, s, []runstore.RunID{id}, indexes...)[id]
	return text, exists
}

// dumpExisting returns the dumps of those of the runs that exist.
func dumpExisting(t harness.T, s runstore.RunStore, ids []runstore.RunID, indexes ...runstore.IndexName) map[runstore.RunID]string {
	t.Helper()
	texts := map[runstore.RunID]string{}
	for _, id := range ids {
		if text, exists := dumpRun(t, s, id); exists {
			texts[id] = text
		}
	}
	for _, name := range indexes {
		if len(texts) == 0 {
			break
		}
		entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: name, Until: runstore.EndOfTime, Limit: runstore.MaxPage})
		checkOnePage(t, "index "+string(name), len(entries), err)
		for _, entry := range entries {
			if text, exists := texts[entry.Run]; exists {
				texts[entry.Run] = text + fmt.Sprintf("index %q %q v%d\n", name, entry.Record.Key, entry.Record.Version)
			}
		}
	}
	return texts
}

// dumpRun returns what is read of a run by its id, if the run exists.
func dumpRun(t harness.T, s runstore.RunStore, id runstore.RunID) (text string, exists bool) {
	t.Helper()
	var b bytes.Buffer
	run, err := s.GetRun(t.Context(), id)
	if errors.Is(err, runstore.ErrNotFound) {
		return "", false
	}
	if err != nil {
		t.Fatalf("get run %q: %v", id, err)
	}
	fmt.Fprintf(&b, "run status=%d seq=%d token=%d holder=%q/%q/%d/%t/%q runnable=%t summary=%d:%q\n",
		run.Status, run.LastSeq, run.Token, run.Holder.Owner, run.Holder.Reactor, run.Holder.Token, run.Holder.Strict,
		run.Holder.Preempted, !run.RunnableAt.IsZero(), run.Summary.Version, run.Summary.Value)
	// The run is small, so each read is one page. Reading a second page, only to see that it is
	// empty, would double the requests of the busiest cases.
	events, err := s.ReadJournal(t.Context(), id, 1, runstore.MaxPage)
	checkOnePage(t, "journal", len(events), err)
	for _, e := range events {
		fmt.Fprintf(&b, "event %d %q %q token=%d owner=%q\n", e.Seq, e.Kind, e.Data, e.Token, e.Owner)
	}
	records, err := s.ReadRecords(t.Context(), id, runstore.RecordQuery{Limit: runstore.MaxPage})
	checkOnePage(t, "records", len(records), err)
	for _, r := range records {
		fmt.Fprintf(&b, "record %q v%d %q created=%d updated=%d\n", r.Key, r.Version, r.Value, r.Created.Seq, r.Updated.Seq)
	}
	return b.String(), true
}

// checkOnePage fails the case unless a page of n entries holds all entries.
func checkOnePage(t harness.T, what string, n int, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if n == runstore.MaxPage {
		t.Fatalf("%s: a page of %d may not be all; dump less", what, n)
	}
}

// CheckUnchanged fails the case unless the dump after equals the dump before.
func CheckUnchanged(t harness.T, what, before, after string) {
	t.Helper()
	if before != after {
		t.Errorf("%s changed the run:\n--- before\n%s--- after\n%s", what, before, after)
	}
}
