package bigtable_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// raisedBefore makes the store's epoch one that a program of format 1 raised.
func raisedBefore(t testing.TB, tbl *client.Table, ended bool) {
	t.Helper()
	newer := regexp.MustCompile(`"format":[0-9]+,|,"end":[0-9]+|,"closed":true`)
	for _, key := range keys(t, tbl, "g") {
		row, err := tbl.ReadRow(t.Context(), key, client.RowFilter(client.LatestNFilter(1)))
		if err != nil {
			t.Fatal(err)
		}
		older := newer.ReplaceAll(row["x"][0].Value, nil)
		if !ended {
			older = bytes.Replace(older, []byte(`"ended":true`), []byte(`"ended":false`), 1)
		}
		setCell(t, tbl, key, "x", "", older)
	}
}

// heads are those of the runs in a table.
func heads(t testing.TB, tbl *client.Table) string {
	t.Helper()
	var b strings.Builder
	for k, value := range snapshot(t, tbl) {
		if k.column == "h:head" {
			b.Write(value)
		}
	}
	return b.String()
}

// A store whose epoch a program of format 1 raised goes on without stamps until the next
// raise. A raise that such a program began, and did not end, is finished with stamps.
func TestEpochRaisedByAnOlderProgram(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{true, false} {
		table := newTable(t)
		first, tbl := openBare(t, table), raw(t, table)
		if _, err := first.RaiseEpoch(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
		raisedBefore(t, tbl, true)
		s := openBare(t, table)
		lease := hold(t, s, "run")
		timeline(t, s, lease, "base", 150, "a", "b")
		seal(t, s, "run")
		commit(t, s, appending(lease, "not in the feed"))
		if all := heads(t, tbl); strings.Contains(all, "stamp") {
			t.Errorf("the head has a stamp: %s", all)
		}
		if lease.Token != runstore.Epoch(1).Floor()+1 {
			t.Errorf("the token is %v, want one of epoch 1", lease.Token)
		}
		if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
			t.Fatal(err)
		}
		before := journal(t, s, "run")
		positions := positionsOf(whole(t, s, 0, runstore.MaxPage, nil))
		epoch := runstore.Epoch(1)
		if ended {
			var err error
			if epoch, err = s.RaiseEpoch(t.Context(), "test"); err != nil {
				t.Fatal(err)
			}
		} else {
			raisedBefore(t, tbl, false)
		}
		next := openBare(t, table)
		if all := heads(t, tbl); !strings.Contains(all, `"stamp":`) {
			t.Errorf("the head has no stamp: %s", all)
		}
		after := journal(t, next, "run")
		at := positionsOf(whole(t, next, 0, runstore.MaxPage, nil))
		if strings.Join(after, " ") != strings.Join(before, " ") {
			t.Errorf("the journal has %d events, had %d", len(after), len(before))
		}
		for i := range positions {
			if at[i] != positions[i] {
				t.Errorf("event %d is at position %d of the feed, was at %d", i+1, at[i], positions[i])
			}
		}
		if n := len(whole(t, next, 0, runstore.MaxPage, nil)); n != len(before) {
			t.Errorf("the feed has %d events, want %d", n, len(before))
		}
		if ended {
			isOver(t, open(t, table), lease, epoch)
		} else { // it was granted in the epoch that the raise began
			commit(t, next, appending(lease, "after"))
		}
	}
}

// An event that the row has behind the last that its head names is in no journal, also in a
// store of format 1.
func TestEventsBehindTheHead(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, s, "run")
	commit(t, s, appending(lease, "first", "second"))
	earlier := snapshot(t, tbl)
	commit(t, s, appending(lease, "third"))
	earlier.put(t, tbl, func(k cellKey) bool { return strings.HasPrefix(k.column, "h:") })
	if events := journal(t, openBare(t, table), "run"); len(events) != 2 {
		t.Errorf("the journal has %q, want two events", events)
	}
}
