package audit_test

import (
	"strings"
	"testing"

	"github.com/tapestore/tapestore/lease/audit"
	"github.com/tapestore/tapestore/runstore"
)

// TestFindingNamesItsPlaceInFull: the shards of a reaction are runs whose names differ in their last
// characters only.
func TestFindingNamesItsPlaceInFull(t *testing.T) {
	long := "reaction/" + strings.Repeat("c8", 32) + "/"
	finding := func(run, index, key string) string {
		return audit.Finding{
			Kind: audit.KindHead, Run: runstore.RunID(long + run), Index: runstore.IndexName(long + index), Key: runstore.RecordKey(long + key),
		}.String()
	}
	one := finding("0", "0", "0")
	for _, other := range []string{finding("1", "0", "0"), finding("0", "1", "0"), finding("0", "0", "1")} {
		if one == other {
			t.Errorf("two findings read alike: %s", one)
		}
	}
}
