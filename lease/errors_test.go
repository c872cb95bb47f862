package lease_test

import (
	"strings"
	"testing"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// TestErrorsNameTheirRunInFull: the shards of a reaction are runs whose names differ in their last
// characters only.
func TestErrorsNameTheirRunInFull(t *testing.T) {
	run := runstore.RunID("reaction/" + strings.Repeat("c8", 32) + "/3")
	for _, err := range []error{
		&lease.LostError{Run: run, Reason: lease.ErrExpired},
		&lease.ReleaseError{Run: run, Err: runstore.ErrFenced},
		&lease.HandedOffError{Run: run, Successor: "b"},
	} {
		if !strings.Contains(err.Error(), string(run)) {
			t.Errorf("%T does not name run %s: %v", err, run, err)
		}
	}
}
