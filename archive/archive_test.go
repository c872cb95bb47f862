package archive_test

import (
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/lease/audit"
	"github.com/tapestore/tapestore/runstore"
)

// Random stores are exported and imported, from each of two engines into each, and verified. An audit
// then finds nothing in the copy.
func TestRandomStoresMove(t *testing.T) {
	t.Parallel()
	engines := map[string]func(*testing.T) runstore.RunStore{"memory": newMemory, "sqlite": newSQLite}
	for from, newFrom := range engines {
		for to, newTo := range engines {
			for seed := range uint64(2) {
				t.Run(fmt.Sprintf("%s-%s-%d", from, to, seed), func(t *testing.T) {
					t.Parallel()
					source, target := newFrom(t), newTo(t)
					randomStore(t, source, seed, 15)
					moved := export(t, source)
					counts := must(archive.Check(t.Context(), stream(moved)))(t)
					report := must(archive.Import(t.Context(), stream(moved), target, nil))(t)
					if report.Imported != counts || counts.Runs == 0 || counts.Records == 0 || counts.Events == 0 {
						t.Errorf("imported %+v of %+v", report.Imported, counts)
					}
					if got := mustEqual(t, source, target); got.Compared != counts {
						t.Errorf("compared %+v of %+v", got.Compared, counts)
					}
					checkIndexes(t, source, target)
					found := must(audit.Check(t.Context(), target, &audit.Options{
						Indexes: []runstore.IndexName{"queue-0", "queue-1", "queue-2"},
						Found:   func(f audit.Finding) { t.Error(f) },
					}))(t)
					if found.Events != counts.Events || found.FeedEvents != counts.Events { // it does not see unlisted runs without events
						t.Errorf("the audit read %+v of %+v", found, counts)
					}
					again := must(archive.Import(t.Context(), stream(moved), target, nil))(t)
					if again.Imported.Runs != 0 || again.Present != counts.Runs || again.Epoch != report.Epoch {
						t.Errorf("the second import: %+v", again)
					}
				})
			}
		}
	}
}

// checkIndexes compares the scans of two stores.
func checkIndexes(t *testing.T, a, b runstore.RunStore) {
	t.Helper()
	for _, index := range []runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable, "queue-0", "queue-1"} {
		read := func(s runstore.RunStore) map[string]bool {
			found := map[string]bool{}
			for e, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
				must(e, err)(t)
				at := e.At
				if index == runstore.IndexRunnable { // leases of the source may move the entry
					at = e.Head.RunnableAt
				}
				found[fmt.Sprintf("%q %q %v %v", e.Run, e.Record.Key, at, e.Record.Updated)] = true
			}
			return found
		}
		one, other := read(a), read(b)
		for e := range one {
			if !other[e] {
				t.Errorf("%s: the copy lacks %s", index, e)
			}
		}
		if len(one) != len(other) {
			t.Errorf("%s: %d entries, and %d in the copy", index, len(one), len(other))
		}
	}
}
