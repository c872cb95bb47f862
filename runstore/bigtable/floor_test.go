package bigtable_test

import (
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// TestDeletionKeepsTheFloor checks that the deletion of a record at a low version does not lower the version at
// which another deleted record is made anew.
func TestDeletionKeepsTheFloor(t *testing.T) {
	t.Parallel()
	s := open(t, newTable(t))
	hold(t, s, "run")
	change := func(key runstore.RecordKey, deletes bool) runstore.Version {
		t.Helper()
		b := signal("run", "change")
		if deletes {
			b.Delete(key)
		} else {
			b.Put(key, nil)
		}
		return commit(t, s, b).Versions[0]
	}
	change("low", false)
	change("high", false)
	last := change("high", false)
	change("high", true)
	change("low", true)
	if got := change("high", false); got <= last {
		t.Errorf("the record made anew is at version %d, its predecessor reached %d", got, last)
	}
}
