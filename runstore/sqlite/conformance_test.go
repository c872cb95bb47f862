package sqlite_test

import (
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, embedded.SQLite(conformance.T.TempDir, sqlite.Options{}))
}

// TestConformanceInMemory runs the suite on a database without a file. The statements are
// the same, so a quick run takes the cases in which sharing one database within a process
// makes a difference: readers beside writers, groups, wake-ups, closing.
func TestConformanceInMemory(t *testing.T) {
	h := embedded.SQLiteInMemory(sqlite.Options{})
	if effort.Full() {
		conformance.Run(t, h)
		return
	}
	conformance.RunCases(t, h,
		"I1/one-winner-per-round-of-an-acquire-race",
		"I2/token-survives-closing-every-handle",
		"I3/storm-of-writers-ends-at-a-preempt",
		"I3/zombie-whole-batch-is-refused",
		"I4/a-bad-batch-among-good-ones-fails-alone",
		"I4/readers-never-see-half-a-batch",
		"I5/seq-is-dense-under-many-writers",
		"I6/reads-see-what-was-acknowledged-before",
		"I8/a-repeat-gets-the-first-result",
		"I9/a-scan-meets-what-stays-while-others-come-and-go",
		"I10/a-tailing-reader-misses-nothing",
		"I10/a-commit-wakes-who-waits",
		"I11/a-closed-store-answers-nothing-else",
		"I11/closing-amid-commits-leaves-definite-outcomes",
		"I11/handles-come-and-go-unnoticed",
	)
	t.Run("all others", func(t *testing.T) {
		t.Skip("left to make test-full: all other cases on SQLite without a file")
	})
}
