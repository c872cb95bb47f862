package archive_test

import (
	"strings"
	"testing"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
)

// TestDifferenceNamesItsRunInFull: the shards of a reaction are runs whose names differ in their last
// characters only.
func TestDifferenceNamesItsRunInFull(t *testing.T) {
	reaction := "reaction/" + strings.Repeat("c8", 32) + "/"
	one := archive.Difference{Run: runstore.RunID(reaction + "0"), Key: runstore.RecordKey(reaction + "a"), Problem: "differs"}
	for _, other := range []archive.Difference{
		{Run: runstore.RunID(reaction + "3"), Key: one.Key, Problem: one.Problem},
		{Run: one.Run, Key: runstore.RecordKey(reaction + "b"), Problem: one.Problem},
	} {
		if one.String() == other.String() {
			t.Errorf("two differences read alike: %s", one)
		}
	}
}
