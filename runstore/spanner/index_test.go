package spanner_test

import (
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// TestFromBetweenMicroseconds checks that a lower bound is not rounded down to the
// precision of the store: an entry before it is not returned.
func TestFromBetweenMicroseconds(t *testing.T) {
	t.Parallel()
	s := open(t, newDatabase(t, fair))
	lease := hold(t, s, "run")
	at := time.Date(2024, 5, 6, 7, 8, 9, 123456000, time.UTC)
	b := appending(lease)
	b.Put("before", nil, runstore.Place{Index: "queue", At: runstore.At(at)})
	b.Put("after", nil, runstore.Place{Index: "queue", At: runstore.At(at.Add(runstore.TimePrecision))})
	commit(t, s, b)
	for _, newest := range []bool{false, true} {
		found, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", From: at.Add(time.Nanosecond), Newest: newest, Limit: 10})
		if err != nil || len(found) != 1 || found[0].Record.Key != "after" {
			t.Errorf("newest %t: got %v, %v, want the entry after the bound alone", newest, found, err)
		}
	}
}
