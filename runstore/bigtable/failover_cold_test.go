package bigtable_test

import (
	"fmt"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// valueOf returns the value of a record of "run", and whether it is there.
func valueOf(t testing.TB, s *bigtable.Store, key runstore.RecordKey) (value string, there bool) {
	t.Helper()
	found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{key}})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		return "", false
	}
	return string(found[0].Value), true
}

// withoutColdRows has a failover lose the rows of cold records that are new since had, and returns a handle that was
// opened after it, and a function that has these rows arrive.
func withoutColdRows(t *testing.T, s *bigtable.Store, open func() *bigtable.Store, tbl *client.Table, had map[string]bool) (after *bigtable.Store, arrive func()) {
	t.Helper()
	late := snapshot(t, tbl)
	lost := func(key string) bool { return key[:1] == "k" && !isFingerprints(key) && !had[key] }
	deleteRows(t, tbl, "k", lost)
	if _, err := s.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	return open(), func() {
		t.Helper()
		if n := late.put(t, tbl, func(k cellKey) bool { return lost(k.row) }); n == 0 {
			t.Fatal("the failover has lost no rows")
		}
	}
}

// The row of a cold record arrives after the failover. Its record was deleted meanwhile, and stays deleted.
func TestDeletedRecordStaysAwayWhenItsColdRowArrives(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name                 string
		puts, early, learned bool // the record is put before; the row arrives before the deletion; the handle knows the digests
	}{
		{"put and deleted", true, false, false},
		{"put, arrived, deleted", true, true, false},
		{"deleted as it is absent", false, false, false},
		{"the handle knows the digests", true, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, tbl := openBare(t, table, cool), raw(t, table)
			hold(t, s, "run")
			all := kept{}
			edit(t, s, all, "a/00000", "one")
			for i := range 60 {
				edit(t, s, all, fmt.Sprintf("b/%d", i), "value")
			}
			relieve(t, s)
			s, arrive := withoutColdRows(t, s, func() *bigtable.Store { return openBare(t, table) }, tbl, nil)
			if tc.learned {
				for i := range 6 {
					b := signal("run", "other")
					b.Put(runstore.RecordKey(fmt.Sprint("c/", i)), []byte("other"))
					commit(t, s, b)
				}
				if n := learnFingerprints(t, s, "run"); n == 0 {
					t.Fatal("the handle has no digests")
				}
			}
			if tc.puts {
				b := runstore.NewBatch("run", runstore.AtVersion("a/00000", 0))
				b.Put("a/00000", []byte("anew"))
				commit(t, s, b)
			}
			if tc.early {
				arrive()
			}
			b := signal("run", "delete")
			b.Delete("a/00000")
			commit(t, s, b)
			if !tc.early {
				arrive()
			}
			if value, there := valueOf(t, s, "a/00000"); there {
				t.Errorf("the record is there again, as %q", value)
			}
		})
	}
}

// A handle that knows the digests of a run's cold records leaves no tombstone of a record that has none, after a
// failover as before.
func TestDeletionAfterAFailoverLeavesNoTombstoneOfARecordThatWasNeverCold(t *testing.T) {
	t.Parallel()
	table, s, all := cold(t, 60)
	if _, err := s.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	s = openBare(t, table)
	for i := range 6 {
		edit(t, s, all, fmt.Sprintf("c/%d", i), "other")
	}
	learnFingerprints(t, s, "run")
	_, before, err := bigtable.Moves(t.Context(), s, "run")
	if err != nil {
		t.Fatal(err)
	}
	edit(t, s, all, "new", "value")
	edit(t, s, all, "new", "")
	if _, after, err := bigtable.Moves(t.Context(), s, "run"); err != nil || after != before {
		t.Errorf("the records take %d bytes of the row, %v, want %d as before", after, err, before)
	}
}

// After a failover compactions wait for the rows of cold records that are still missing.
func TestRewritingWaitsForLateRows(t *testing.T) {
	t.Parallel()
	for _, values := range [][]string{{"two"}, {"one", "two"}} {
		t.Run(fmt.Sprint(len(values), " rows of the record"), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, tbl := openBare(t, table, cool), raw(t, table)
			hold(t, s, "run")
			all, had := kept{}, map[string]bool{}
			for _, value := range values {
				for _, key := range keys(t, tbl, "k") {
					had[key] = true
				}
				edit(t, s, all, "a/00000", value)
				for i := range 60 {
					edit(t, s, all, fmt.Sprintf("b/%d", i), value)
				}
				relieve(t, s)
			}
			s, arrive := withoutColdRows(t, s, func() *bigtable.Store { return openBare(t, table, cool) }, tbl, had)
			commit(t, s, signal("run", "the first write of the epoch"))
			rewrite := func() (rewritten bool) {
				before, _, err := bigtable.Moves(t.Context(), s, "run")
				if err != nil {
					t.Fatal(err)
				}
				if err := bigtable.MoveRecords(t.Context(), s, "run", true); err != nil {
					t.Fatal(err)
				}
				after, _, err := bigtable.Moves(t.Context(), s, "run")
				if err != nil {
					t.Fatal(err)
				}
				return after != before
			}
			edit(t, s, kept{}, "c/1", "value") // a second move to rewrite
			for i := range 60 {
				edit(t, s, kept{}, fmt.Sprintf("d/%d", i), "value")
			}
			relieve(t, s)
			bigtable.Shift(s, 23*time.Hour, func() {
				if rewrite() {
					t.Error("a rewriting has not waited")
				}
			})
			arrive()
			bigtable.Shift(s, 25*time.Hour, func() {
				if !rewrite() {
					t.Error("a rewriting waits for ever")
				}
			})
			bigtable.EmptyGarbage(t.Context(), s)
			if value, there := valueOf(t, openBare(t, table), "a/00000"); !there || value != "two" {
				t.Errorf("all rows have arrived, and the record is there: %t, with the value %q", there, value)
			}
		})
	}
}

// A handle that has not read the epoch of a raise by another one does not rewrite the cold rows of a run either.
func TestRewritingByAHandleThatMissedTheRaise(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table, cool), raw(t, table)
	hold(t, s, "run")
	fill := func(prefix string) {
		edit(t, s, kept{}, prefix+"/00000", "value")
		for i := range 60 {
			edit(t, s, kept{}, fmt.Sprintf("%s/%d", prefix, i), "value")
		}
		relieve(t, s)
	}
	fill("a")
	fresh, arrive := withoutColdRows(t, openBare(t, table), func() *bigtable.Store { return openBare(t, table) }, tbl, nil)
	commit(t, fresh, signal("run", "the first write of the epoch"))
	fill("b")
	if err := bigtable.MoveRecords(t.Context(), s, "run", true); err != nil {
		t.Fatal(err)
	}
	arrive()
	if _, there := valueOf(t, openBare(t, table), "a/00000"); !there {
		t.Error("all rows have arrived, and the record is not there")
	}
}

// The cold rows of a run that was created after a raise are rewritten as ever: none can arrive late.
func TestRewritingOfARunFromAfterTheRaise(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table, cool)
	if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	hold(t, s, "run")
	for round := range 8 {
		for i := range 60 {
			edit(t, s, kept{}, fmt.Sprintf("a/%05d", i), fmt.Sprint("round ", round))
		}
		if err := bigtable.MoveRecords(t.Context(), s, "run", false); err != nil {
			t.Fatal(err)
		}
		if rows, records, err := bigtable.RowsOfMoves(t.Context(), s, "run"); err != nil || rows > 4*records {
			t.Fatalf("round %d: %v, the moves have written %d rows of %d records", round, err, rows, records)
		}
	}
}
