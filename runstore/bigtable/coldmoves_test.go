package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// A move that is cut after its rows were written, or while they are, changes nothing that is read. The next one
// is made. A rewriting deletes the rows that the first left, but its fingerprints, and a purge deletes all.
func TestMoveIsCut(t *testing.T) {
	t.Parallel()
	for _, rewrite := range []bool{false, true} {
		for _, method := range []string{writes, swaps} {
			for _, harm := range []string{"refused", "reply lost"} {
				t.Run(fmt.Sprintf("%s %s, rewriting %t", method, harm, rewrite), func(t *testing.T) {
					t.Parallel()
					table := newTable(t)
					s, other := openDying(t, table), openBare(t, table, cool)
					hold(t, other, "run")
					all := filled(t, other, 60)
					if rewrite {
						relieve(t, other)
						edit(t, other, all, "a/00001", "")
						edit(t, other, all, "a/00002", "changed")
						for i := range 60 {
							edit(t, other, all, fmt.Sprintf("b/%d", i), "more")
						}
						relieve(t, other)
					}
					mine := func(c bigtableemulator.Call) bool {
						return c.Table == table.String() && c.Method == method && !isServed(c)
					}
					var cut emulators.Fault
					if harm == "refused" {
						cut = server(t).Refuse(0, s.only(mine))
					} else {
						cut = server(t).DropReplies(0, s.only(mine))
					}
					defer cut.Stop()
					bigtable.SetMoveAbove(s.Store, 3<<10)
					if err := cutAt(t, cut, func(ctx context.Context) error { return bigtable.MoveRecords(ctx, s.Store, "run", rewrite) }); err == nil {
						t.Error("the move was not cut")
					} else if errors.Is(err, runstore.ErrUnknownOutcome) {
						t.Errorf("got %v: a move has no outcome that a caller could not know", err)
					}
					all.readAs(t, other, "a/00001")
					edit(t, other, all, "a/00003", "changed")
					edit(t, other, all, "a/00004", "")
					relieve(t, other)
					all.readAs(t, other, "a/00001", "a/00004")
					for range 2 { // the first may go on with one that was cut, behind rows that it has replaced
						if err := bigtable.MoveRecords(t.Context(), other, "run", true); err != nil {
							t.Fatal(err)
						}
					}
					scanIdleRun(t, other)
					all.readAs(t, openBare(t, table), "a/00001", "a/00004")
					tbl := raw(t, table)
					left := slices.DeleteFunc(keys(t, tbl, "k"), isFingerprints)
					if moves, _, err := bigtable.Moves(t.Context(), other, "run"); err != nil || len(left) != coldRows(t, other)-moves {
						t.Errorf("%d rows of cold records remain, %v, want %d", len(left), err, coldRows(t, other)-moves)
					}
					purgeIdle(t, other)
					if left := keys(t, tbl, "k"); len(left) > 0 {
						t.Errorf("%d rows of cold records remain after the purge", len(left))
					}
				})
			}
		}
	}
}

// cold makes the run "run" with so many records, and moves records out of its row.
func cold(t testing.TB, n int) (bigtableemulator.TableName, *bigtable.Store, kept) {
	t.Helper()
	table := newTable(t)
	s := openBare(t, table, cool)
	hold(t, s, "run")
	all := filled(t, s, n)
	relieve(t, s)
	return table, s, all
}

// relieve moves records of "run" out of its row.
func relieve(t testing.TB, s *bigtable.Store) {
	t.Helper()
	before, _, err := bigtable.Moves(t.Context(), s, "run")
	if err == nil {
		err = bigtable.MoveRecords(t.Context(), s, "run", false)
	}
	if err != nil {
		t.Fatal(err)
	}
	if after, _, err := bigtable.Moves(t.Context(), s, "run"); err != nil || after <= before {
		t.Fatalf("no records were moved: %v", err)
	}
}

// scanIdleRun has the orphan scan find "run" idle.
func scanIdleRun(t testing.TB, s *bigtable.Store) {
	t.Helper()
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	bigtable.EmptyGarbage(t.Context(), s)
	bigtable.Ahead(s, func() { bigtable.OrphanScan(t.Context(), s) })
}

