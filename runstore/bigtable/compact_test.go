package bigtable_test

import (
	"errors"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// compact has passes look at all blocks of the feed, and deletes what they found dead.
func compact(t testing.TB, s *bigtable.Store) {
	t.Helper()
	compactAll(t, s)
	bigtable.EmptyGarbage(t.Context(), s)
}

func compactAll(t testing.TB, s *bigtable.Store) {
	t.Helper()
	for hash := range 16 {
		if err := bigtable.Compact(t.Context(), s, string([]byte{byte(hash << 4), 0})); err != nil {
			t.Fatal(err)
		}
	}
}

// Segments of the feed whose runs were purged are removed, whole blocks at a time. Readers pass the
// gap from wherever they come, with few requests, and the log goes on behind it.
func TestPurgedPagesAreRemoved(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := stretch(t, table, 405), raw(t, table)
	compactAll(t, s)
	bigtable.DeleteGarbage(t.Context(), s)
	if n := len(keys(t, tbl, "l")); n != 406 {
		t.Errorf("%d segments are left while readers may look for them, want all 406", n)
	}
	compact(t, s)
	if n := len(keys(t, tbl, "l")); n != 6+406-6*64 {
		t.Errorf("%d segments are left, want the first of 6 blocks and %d behind them", n, 406-6*64)
	}
	n := countReads(t, table, func(int64) {})
	reader := openBare(t, table)
	for _, after := range []runstore.Position{0, 1 << 10, 1<<10 | 1, 2 << 10, 64<<10 | 1, 65 << 10, 70<<10 | 1, 384<<10 | 1, 385 << 10, 400<<10 | 1} {
		n.Store(0)
		page, err := reader.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 10})
		if err != nil || len(page) != 1 || page[0].Run != "run" {
			t.Errorf("behind %d: got %v, %v, want the event behind the gap", after, page, err)
		}
		if n.Load() > 10 {
			t.Errorf("behind %d it cost %d requests, want up to 10", after, n.Load())
		}
	}
	var behind *runstore.StoreBehindError
	if _, err := reader.ReadFeed(t.Context(), runstore.FeedQuery{After: 1 << 40, Limit: 10}); !errors.As(err, &behind) || behind.Known != 406<<10|1 {
		t.Errorf("above all: got %v, want ErrStoreBehind", err)
	}
	commit(t, reader, signal("run", "next"))
	if err := bigtable.Publish(t.Context(), reader, "run"); err != nil {
		t.Fatal(err)
	}
	compact(t, reader) // again, with nothing to do
	if all := whole(t, openBare(t, table), 0, 1, nil); len(all) != 2 || all[1].Position != 407<<10|1 {
		t.Errorf("the feed has %v, want two events, the last in segment 407", all)
	}
}

// A segment whose runs live is never removed, nor are its neighbours.
func TestLivePagesStay(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	hold(t, s, "run")
	gone := hold(t, s, "gone")
	for i := range 130 {
		if i%64 == 40 {
			commit(t, s, signal("run", "event"))
		} else {
			commit(t, s, signal("gone", "event"))
		}
		if err := bigtable.Publish(t.Context(), s, "run", "gone"); err != nil {
			t.Fatal(err)
		}
	}
	purge(t, s, gone)
	compact(t, s)
	if n := len(keys(t, tbl, "l")); n != 130 {
		t.Errorf("%d segments are left, want 130", n)
	}
	if n := len(whole(t, s, 0, 1, nil)); n != 2 {
		t.Errorf("the feed has %d events, want 2", n)
	}
}

// A handle that is suspended while the segment which it wants to create is created by another and
// removed again creates it in the gap. Its events come into the feed all the same, once and at
// the end.
func TestPageIsCreatedInAGap(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	late := openBare(t, table)
	hold(t, late, "first")
	commit(t, late, signal("first", "event"))
	hold(t, late, "late")
	commit(t, late, signal("late", "event"))
	if err := bigtable.Publish(t.Context(), late, "first"); err != nil { // segment 1
		t.Fatal(err)
	}
	held := server(t).Hold(1, onLog(table))
	done := make(chan error, 1)
	go func() { done <- bigtable.Publish(t.Context(), late, "late") }()
	met(t, held, 1) // it creates segment 2

	s := stretch(t, table, 405)
	compact(t, s)
	held.Stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	all := whole(t, openBare(t, table), 0, 1, nil)
	if len(all) != 2 || all[0].Run != "run" || all[1].Run != "late" {
		t.Errorf("the feed has %v, want the event of the suspended handle at its end", all)
	}
	if n := len(keys(t, raw(t, table), "l")); n != 6+407-6*64 {
		t.Errorf("there are %d segments, want none within the gap", n)
	}
}
