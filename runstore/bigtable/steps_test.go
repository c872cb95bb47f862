package bigtable_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// skip makes the log of the feed go on where the next step begins.
func skip(t testing.TB, s *bigtable.Store) {
	t.Helper()
	if err := bigtable.SkipSegments(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// lose deletes the pages of the feed's log, but for some.
func lose(t testing.TB, tbl *client.Table, kept []string) {
	t.Helper()
	deleteRows(t, tbl, "l", func(key string) bool { return !slices.Contains(kept, key) })
}

// deleteRows deletes the rows of a prefix that chosen returns true for.
func deleteRows(t testing.TB, tbl *client.Table, prefix string, chosen func(key string) bool) {
	t.Helper()
	for _, key := range keys(t, tbl, prefix) {
		if !chosen(key) {
			continue
		}
		m := client.NewMutation()
		m.DeleteRow()
		if err := tbl.Apply(t.Context(), key, m); err != nil {
			t.Fatal(err)
		}
	}
}

// stepsOf returns the columns of the one run's steps.
func stepsOf(t testing.TB, tbl *client.Table) (columns []string) {
	t.Helper()
	for k := range snapshot(t, tbl) {
		if k.row[0] == 'r' && strings.HasPrefix(k.column, "f:t") && len(k.column) == len("f:t")+16 {
			columns = append(columns, k.column)
		}
	}
	return columns
}

// A failover loses the end of the feed's log, but not what the rows of its runs say. Events that
// were in it come into the feed again; those that the log still has stay where they are, whether
// they are in its last segments, in others, or in those of an epoch before.
func TestLogLosesItsEnd(t *testing.T) {
	t.Parallel()
	for _, raised := range []bool{false, true} {
		t.Run(fmt.Sprint("raised before ", raised), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			old, tbl := openBare(t, table), raw(t, table)
			put := func(events ...string) {
				t.Helper()
				for _, event := range events {
					commit(t, old, signal(runstore.RunID(event[:4]), event))
				}
				if err := bigtable.Publish(t.Context(), old, "busy", "rare"); err != nil {
					t.Fatal(err)
				}
			}
			hold(t, old, "busy")
			hold(t, old, "rare")
			put("busy 1", "rare 1")
			if raised {
				if _, err := old.RaiseEpoch(t.Context(), "test"); err != nil {
					t.Fatal(err)
				}
				put("busy 2")
			}
			skip(t, old)
			put("busy 3")
			skip(t, old)
			put("busy 4")
			put("busy 5")
			kept := keys(t, tbl, "l")
			read := whole(t, old, 0, 10, nil)
			put("busy 6", "rare 2")
			skip(t, old)
			put("busy 7")
			lose(t, tbl, kept)
			move(t, table, tbl)
			s := openBare(t, table)
			bigtable.OrphanScan(t.Context(), s)
			var news []string
			next := map[runstore.RunID]runstore.Seq{}
			for _, e := range read {
				next[e.Run] = e.Seq + 1
			}
			for _, e := range whole(t, s, read[len(read)-1].Position, 10, next) {
				news = append(news, string(e.Data))
			}
			slices.Sort(news)
			if fmt.Sprint(news) != "[busy 6 busy 7 rare 2]" {
				t.Errorf("behind what it had read, a reader has %v, want the lost events", news)
			}
			all := whole(t, s, 0, 3, nil)
			if len(all) != len(read)+len(news) {
				t.Errorf("the feed has %d events, want %d and those that were lost", len(all), len(read))
			}
			for i, e := range all[:min(len(read), len(all))] {
				if e.Position != read[i].Position || string(e.Data) != string(read[i].Data) {
					t.Errorf("the feed has %s at %d, and had %s at %d", e.Data, e.Position, read[i].Data, read[i].Position)
				}
			}
		})
	}
}

// Of a run whose log was lost beyond what its row says of it, all events come into the feed again,
// and none is there twice.
func TestFailoverWithoutSteps(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	hold(t, old, "run")
	fillAndFeed := func(event string) {
		t.Helper()
		commit(t, old, signal("run", event))
		if err := bigtable.Publish(t.Context(), old, "run"); err != nil {
			t.Fatal(err)
		}
	}
	fillAndFeed("first")
	skip(t, old)
	kept := keys(t, tbl, "l")
	fillAndFeed("second")
	lose(t, tbl, kept)
	m := client.NewMutation()
	for _, column := range stepsOf(t, tbl) {
		m.DeleteCellsInColumn("f", column[2:])
	}
	if err := tbl.Apply(t.Context(), keys(t, tbl, "r")[0], m); err != nil {
		t.Fatal(err)
	}
	move(t, table, tbl)
	s := open(t, table)
	wholeFeed(t, "the feed", s, map[string]bool{"run 1": true, "run 2": true})
}

// Sealing a run leaves its newest steps: its row does not grow with the age of the store, and the
// events that a failover loses are known.
func TestSealDropsOldSteps(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, old, "run")
	for i := range 25 {
		fill(t, old, lease, i*8+1, 8)
		if err := bigtable.Publish(t.Context(), old, "run"); err != nil {
			t.Fatal(err)
		}
		skip(t, old)
	}
	before := len(stepsOf(t, tbl))
	seal(t, old, "run")
	if n := len(stepsOf(t, tbl)); before != 25 || n != 16 {
		t.Errorf("the row has %d steps, and %d when it is sealed, want 25 and 16", before, n)
	}
	read := whole(t, old, 0, runstore.MaxPage, nil)
	kept := keys(t, tbl, "l")
	fill(t, old, lease, 201, 1)
	if err := bigtable.Publish(t.Context(), old, "run"); err != nil {
		t.Fatal(err)
	}
	lose(t, tbl, kept)
	move(t, table, tbl)
	s := open(t, table)
	if news := feed(t, s, read[len(read)-1].Position, 1); len(news) != 1 || news[0].Seq != 201 {
		t.Errorf("behind what it had read, a reader has %d events from %d on, want the lost one", len(news), news[0].Seq)
	}
	inFeed(t, s, 201)
}

// The newest events are found in the logs of former epochs, whether or not that of the newest has
// any, and across stretches of which all runs were purged.
func TestNewestAcrossEpochs(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	hold(t, s, "run")
	var want []string
	check := func(when string) {
		t.Helper()
		if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
			t.Fatal(err)
		}
		for _, limit := range []int{1, 3, 100} {
			page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Newest: true, Limit: limit})
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			var got []string
			for _, e := range page {
				got = append(got, string(e.Data))
			}
			if newest := want[max(len(want)-limit, 0):]; fmt.Sprint(got) != fmt.Sprint(newest) {
				t.Errorf("%s: the newest %d events are %v, want %v", when, limit, got, newest)
			}
		}
	}
	for round := range 3 {
		check(fmt.Sprint("round ", round, ", before its events"))
		for i := range 2 {
			want = append(want, fmt.Sprint(round, ".", i))
			commit(t, s, signal("run", want[len(want)-1]))
			check(fmt.Sprint("round ", round))
		}
		for i := range 70 { // more than a block
			id := runstore.RunID(fmt.Sprint("purged ", round, ".", i))
			lease := hold(t, s, id)
			commit(t, s, signal(id, "purged"))
			if err := bigtable.Publish(t.Context(), s, id); err != nil {
				t.Fatal(err)
			}
			purge(t, s, lease)
		}
		check(fmt.Sprint("round ", round, ", with purged runs"))
		if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
	check("at the end")
}