// coldRows returns how many rows of cold records there should be.
func coldRows(t testing.TB, s *bigtable.Store) int {
	t.Helper()
	n, err := bigtable.ColdRows(t.Context(), s, "run")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A step of a rewriting ends between the rows of a record: behind some of moves that failed, before the row
// that counts. The record stays.
func TestRewritingEndsBetweenRowsOfARecord(t *testing.T) {
	t.Parallel()
	for behind := 0; behind < 2; { // the nonces of the moves, which are random, order the rows of a record
		table := newTable(t)
		s, tbl := openBare(t, table, cool), raw(t, table)
		hold(t, s, "run")
		all := filled(t, s, 60)
		const failures = 3 // so there are 4 rows of each record, and a step reads 10
		for range failures {
			mover := openDying(t, table)
			bigtable.SetMoveAbove(mover.Store, 3<<10)
			isSwap := func(c bigtableemulator.Call) bool { return c.Method == swaps && !isServed(c) }
			_ = mover.dieAt(t, isSwap, func(ctx context.Context) error { return bigtable.MoveRecords(ctx, mover.Store, "run", false) })
		}
		failed := keys(t, tbl, "k")
		relieve(t, s)
		moved := slices.DeleteFunc(keys(t, tbl, "k"), func(k string) bool { return slices.Contains(failed, k) })
		behind, _ = slices.BinarySearch(failed, moved[0])
		if err := bigtable.MoveRecords(t.Context(), s, "run", true); err != nil {
			t.Fatal(err)
		}
		all.readAs(t, s)
	}
}

// A step of a rewriting reads only rows of one record, all of moves that failed. It reads on.
func TestRewritingReadsPastRowsThatDoNotCount(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table, cool), raw(t, table)
	hold(t, s, "run")
	all := filled(t, s, 60)
	relieve(t, s)
	for i := range 60 { // so that the list has two moves
		edit(t, s, all, fmt.Sprintf("b/%d", i), "more")
	}
	relieve(t, s)
	plant(t, tbl, 100, func(i int) string { return bigtable.ColdKey("run", 1, "a/00000", 1<<40, uint64(i)) })
	if err := bigtable.MoveRecords(t.Context(), s, "run", true); err != nil {
		t.Fatal(err)
	}
	bigtable.EmptyGarbage(t.Context(), s)
	if got, want := len(keys(t, tbl, "k")), coldRows(t, s); got != want {
		t.Errorf("%d rows of cold records remain, want %d", got, want)
	}
	all.readAs(t, openBare(t, table))
}

// What a suspended process writes of a move that failed counts for nothing, however late: not over records
// that were deleted or changed since, and not in a new run of the id.
func TestLateMoveCountsForNothing(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"changed", "purged"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			mover, s := openBare(t, table, cool), openBare(t, table)
			hold(t, s, "run")
			all := filled(t, s, 60)
			isMove := func(c bigtableemulator.Call) bool {
				return c.Table == table.String() && c.Method == writes && !isServed(c)
			}
			held := server(t).Hold(1, isMove)
			moved := make(chan error, 1)
			go func() { moved <- bigtable.MoveRecords(t.Context(), mover, "run", false) }()
			met(t, held, 1)
			if what == "purged" {
				b := runstore.NewBatch("run", runstore.Unguarded("test"))
				b.Purge = true
				commit(t, s, b)
				holdAnew(t, s, "run")
				clear(all)
			}
			edit(t, s, all, "a/00000", "")
			edit(t, s, all, "a/00001", "changed")
			bigtable.SetMoveAbove(s, 3<<10)
			if what == "changed" {
				relieve(t, s)
			}
			held.Stop()
			if err := <-moved; err != nil {
				t.Fatal(err)
			}
			all.readAs(t, s, "a/00000", "a/00001")
			all.readAs(t, openBare(t, table), "a/00000", "a/00001")
			bigtable.EmptyGarbage(t.Context(), mover)
			if got, want := len(keys(t, raw(t, table), "k")), coldRows(t, s); got != want {
				t.Errorf("%d rows of cold records remain, want %d", got, want)
			}
		})
	}
}

// A purge leaves no cold rows: the first orphan scan deletes them all, and not only those that
// a look at some rows meets.
func TestPurgeLeavesNoColdRows(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table, cool)
	lease := hold(t, s, "run")
	filled(t, s, 150)
	relieve(t, s)
	tbl := raw(t, table)
	if n := len(keys(t, tbl, "k")); n < 100 {
		t.Fatalf("there are %d cold rows, want 100 at least", n)
	}
	purge(t, s, lease)
	bigtable.OrphanScan(t.Context(), s)
	if left := len(keys(t, tbl, "k")); left > 0 {
		t.Errorf("%d cold rows remain", left)
	}
}

