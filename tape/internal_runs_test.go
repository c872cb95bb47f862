package tape

import (
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// TestInternalRuns checks that the runs of this package are known as such, and that those of drivers are not.
func TestInternalRuns(t *testing.T) {
	t.Parallel()
	for _, run := range []runstore.RunID{
		ValueKey{Key: "k"}.Run(), SessionKey{App: "a"}.run(), businessRun("c", "k"), shardRun("r", 0), sharedKeyRun,
	} {
		if !isInternal(run) {
			t.Errorf("%s is not taken for a run of this package", run)
		}
	}
	if run := (RunKey{App: "a"}).ID(); isInternal(run) {
		t.Errorf("the run %s of a driver is taken for one of this package", run)
	}
}
