package bigtable_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// The hint and the rows of the runs came before the failover, and the log of the feed did not
// from some segment on, or with a hole. The feed has all events that the runs have, and takes
// none of the segments that come late.
func TestLogLagsBehindItsHint(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string]func(n int) bool{
		"its end":    func(n int) bool { return n > 2 },
		"a hole":     func(n int) bool { return n == 2 },
		"all of it":  func(int) bool { return true },
		"its second": func(n int) bool { return n == 2 || n == 3 },
	} {
		for _, again := range []string{"", "and raised again before it comes"} {
			t.Run(strings.TrimSpace(name+" "+again), func(t *testing.T) {
				t.Parallel()
				table := newTable(t)
				old, tbl := openBare(t, table), raw(t, table)
				want := 0
				for _, id := range []runstore.RunID{"run", "other"} {
					lease := hold(t, old, id)
					for i := range 3 {
						commit(t, old, appending(lease, fmt.Sprint(id, " ", i)))
						want++
						if err := bigtable.Publish(t.Context(), old, id); err != nil {
							t.Fatal(err)
						}
					}
				}
				scanIdle(t, old) // the runs have no marks
				late := cells{}
				isMissing := func(key string) bool { return missing(int(binary.BigEndian.Uint64([]byte(key[len(key)-8:])))) }
				for k, value := range snapshot(t, tbl) {
					if isOfLog(k) && isMissing(k.row) {
						late[k] = value
					}
				}
				deleteRows(t, tbl, "l", isMissing)
				move(t, table, tbl)
				s := openBare(t, table)
				if again != "" {
					if _, err := s.RaiseEpoch(t.Context(), "again"); err != nil {
						t.Fatal(err)
					}
				}
				check := func(when string) {
					t.Helper()
					bigtable.OrphanScan(t.Context(), s)
					seen := map[string]bool{}
					for _, e := range whole(t, s, 0, runstore.MaxPage, nil) {
						if seen[string(e.Data)] {
							t.Fatalf("%s: %s is in the feed twice", when, e.Data)
						}
						seen[string(e.Data)] = true
					}
					if len(seen) != want {
						t.Errorf("%s: the feed has %d events, want %d", when, len(seen), want)
					}
				}
				check("before they come")
				late.put(t, tbl, func(cellKey) bool { return true })
				check("when they have come")
			})
		}
	}
}

// The history that the store has lost had a run, and the feed's log says so. The run that has
// its id now is another.
func TestLateLogOfALostRun(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	lagging := snapshot(t, tbl)
	commit(t, old, appending(hold(t, old, "run"), "lost"))
	if err := bigtable.Publish(t.Context(), old, "run"); err != nil {
		t.Fatal(err)
	}
	lost := snapshot(t, tbl)
	lagging.rollBack(t, tbl)
	lost.put(t, tbl, isOfLog)
	move(t, table, tbl)
	s := openBare(t, table)
	commit(t, s, appending(hold(t, s, "run"), "new"))
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	if all := whole(t, s, 0, 10, nil); len(all) != 1 || string(all[0].Data) != "new" {
		t.Errorf("the feed has %+v, want the new run's event once", all)
	}
}

// A run came late, two epochs after the failover that lost its part of the feed's log. Its
// events go into the feed all the same, before it has another.
func TestRunMetTwoEpochsLater(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, old, "run")
	for i := range 2 {
		commit(t, old, appending(lease, fmt.Sprint(i)))
		if err := bigtable.Publish(t.Context(), old, "run"); err != nil {
			t.Fatal(err)
		}
	}
	complete := snapshot(t, tbl)
	ofRun := func(k cellKey) bool { return k.row[0] == 'r' || k.row[0] == 'm' }
	deleteRows(t, tbl, "", func(key string) bool { return strings.ContainsRune("lrm", rune(key[0])) })
	move(t, table, tbl)
	s := openBare(t, table)
	if _, err := s.RaiseEpoch(t.Context(), "again"); err != nil {
		t.Fatal(err)
	}
	if complete.put(t, tbl, ofRun) == 0 {
		t.Fatal("nothing comes late")
	}
	fresh := openBare(t, table)
	bigtable.OrphanScan(t.Context(), fresh) // raises the run, and leaves its events to the next round
	bigtable.OrphanScan(t.Context(), fresh)
	if n := len(whole(t, fresh, 0, 10, nil)); n != 2 {
		t.Errorf("the feed has %d events, want 2", n)
	}
}