// A reader that was held between its two reads while records moved, changed and were deleted sees one state.
func TestReadsMeetOneState(t *testing.T) {
	t.Parallel()
	for n := range 2 { // the cold rows, the run's row
		table := newTable(t)
		s, reader := openBare(t, table, cool), openBare(t, table)
		hold(t, s, "run")
		all := filled(t, s, 60)
		relieve(t, s)
		all.readAs(t, reader) // it knows the list of moves now
		whilePaused(t, table, "read records", n, func() {
			found, err := reader.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: runstore.MaxPage})
			if err != nil {
				t.Error(err)
			}
			got := kept{}
			for _, r := range found {
				got[r.Key] = r
			}
			if len(got) != len(all) {
				t.Errorf("held before read %d: got %d records, want %d", n, len(got), len(all))
			}
			for _, r := range got {
				all.same(t, r)
			}
		}, func() {
			for i := range 60 {
				if edit(t, s, all, fmt.Sprintf("a/%05d", i), "changed"); i%7 == 0 {
					edit(t, s, all, fmt.Sprintf("a/%05d", i), "")
				}
			}
			relieve(t, s)
			if err := bigtable.MoveRecords(t.Context(), s, "run", true); err != nil {
				t.Error(err)
			}
			bigtable.EmptyGarbage(t.Context(), s)
		})
	}
}

// An epoch that is raised keeps the cold records of a run.
func TestRaiseKeepsColdRecords(t *testing.T) {
	t.Parallel()
	table, s, all := cold(t, 60)
	if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	all.readAs(t, s)
	edit(t, s, all, "a/00000", "changed")
	edit(t, s, all, "a/00001", "")
	for i := range 60 {
		edit(t, s, all, fmt.Sprintf("b/%d", i), "new")
	}
	relieve(t, s)
	all.readAs(t, openBare(t, table), "a/00001")
}

// After a failover the rows of cold records may be missing. A record that is put in the place of one has a
// higher version all the same.
func TestVersionsGrowWhereColdRowsAreMissing(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table, cool), raw(t, table)
	hold(t, s, "run")
	all := kept{}
	edit(t, s, all, "b/before", "more") // the first record to be changed is the last of a move
	for i := range 5 {
		edit(t, s, all, "a/00000", fmt.Sprint("version ", i+1))
	}
	was := all["a/00000"].Version
	for i := range 60 {
		edit(t, s, all, fmt.Sprintf("b/%d", i), "more")
	}
	relieve(t, s)
	for _, k := range keys(t, tbl, "k") {
		if isFingerprints(k) { // the digests there name records that cannot be read
			continue
		}
		m := client.NewMutation()
		m.DeleteRow()
		if err := tbl.Apply(t.Context(), k, m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	s = openBare(t, table)
	for i := range 6 {
		b := signal("run", "other")
		b.Put(runstore.RecordKey(fmt.Sprint("c/", i)), []byte("other"))
		commit(t, s, b)
	}
	learnFingerprints(t, s, "run")
	b := runstore.NewBatch("run", runstore.AtVersion("a/00000", 0)) // as readers find it
	b.Put("a/00000", []byte("anew"))
	if got := commit(t, s, b).Versions[0]; got <= was {
		t.Errorf("the record has version %d again, which was reached before", got)
	}
}

// isFingerprints reports whether a row of "run" has fingerprints, by the row's key.
func isFingerprints(key string) bool { return key[len("k..nnrun")+8] == 'p' }

// A rewriting drops tombstones and the rows that they hide, and is resumed by another handle where one has
// left it.
func TestRewritingKeepsTheDeletedAway(t *testing.T) {
	t.Parallel()
	table, s, all := cold(t, 80)
	for i := range 30 {
		edit(t, s, all, fmt.Sprintf("a/%05d", i), "")
	}
	for i := range 60 {
		edit(t, s, all, fmt.Sprintf("b/%d", i), "new")
	}
	relieve(t, s) // of the tombstones too
	before := len(keys(t, raw(t, table), "k"))
	for step := 0; ; step++ {
		handle := openBare(t, table, cool)
		more, err := bigtable.Rewrite(t.Context(), handle, "run")
		if err != nil {
			t.Fatal(err)
		}
		// What was replaced is deleted in any order, the tombstones first here.
		all.readAs(t, s, "a/00000", "a/00010", "a/00029")
		if err := bigtable.DropTombstones(t.Context(), handle); err != nil {
			t.Fatal(err)
		}
		all.readAs(t, s, "a/00000", "a/00010", "a/00029")
		bigtable.EmptyGarbage(t.Context(), handle)
		edit(t, s, all, fmt.Sprintf("c/%d", step), "between two steps")
		if !more {
			break
		}
		if step > 50 {
			t.Fatal("it does not end")
		}
	}
	scanIdleRun(t, s)
	after := len(keys(t, raw(t, table), "k"))
	if want := coldRows(t, s); after != want || after > before-30 {
		t.Errorf("%d rows of cold records remain of %d, want %d", after, before, want)
	}
	all.readAs(t, openBare(t, table), "a/00000", "a/00029")
}

// A record that leaves the row while a rewriting is interrupted, and is deleted, stays deleted when the
// rewriting goes on.
func TestRewritingKeepsAwayWhatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	table, s, all := cold(t, 80)
	if more, err := bigtable.Rewrite(t.Context(), s, "run"); err != nil || !more {
		t.Fatalf("the first step: more %t, %v", more, err)
	}
	for _, value := range []string{"value", ""} {
		for i := range 5 {
			edit(t, s, all, fmt.Sprintf("z/%d", i), value)
		}
		for i := range 60 {
			edit(t, s, all, fmt.Sprintf("%s/%d", []string{"b", "c"}[min(len(value), 1)], i), "more")
		}
		if err := bigtable.MoveRecordsOnly(t.Context(), s, "run"); err != nil {
			t.Fatal(err)
		}
	}
	for more := true; more; {
		handle := openBare(t, table, cool)
		var err error
		if more, err = bigtable.Rewrite(t.Context(), handle, "run"); err != nil {
			t.Fatal(err)
		}
		// What was replaced is deleted in any order, the tombstones first here.
		if err := bigtable.DropTombstones(t.Context(), handle); err != nil {
			t.Fatal(err)
		}
		all.readAs(t, s, "z/0", "z/1", "z/2", "z/3", "z/4")
	}
}

