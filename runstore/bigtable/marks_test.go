package bigtable_test

import (
	"errors"
	"testing"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// onMarks matches what deletes marks: writes that set one serve an operation.
func onMarks(table bigtableemulator.TableName) func(bigtableemulator.Call) bool {
	return func(c bigtableemulator.Call) bool {
		return c.Table == table.String() && c.Method == writes && !isServed(c) && len(c.Row) > 0 && c.Row[0] == 'm'
	}
}

// nthRevision matches the n-th conditional mutation of a run's row that serves no
// operation, counted from 1.
func nthRevision(table bigtableemulator.TableName, n int) func(bigtableemulator.Call) bool {
	seen := 0
	return func(c bigtableemulator.Call) bool {
		if c.Table != table.String() || c.Method != swaps || isServed(c) || len(c.Row) == 0 || c.Row[0] != 'r' {
			return false
		}
		seen++
		return seen == n
	}
}

// idle makes a run that nobody drives, and whose events the feed has.
func idle(t testing.TB, s *bigtable.Store) {
	t.Helper()
	lease := hold(t, s, "run")
	commit(t, s, appending(lease, "early"))
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
}

// lateDeletions are the passes that take a mark, and the request of theirs that is held.
var lateDeletions = []struct {
	name string
	// before makes what the pass is for, and returns how many events the run has.
	before func(t testing.TB, table bigtableemulator.TableName, s *bigtable.Store) (events int)
	held   func(table bigtableemulator.TableName) func(bigtableemulator.Call) bool
	pass   func(t testing.TB, s *bigtable.Store)
}{
	{"of an idle run", func(t testing.TB, _ bigtableemulator.TableName, s *bigtable.Store) int { idle(t, s); return 1 }, onMarks, scanIdle},
	{"of an idle run, before it is settled", func(t testing.TB, _ bigtableemulator.TableName, s *bigtable.Store) int { idle(t, s); return 1 },
		func(table bigtableemulator.TableName) func(bigtableemulator.Call) bool { return nthRevision(table, 1) }, scanIdle},
	{"of an idle run, before its head says so", func(t testing.TB, _ bigtableemulator.TableName, s *bigtable.Store) int { idle(t, s); return 1 },
		func(table bigtableemulator.TableName) func(bigtableemulator.Call) bool { return nthRevision(table, 2) }, scanIdle},
	{"of a write that was never made", func(t testing.TB, table bigtableemulator.TableName, s *bigtable.Store) int {
		idle(t, s)
		scanIdle(t, s) // the next writes set marks
		dyingWrite(t, table, heavy("run"))
		commit(t, s, signal("run", "another"))
		return 2
	}, onMarks, func(t testing.TB, s *bigtable.Store) { bigtable.OrphanScan(t.Context(), s) }},
	{"of a creation that was never made", func(t testing.TB, table bigtableemulator.TableName, s *bigtable.Store) int {
		dyingCreation(t, table, runstore.RunSpec{ID: "run"})
		return 0
	}, onMarks, func(t testing.TB, s *bigtable.Store) { _ = bigtable.CollectGarbage(t.Context(), s) }},
}

// A deletion of a mark that is on its way for so long that the run is active again by
// then takes nothing of that: the process that wrote dies, and the mark which its write
// has set leads others to the events. Its entries are found throughout.
func TestMarkIsDeletedLate(t *testing.T) {
	t.Parallel()
	for _, d := range lateDeletions {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, active, heir, tbl := openBare(t, table), openBare(t, table), openBare(t, table), raw(t, table)
			events := d.before(t, table, s)
			held := server(t).Hold(1, d.held(table))
			passed := make(chan struct{})
			go func() {
				defer close(passed)
				d.pass(t, s)
			}()
			met(t, held, 1)
			if _, err := active.GetRun(t.Context(), "run"); errors.Is(err, runstore.ErrNotFound) {
				hold(t, active, "run")
			}
			commit(t, active, heavy("run"))
			commit(t, active, signal("run", "and one more"))
			held.Stop()
			<-passed
			found := func(when string) {
				t.Helper()
				if n := scanAll(t, heir); n != 3 {
					t.Errorf("%s the scans found %d entries, want 3", when, n)
				}
			}
			found("before a pass")
			if n := len(keys(t, tbl, "m")); n == 0 {
				t.Error("no mark leads to the run")
			}
			bigtable.OrphanScan(t.Context(), heir)
			if all := whole(t, heir, 0, 10, nil); len(all) != events+2 {
				t.Errorf("the feed has %d events, want %d", len(all), events+2)
			}
			found("after a pass")
		})
	}
}

// A scan that meets a mark whose write is under way leaves the mark. It leads others to the event if the
// process dies once its write was applied.
func TestMarkOfAWriteUnderWay(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, writer, heir, tbl := openBare(t, table), openBare(t, table), openBare(t, table), raw(t, table)
	idle(t, s)
	scanIdle(t, s) // the next write sets a mark
	if n := len(keys(t, tbl, "m")); n != 0 {
		t.Fatalf("the idle run has %d marks, want none", n)
	}
	held := server(t).Hold(1, served(table, swaps))
	written := make(chan error, 1)
	go func() {
		_, err := writer.Commit(t.Context(), signal("run", "late"))
		written <- err
	}()
	met(t, held, 1)
	if n := len(keys(t, tbl, "m")); n != 1 {
		t.Fatalf("before the write there are %d marks, want 1", n)
	}
	bigtable.OrphanScan(t.Context(), s)
	held.Stop()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	bigtable.OrphanScan(t.Context(), heir)
	if all := whole(t, heir, 0, 10, nil); len(all) != 2 {
		t.Errorf("the feed has %d events, want 2", len(all))
	}
}
