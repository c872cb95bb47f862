package bigtable_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// onPage matches what appends to a page of the log.
func onPage(table bigtableemulator.TableName) func(bigtableemulator.Call) bool {
	return func(c bigtableemulator.Call) bool {
		return c.Table == table.String() && c.Method == clock && len(c.Row) > 0 && c.Row[0] == 'l'
	}
}

// inPages commits an event of each run by its handle in turn, and brings each into the feed at once.
func inPages(t testing.TB, handles []*bigtable.Store, rounds int) {
	t.Helper()
	for i := range rounds {
		for h, s := range handles {
			commit(t, s, signal(runstore.RunID(fmt.Sprint("run ", h)), fmt.Sprint(i)))
			bigtable.PublishPending(t.Context(), s)
		}
	}
}

// bareHandles opens handles without workers and creates one run for each.
func bareHandles(t testing.TB, table bigtableemulator.TableName, n int) (all []*bigtable.Store) {
	t.Helper()
	for h := range n {
		s := openBare(t, table)
		hold(t, s, runstore.RunID(fmt.Sprint("run ", h)))
		all = append(all, s)
	}
	return all
}

// The first handle that finds a page complete records its positions. The others learn that from the hint,
// with the request that reads the page.
func TestPageIsWrittenBackOnce(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	handles := bareHandles(t, table, 2)
	inPages(t, handles, 1)
	writeBack := func(s *bigtable.Store) {
		if err := bigtable.WriteBack(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	writeBack(handles[0])
	writeBack(handles[0]) // closes the page that is idle
	if n := requestsOf(t, table, func() { writeBack(handles[1]) }); n != 1 {
		t.Errorf("%d requests of the second handle, want one", n)
	}
	inPages(t, handles, 1)
	if n := len(whole(t, handles[1], 0, 100, nil)); n != 4 {
		t.Errorf("the feed has %d events, want 4", n)
	}
}

// A page that is full is followed by another one, and a handle that finds it full goes on there.
func TestPageIsFull(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	handles := bareHandles(t, table, 2)
	rounds := bigtable.PageEntries/2 + 5
	inPages(t, handles, rounds)
	if n := len(whole(t, handles[0], 0, 1000, nil)); n != 2*rounds {
		t.Errorf("the feed has %d events, want %d", n, 2*rounds)
	}
	if pages := keys(t, raw(t, table), "l"); len(pages) != 2 {
		t.Errorf("the log has %d segments, want 2 pages", len(pages))
	}
	for _, s := range handles {
		if err := bigtable.WriteBack(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	inPages(t, handles, 1)
	if n := len(whole(t, handles[1], 0, 7, nil)); n != 2*rounds+2 {
		t.Errorf("the feed has %d events, want %d", n, 2*rounds+2)
	}
}

// An event is in a page once, even if the append is repeated or its reply is lost.
func TestPageLosesMessages(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := bareHandles(t, table, 1)
	inPages(t, s, 1)
	refused := server(t).Refuse(1, onPage(table))
	inPages(t, s, 1)
	refused.Stop()
	dropped := server(t).DropReplies(1, onPage(table))
	inPages(t, s, 1)
	dropped.Stop()
	inPages(t, s, 1)
	if n := len(whole(t, s[0], 0, 10, nil)); n != 4 || refused.Count() == 0 || dropped.Count() == 0 {
		t.Errorf("the feed has %d events, want 4; %d and %d requests failed", n, refused.Count(), dropped.Count())
	}
}

// A handle is suspended while its append is under way. Another one brings the event into the feed: in the
// same page, or in a segment behind it, and perhaps the epoch was raised. The append comes late, and
// its event is in the feed once.
func TestAppendIsLate(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(t *testing.T, s *bigtable.Store){
		"the same page": func(t *testing.T, s *bigtable.Store) {
			commit(t, s, signal("run 0", "next"))
			bigtable.PublishPending(t.Context(), s)
		},
		"a segment behind it": func(t *testing.T, s *bigtable.Store) {
			if err := bigtable.Publish(t.Context(), s, "run 0"); err != nil {
				t.Fatal(err)
			}
			commit(t, s, signal("run 0", "next"))
			bigtable.PublishPending(t.Context(), s)
		},
		"the next epoch": func(t *testing.T, s *bigtable.Store) {
			if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
				t.Fatal(err)
			}
			if err := bigtable.Publish(t.Context(), s, "run 0"); err != nil {
				t.Fatal(err)
			}
			commit(t, s, signal("run 0", "next"))
			bigtable.PublishPending(t.Context(), s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			handles := bareHandles(t, table, 2)
			inPages(t, handles, 2)
			commit(t, handles[0], signal("run 0", "held"))
			held := server(t).Hold(1, onPage(table))
			done := make(chan struct{})
			go func() {
				defer close(done)
				bigtable.PublishPending(t.Context(), handles[0])
			}()
			met(t, held, 1)
			meanwhile(t, handles[1])
			before := whole(t, handles[1], 0, 10, nil)
			held.Stop()
			<-done
			if err := bigtable.Publish(t.Context(), openBare(t, table), "run 0", "run 1"); err != nil {
				t.Fatal(err)
			}
			after := whole(t, handles[1], 0, 10, nil)
			if len(before) != 6 || len(after) != 6 {
				t.Errorf("the feed had %d events and has %d, want 6 each time", len(before), len(after))
			}
		})
	}
}

// pagesOf returns the rows of the log that handles may append to.
func pagesOf(t testing.TB, tbl *client.Table) (rows []string) {
	t.Helper()
	for k := range snapshot(t, tbl) {
		if k.row[0] == 'l' && k.column == "x:+" {
			rows = append(rows, k.row)
		}
	}
	return rows
}

// A page that nobody has appended to for a while is closed, and what it names is in the cell that
// programs of format 4 read.
func TestIdlePageIsFrozen(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	handles := bareHandles(t, table, 2)
	inPages(t, handles, 2)
	writeBack := func() {
		t.Helper()
		if err := bigtable.WriteBack(t.Context(), handles[0]); err != nil {
			t.Fatal(err)
		}
	}
	writeBack()
	inPages(t, handles[1:], 1)
	writeBack()
	if n := len(pagesOf(t, tbl)); n != 1 {
		t.Fatalf("%d pages are open while handles append, want 1", n)
	}
	writeBack()
	if n := len(pagesOf(t, tbl)); n != 0 {
		t.Errorf("%d pages are open, want none", n)
	}
	row, err := tbl.ReadRow(t.Context(), bigtable.LogKey(1), client.RowFilter(client.LatestNFilter(1)))
	if err != nil || len(row["x"]) != 1 {
		t.Fatalf("the first segment: %v, %v, want one cell", row, err)
	}
	var segment struct{ Ranges []struct{ N int } }
	if err := json.Unmarshal(row["x"][0].Value, &segment); err != nil || len(segment.Ranges) != 5 {
		t.Errorf("the first segment: %s, %v, want 5 ranges", row["x"][0].Value, err)
	}
	inPages(t, handles, 1)
	if n := len(whole(t, handles[0], 0, 3, nil)); n != 7 {
		t.Errorf("the feed has %d events, want 7", n)
	}
}

// A program of format 4 takes an open page for a complete segment, and goes on behind it, with events
// of runs that no newer program has written to. Readers see its segment once the page was reviewed.
func TestProgramOfFormat4BehindAPage(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	s := bareHandles(t, table, 1)
	hold(t, s[0], "old")
	commit(t, s[0], signal("old", "event"))
	ofFormat4(t, tbl, "old")
	s = []*bigtable.Store{openBare(t, table)}
	inPages(t, s, 2)
	m := client.NewMutation()
	run, life := runOf(t, tbl, "old")
	value, _ := json.Marshal(map[string]any{"by": 1, "ranges": []any{map[string]any{"run": run, "life": life, "from": 1, "n": 1}}})
	m.Set("x", "", 0, value)
	if err := tbl.Apply(t.Context(), bigtable.LogKey(2), m); err != nil {
		t.Fatal(err)
	}
	inPages(t, s, 2)
	if n := len(whole(t, s[0], 0, 10, nil)); n != 4 {
		t.Fatalf("the feed has %d events while the page is open, want 4", n)
	}
	if err := bigtable.WriteBack(t.Context(), s[0]); err != nil {
		t.Fatal(err)
	}
	inPages(t, s, 1)
	all := whole(t, s[0], 0, 10, nil)
	if len(all) != 6 || all[4].Run != "old" {
		t.Errorf("the feed has %v, want 6 events, the fifth of the run of format 4", all)
	}
}

// A program of format 4 goes on behind an open page, and records that in the row of its run. A newer
// program commits to the run while the page is still open: its event comes behind those.
func TestEventsBehindThoseOfFormat4(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	handles := bareHandles(t, table, 1)
	old := openBare(t, table)
	hold(t, old, "run 1")
	commit(t, old, signal("run 1", "of format 4"))
	ofFormat4(t, tbl, "run 1")
	inPages(t, handles, 2)
	run, life := runOf(t, tbl, "run 1")
	value, _ := json.Marshal(map[string]any{"by": 1, "ranges": []any{map[string]any{"run": run, "life": life, "from": 1, "n": 1}}})
	m := client.NewMutation()
	m.Set("x", "", 0, value)
	if err := tbl.Apply(t.Context(), bigtable.LogKey(2), m); err != nil {
		t.Fatal(err)
	}
	if err := bigtable.RecordHighWater(t.Context(), old, "run 1", life, 1, 2); err != nil {
		t.Fatal(err)
	}
	next := []*bigtable.Store{handles[0], openBare(t, table)}
	takeOver(t, next[1], "run 1")
	inPages(t, next, 1)
	if n := len(whole(t, old, 0, 10, nil)); n != 5 { // whole checks the order
		t.Errorf("the feed has %d events, want 5", n)
	}
}

// Events that a program of format 4 has committed, and may still bring into the feed from memory, are
// in no page.
func TestEventsOfFormat4AreInNoPage(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	handles := bareHandles(t, table, 1)
	old := openBare(t, table)
	hold(t, old, "run 1")
	commit(t, old, signal("run 1", "of format 4"))
	ofFormat4(t, tbl, "run 1")
	inPages(t, handles, 2)
	hold(t, old, "run 2")
	commit(t, old, signal("run 2", "of format 4"))
	ofFormat4(t, tbl, "run 2")
	if err := bigtable.Publish(t.Context(), openBare(t, table), "run 2"); err != nil { // a segment behind the page
		t.Fatal(err)
	}
	for k := range snapshot(t, tbl) {
		if strings.HasSuffix(k.row, "run 2") && strings.HasPrefix(k.column, "f:") && !strings.HasPrefix(k.column, "f:t") {
			t.Errorf("the row of a run of format 4 has the column %q, which programs of format 4 do not know", k.column)
		}
	}
	inPages(t, handles, 1)
	next := []*bigtable.Store{handles[0], openBare(t, table)}
	takeOver(t, next[1], "run 1")
	commit(t, next[1], signal("run 1", "of format 5"))
	bigtable.PublishPending(t.Context(), next[1])
	if n := len(keys(t, tbl, "l")); n != 4 || slices.Contains(pagesOf(t, tbl), bigtable.LogKey(4)) {
		t.Errorf("the log has %d segments and pages %q, want a page and a segment behind it, twice", n, pagesOf(t, tbl))
	}
	inPages(t, next, 2)
	if n := len(keys(t, tbl, "l")); n != 5 {
		t.Errorf("the log has %d segments, want 5: what follows is in one page", n)
	}
	if n := len(whole(t, old, 0, 20, nil)); n != 10 {
		t.Errorf("the feed has %d events, want 10", n)
	}
}

// ofFormat4 makes a run one that only programs of format 4 have written to.
func ofFormat4(t testing.TB, tbl *client.Table, id runstore.RunID) {
	t.Helper()
	for k, value := range snapshot(t, tbl) {
		if k.row[0] == 'r' && strings.HasSuffix(k.row, string(id)) && k.column == "h:head" {
			m := client.NewMutation()
			m.Set("h", "head", k.at, []byte(strings.Replace(string(value), `"format":5`, `"format":4`, 1)))
			if err := tbl.Apply(t.Context(), k.row, m); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// runOf returns how the log names a run and its generation.
func runOf(t testing.TB, tbl *client.Table, id runstore.RunID) (run []byte, life int64) {
	t.Helper()
	for k, value := range snapshot(t, tbl) {
		if k.row[0] == 'r' && strings.HasSuffix(k.row, string(id)) && k.column == "h:head" {
			var head struct{ Life int64 }
			if err := json.Unmarshal(value, &head); err != nil {
				t.Fatal(err)
			}
			return []byte(id), head.Life
		}
	}
	t.Fatalf("there is no run %q", id)
	return nil, 0
}

// A failover loses the end of a page, which comes late. What it named is in the feed again before, and
// no reader finds it in the page after that.
func TestEndOfAPageIsLost(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	old := bareHandles(t, table, 1)
	inPages(t, old, 2)
	if err := bigtable.WriteBack(t.Context(), old[0]); err != nil {
		t.Fatal(err)
	}
	first := snapshot(t, tbl)
	inPages(t, old, 2)
	if err := bigtable.WriteBack(t.Context(), old[0]); err != nil {
		t.Fatal(err)
	}
	second := snapshot(t, tbl)
	deleteRows(t, tbl, "l", func(string) bool { return true })
	first.put(t, tbl, isOfLog)
	move(t, table, tbl)
	s := openBare(t, table)
	for _, when := range []string{"before it comes", "when it has come"} {
		bigtable.OrphanScan(t.Context(), s)
		all := whole(t, s, 0, 10, nil)
		if len(all) != 4 {
			t.Errorf("%s: the feed has %d events, want 4", when, len(all))
		}
		late := cells{} // under the timestamps of a server whose clock is ahead
		for k, value := range second {
			if k.column == "x:+" {
				k.at += client.Timestamp(time.Hour.Microseconds())
			}
			late[k] = value
		}
		late.put(t, tbl, isOfLog)
	}
	commit(t, s, signal("run 0", "next"))
	bigtable.PublishPending(t.Context(), s)
	if all := whole(t, s, 0, 10, nil); len(all) != 5 {
		t.Errorf("the feed has %d events, want 5", len(all))
	}
}

// A handle that begins with the hint finds the page that is open, and appends to it.
func TestHintStaysBeforeAnOpenPage(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	handles := bareHandles(t, table, 2)
	inPages(t, handles, 2)
	if err := bigtable.WriteBack(t.Context(), handles[0]); err != nil {
		t.Fatal(err)
	}
	inPages(t, []*bigtable.Store{openBare(t, table)}, 1)
	if n := len(whole(t, handles[0], 0, 10, nil)); n != 5 {
		t.Errorf("the feed has %d events, want 5", n)
	}
	if n := len(keys(t, raw(t, table), "l")); n != 1 {
		t.Errorf("the log has %d segments, want the one page", n)
	}
}

// The cells that record what the feed has do not wait for the table's garbage collection.
func TestVersionsArePruned(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	tbl := raw(t, table)
	handles := bareHandles(t, table, 1)
	versions := func(row, column string) (n int) {
		t.Helper()
		r, err := tbl.ReadRow(t.Context(), row)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range r[column[:1]] {
			if strings.HasPrefix(item.Column, column) {
				n++
			}
		}
		return n
	}
	for range 5 {
		inPages(t, handles, 1)
		for range 2 { // the second call finds that nothing was appended, and closes the page: the hint advances
			if err := bigtable.WriteBack(t.Context(), handles[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, key := range keys(t, tbl, "r") {
		if n := versions(key, "f:"); n != 3 {
			t.Errorf("the row of the run has %d cells that say what the feed has, want 3", n)
		}
	}
	if n := versions("L", "x:p"); n != 1 {
		t.Errorf("the hint has %d versions, want 1", n)
	}
}
