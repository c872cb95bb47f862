package bigtable_test

import (
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// TestDigestsEndWithTheEpoch checks that a handle that stays open over a raise of the epoch, and reads the digests of
// later moves, does not add them to those that it had: a failover may have lost the rows of these records. A record is
// moved, the handle reads its digest, the row is lost, the epoch is raised, and the handle reads the digests of
// another move. A commit then finds what readers find.
func TestDigestsEndWithTheEpoch(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	writer, s, tbl := openBare(t, table, cool), openBare(t, table), raw(t, table)
	hold(t, writer, "run")
	all := kept{}
	edit(t, writer, all, "a/00000", "one")
	for i := range 60 {
		edit(t, writer, all, fmt.Sprintf("b/%d", i), "value")
	}
	relieve(t, writer)
	put := func(prefix string) {
		for i := range 6 {
			b := signal("run", "other")
			b.Put(runstore.RecordKey(fmt.Sprint(prefix, i)), []byte("other"))
			commit(t, s, b)
		}
	}
	put("c/")
	if n := learnFingerprints(t, s, "run"); n == 0 {
		t.Fatal("the handle has no digests")
	}
	deleteRows(t, tbl, "k", func(key string) bool { return !isFingerprints(key) })
	if _, err := writer.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		b := signal("run", "later")
		b.Put(runstore.RecordKey(fmt.Sprintf("d/%d", i)), []byte("value"))
		commit(t, writer, b)
	}
	relieve(t, writer)
	put("e/")
	if n := learnFingerprints(t, s, "run"); n == 0 {
		t.Fatal("the handle has no digests after the move")
	}
	if value, there := valueOf(t, s, "a/00000"); there {
		t.Fatalf("the record is there, as %q", value)
	}
	b := runstore.NewBatch("run", runstore.AtVersion("a/00000", 0))
	b.Put("a/00000", []byte("anew"))
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Errorf("readers find no record, and a commit found one: %v", err)
	}
}
