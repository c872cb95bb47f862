package bigtable_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// A handle that is open through a failover knows a list of moves that the store has lost. In the history that
// the store goes on with, a move of another handle has the same revision: the handle finds its records.
func TestListsOfTwoHistoriesAreNotConfused(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table, cool), raw(t, table)
	hold(t, s, "run")
	all := filled(t, s, 60)
	relieve(t, s)
	survived := snapshot(t, tbl)
	was := maps.Clone(all)
	edits := func(s *bigtable.Store, all kept, name string, n int) {
		t.Helper()
		for i := range n {
			edit(t, s, all, fmt.Sprintf("%s/%d", name, i), "value")
		}
		relieve(t, s)
		for i := range 6 {
			edit(t, s, all, fmt.Sprintf("later %s/%d", name, i), "value")
		}
		learnFingerprints(t, s, "run")
	}
	edits(s, all, "lost", 60)
	all.readAs(t, s)

	survived.rollBack(t, tbl)
	other := openBare(t, table, cool)
	if _, err := other.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	edits(other, was, "kept", 59) // and the raise is a revision
	found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"kept/0", "lost/0"}})
	if err != nil || len(found) != 1 || found[0].Key != "kept/0" {
		t.Errorf("the first read after the failover: got %v, %v, want the record of the history that goes on", found, err)
	}
	was.readAs(t, s, "lost/0")
	b := runstore.NewBatch("run", runstore.AtVersion("kept/0", 0))
	b.Put("kept/0", []byte("again"))
	if _, err := s.Commit(t.Context(), b); !errors.Is(err, runstore.ErrConflict) {
		t.Errorf("a write that takes a record for absent: got %v, want ErrConflict", err)
	}
}

// A record that is put, moved, deleted, moved and dropped by a rewriting, again and again by one handle, is
// counted once among the cold records: as often as it has a row.
func TestColdRecordsAreCountedOverRewritings(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table, cool)
	hold(t, s, "run")
	all, n := filled(t, s, 60), 0
	leave := func(value string) {
		edit(t, s, all, "z", value)
		for range 60 {
			n++
			edit(t, s, all, fmt.Sprintf("b/%d", n%60), fmt.Sprint(n))
		}
		relieve(t, s)
	}
	for range 3 {
		leave("value")
		leave("")
		if err := bigtable.MoveRecords(t.Context(), s, "run", true); err != nil {
			t.Fatal(err)
		}
	}
	leave("value")
	if err := bigtable.MoveRecords(t.Context(), s, "run", true); err != nil { // it deletes the rows that moves have replaced
		t.Fatal(err)
	}
	bigtable.EmptyGarbage(t.Context(), s)
	if got, want := len(keys(t, raw(t, table), "k")), coldRows(t, s); got != want {
		t.Errorf("there are %d rows of cold records, and %d are counted", got, want)
	}
	all.readAs(t, openBare(t, table))
}