// The retirement of an idle run keeps the large values of cold records.
func TestVisitKeepsColdValues(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table, cool)
	hold(t, s, "run")
	all := kept{}
	for i := range 3 {
		edit(t, s, all, fmt.Sprintf("large/%d", i), strings.Repeat("x", 20<<10+i))
	}
	for i := range 60 {
		edit(t, s, all, fmt.Sprintf("a/%d", i), "small")
	}
	relieve(t, s)
	scanIdleRun(t, s)
	all.readAs(t, openBare(t, table))
}

// A record in a queue stays in the row of its run, where scans find it, and so does a summary. It may leave
// when it has left its queues.
func TestRecordsInQueuesStay(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table, cool)
	hold(t, s, "run")
	b := signal("run", "in a queue")
	b.Put("waiting", []byte("value"), waiting)
	b.Put(runstore.SummaryKey, []byte("summary"))
	commit(t, s, b)
	filled(t, s, 60)
	relieve(t, s)
	found, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10, Heads: true})
	if err != nil || len(found) != 1 || string(found[0].Record.Value) != "value" || string(found[0].Head.Summary.Value) != "summary" {
		t.Errorf("got %v, %v, want the record and the summary", found, err)
	}
}

// A handle that cannot read the fingerprints of the present list of moves does not rely on those of a former
// one: another handle has moved a record since.
func TestFingerprintsOfAFormerListAreNotUsed(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other, tbl := openBare(t, table, cool), openBare(t, table), raw(t, table)
	hold(t, s, "run")
	all := filled(t, s, 60)
	relieve(t, s)
	for i := range 6 {
		edit(t, other, all, fmt.Sprintf("b/%d", i), "new")
	}
	learnFingerprints(t, other, "run")
	edit(t, s, all, "moved", "value")
	for i := range 60 {
		edit(t, s, all, fmt.Sprintf("c/%d", i), "more")
	}
	relieve(t, s)
	for _, k := range keys(t, tbl, "k") {
		if isFingerprints(k) {
			m := client.NewMutation()
			m.DeleteRow()
			if err := tbl.Apply(t.Context(), k, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 4 { // after which it knows the records of the row
		edit(t, other, all, fmt.Sprintf("d/%d", i), "new")
	}
	learnFingerprints(t, other, "run")
	edit(t, other, all, "moved", "changed")
	if got := all["moved"].Version; got != 2 {
		t.Errorf("the record that was moved has version %d, want 2", got)
	}
	all.readAs(t, s)
}
