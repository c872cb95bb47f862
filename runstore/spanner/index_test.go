package spanner_test

import (
	"fmt"
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

// TestPagesOfEqualTimes checks that pages join without gap or repeat where the records' keys alone
// order the entries, in each direction, with heads and without.
func TestPagesOfEqualTimes(t *testing.T) {
	t.Parallel()
	s := open(t, newDatabase(t, fair))
	at := runstore.At(time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC))
	b := appending(hold(t, s, "run"))
	for _, key := range []runstore.RecordKey{"a", "b", "c"} {
		b.Put(key, nil, runstore.Place{Index: "queue", At: at})
	}
	commit(t, s, b)
	for _, heads := range []bool{false, true} {
		for newest, want := range map[bool]string{false: "abc", true: "cba"} {
			t.Run(fmt.Sprintf("newest %t, heads %t", newest, heads), func(t *testing.T) {
				q := runstore.IndexQuery{Index: "queue", Newest: newest, Heads: heads, Limit: 1}
				got := ""
				for range len(want) + 1 { // the last page is empty
					page, err := s.ScanIndex(t.Context(), q)
					if err != nil {
						t.Fatal(err)
					}
					for _, e := range page {
						got += string(e.Record.Key)
						q.After = e.Cursor
					}
				}
				if got != want {
					t.Errorf("got the records %s, want %s", got, want)
				}
			})
		}
	}
}
