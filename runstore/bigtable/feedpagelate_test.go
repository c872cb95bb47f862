package bigtable_test

import (
	"strings"
	"testing"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// Two handles freeze one page at the same time, and the request of one of them is under way until the
// log has gone on. Every event is in the feed once, and the page stays as it was frozen.
func TestPageIsFrozenTwice(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(t *testing.T, s *bigtable.Store){
		"and the log goes on": func(t *testing.T, s *bigtable.Store) { inPages(t, []*bigtable.Store{s}, 3) },
		"and the epoch is raised": func(t *testing.T, s *bigtable.Store) {
			if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
				t.Fatal(err)
			}
			inPages(t, []*bigtable.Store{s}, 3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			tbl := raw(t, table)
			handles := bareHandles(t, table, 2)
			inPages(t, handles, 2)
			inPages(t, handles[:1], 1)
			for _, s := range handles {
				if err := bigtable.WriteBack(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			held := server(t).Hold(1, func(c bigtableemulator.Call) bool {
				return c.Table == table.String() && c.Method == swaps && len(c.Row) > 0 && c.Row[0] == 'l'
			})
			done := make(chan error, 1)
			go func() { done <- bigtable.WriteBack(t.Context(), handles[0]) }()
			met(t, held, 1)
			if err := bigtable.WriteBack(t.Context(), handles[1]); err != nil {
				t.Fatal(err)
			}
			meanwhile(t, handles[1])
			isFirst := func() string {
				for k, value := range snapshot(t, tbl) {
					if k.row == bigtable.LogKey(1) && k.column == "x:" {
						return string(value)
					}
				}
				return ""
			}
			before := isFirst()
			held.Stop()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			inPages(t, handles, 1)
			if after := isFirst(); after != before {
				t.Errorf("the first segment was %s and is %s", before, after)
			}
			if err := bigtable.Publish(t.Context(), handles[1], "run 0", "run 1"); err != nil {
				t.Fatal(err)
			}
			if n := len(whole(t, openBare(t, table), 0, 3, nil)); n != 10 {
				t.Errorf("the feed has %d events, want 10", n)
			}
		})
	}
}

// An append comes after the page was frozen and its block removed, since all its runs were purged. No
// reader takes what it leaves for a segment, the event is in the feed once, and gc deletes the row.
func TestAppendToARemovedPage(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	s, late := openBare(t, table), openBare(t, table)
	gone := hold(t, s, "gone")
	hold(t, late, "late")
	commit(t, s, signal("gone", "event"))
	if err := bigtable.Publish(t.Context(), s, "gone"); err != nil { // segment 1, which a removed block keeps
		t.Fatal(err)
	}
	commit(t, s, signal("gone", "event"))
	bigtable.PublishPending(t.Context(), s) // segment 2, a page
	commit(t, late, signal("late", "event"))
	held := server(t).Hold(1, onPage(table))
	done := make(chan struct{})
	go func() {
		defer close(done)
		bigtable.PublishPending(t.Context(), late)
	}()
	met(t, held, 1)
	for range 130 {
		commit(t, s, signal("gone", "event"))
		if err := bigtable.Publish(t.Context(), s, "gone"); err != nil {
			t.Fatal(err)
		}
	}
	purge(t, s, gone)
	compact(t, s)
	held.Stop()
	<-done
	junk := func() (n int) {
		for _, key := range keys(t, tbl, "l") {
			if key == bigtable.LogKey(2) {
				n++
			}
		}
		return n
	}
	if junk() != 1 {
		t.Error("the late append left no row")
	}
	all := whole(t, openBare(t, table), 0, 10, nil)
	if len(all) != 1 || all[0].Run != "late" {
		t.Errorf("the feed has %v, want the event of the run that lives", all)
	}
	collect(t, s)
	bigtable.EmptyGarbage(t.Context(), s)
	if junk() != 0 {
		t.Error("gc left the row of the late append")
	}
}

// A process copies segments of a run. Another one seals the same segments, the run is purged, and the
// process reads that. Then it is suspended, and a failover loses the purge: the process must not delete
// the segments, which the head names again.
func TestSealOfALostHistory(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	p := &suspension{after: 3} // behind the reads of the run and the write between them
	old, other := openBare(t, table, p.options), openBare(t, table)
	lease := hold(t, other, "run")
	fill(t, other, lease, 1, 200)
	held := server(t).Hold(1, func(c bigtableemulator.Call) bool {
		return c.Table == table.String() && c.Method == writes && strings.HasPrefix(string(c.Row), "s")
	})
	var heir *bigtable.Store
	survived := cells{}
	p.meanwhile = func() {
		survived.rollBack(t, tbl)
		heir = openBare(t, table)
		if _, err := heir.RaiseEpoch(t.Context(), "failover"); err != nil {
			t.Error(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- bigtable.Seal(t.Context(), old, "run") }()
	met(t, held, 1)
	seal(t, other, "run")
	survived = snapshot(t, tbl)
	purge(t, other, lease)
	held.Stop()
	if err := <-done; err == nil || heir == nil {
		t.Errorf("the seal of a history that was lost: %v", err)
	}
	wholeJournal(t, heir, tbl)
}

// A handle records in the rows of the runs what the log has, and its request arrives after the open page
// has named more, and after another handle has recorded that. Nothing that the page names comes into the
// feed again. The same holds for what a program of format 4 records late, which knows only the ranges that
// the page was created with.
func TestPageIsRecordedLate(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	handles := bareHandles(t, table, 2)
	writeBack := func(s *bigtable.Store, times int) {
		t.Helper()
		for range times {
			if err := bigtable.WriteBack(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
	}
	inPages(t, handles, 2)
	writeBack(handles[0], 2) // the second call finds that nothing was appended, and closes the page
	inPages(t, handles, 1)
	writeBack(handles[0], 1)
	early := snapshot(t, tbl)
	inPages(t, handles[1:], 2)
	writeBack(handles[1], 2)
	early.put(t, tbl, func(k cellKey) bool { return k.row[0] == 'r' && strings.HasPrefix(k.column, "f:") })
	_, life := runOf(t, tbl, "run 0")
	if err := bigtable.RecordHighWater(t.Context(), handles[0], "run 0", life, 3, 2); err != nil {
		t.Fatal(err)
	}
	s := openBare(t, table)
	inPages(t, []*bigtable.Store{s, openBare(t, table)}, 1)
	if err := bigtable.Publish(t.Context(), s, "run 0", "run 1"); err != nil {
		t.Fatal(err)
	}
	if n := len(whole(t, s, 0, 10, nil)); n != 10 {
		t.Errorf("the feed has %d events, want 10", n)
	}
}
