package bigtable_test

import (
	"slices"
	"strings"
	"testing"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// Rows are replicated independently. These tests take some of them away, as a failover to a cluster that
// lagged does.

// published makes a run with three events, which the feed has, and ends its lease.
func published(t *testing.T, s *bigtable.Store) {
	t.Helper()
	b := appending(hold(t, s, "run"), "1", "2", "3")
	b.Release = true
	commit(t, s, b)
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	if err := bigtable.WriteBack(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// inFeedOnce checks that the feed has each event of "run" once, in order.
func inFeedOnce(t *testing.T, s *bigtable.Store, want ...string) {
	t.Helper()
	var got []string
	for _, e := range whole(t, s, 0, runstore.MaxPage, nil) {
		got = append(got, string(e.Data))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the feed has the events %q, want %q", got, want)
	}
}

// The run's row comes without the positions of its events, and the log of the feed with them.
func TestFailoverWithoutTheHighWaterMark(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	published(t, old)
	for _, key := range keys(t, tbl, "r") {
		m := client.NewMutation()
		m.DeleteCellsInFamily("f")
		if err := tbl.Apply(t.Context(), key, m); err != nil {
			t.Fatal(err)
		}
	}
	move(t, table, tbl)
	s := openBare(t, table)
	bigtable.OrphanScan(t.Context(), s)
	commit(t, s, signal("run", "4"))
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	inFeedOnce(t, s, "1", "2", "3", "4")
}

// The run's row comes without its mark. The next process writes an event and dies, and the scan of another
// finds the event.
func TestFailoverWithoutTheMark(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	published(t, old)
	if len(keys(t, tbl, "m")) == 0 {
		t.Fatal("the run has no mark")
	}
	deleteRows(t, tbl, "m", func(string) bool { return true })
	move(t, table, tbl)
	commit(t, openBare(t, table), signal("run", "4"))
	heir := openBare(t, table)
	bigtable.OrphanScan(t.Context(), heir)
	inFeedOnce(t, heir, "1", "2", "3", "4")
}

// A segment of the journal, or rows of cold records, come only after a scan has looked for values that
// nothing names. The values are there.
func TestFailoverWithoutRowsThatNameValues(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"s", "k"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			old, tbl := openBare(t, table, cool), raw(t, table)
			lease := hold(t, old, "run")
			large := strings.Repeat("x", 20<<10)
			b := appending(lease, slices.Repeat([]string{large}, 3)...)
			for range 130 {
				b.Append("test", nil)
			}
			commit(t, old, b)
			seal(t, old, "run")
			all := kept{}
			edit(t, old, all, "large", large)
			for i := range 60 {
				edit(t, old, all, string(rune('A'+i)), "more")
			}
			relieve(t, old)
			if _, err := old.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
				t.Fatal(err)
			}
			if err := bigtable.Publish(t.Context(), old, "run"); err != nil {
				t.Fatal(err)
			}
			late := snapshot(t, tbl)
			deleteRows(t, tbl, kind, func(string) bool { return true })
			scanIdle(t, old)
			if n := late.put(t, tbl, func(k cellKey) bool { return k.row[:1] == kind }); n == 0 {
				t.Fatalf("there are no rows %q", kind)
			}
			heir := openBare(t, table)
			if got := journal(t, heir, "run"); len(got) < 133 || got[0] != large {
				t.Errorf("the journal has %d events, want 133 at least", len(got))
			}
			all.readAs(t, heir)
		})
	}
}
