package bigtable_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// lines collects what a handle logs.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(p))
	return len(p), nil
}

func (l *lines) with(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.all {
		if strings.Contains(one, text) {
			n++
		}
	}
	return n
}

func (l *lines) into(o *bigtable.Options) { o.Logger = slog.New(slog.NewTextHandler(l, nil)) }

// rowOf returns the key of a run's row, and the row.
func rowOf(t testing.TB, tbl *client.Table, id runstore.RunID) (string, client.Row) {
	t.Helper()
	for _, key := range keys(t, tbl, "r") {
		if bigtable.RunOf(key) == id {
			row, err := tbl.ReadRow(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			return key, row
		}
	}
	t.Fatalf("there is no run %q", id)
	return "", nil
}

// setCell writes a cell beside the adapter, and returns a function that restores the row.
func setCell(t testing.TB, tbl *client.Table, key, family, column string, value []byte) (restore func()) {
	t.Helper()
	before, err := tbl.ReadRow(t.Context(), key, client.RowFilter(client.LatestNFilter(1)))
	if err != nil {
		t.Fatal(err)
	}
	apply := func(m *client.Mutation) {
		t.Helper()
		if err := tbl.Apply(t.Context(), key, m); err != nil {
			t.Fatal(err)
		}
	}
	m := client.NewMutation()
	m.DeleteCellsInColumn(family, column)
	if value != nil {
		m.Set(family, column, 0, value)
	}
	apply(m)
	return func() {
		m := client.NewMutation()
		m.DeleteCellsInColumn(family, column)
		for _, item := range before[family] {
			if item.Column == family+":"+column {
				m.Set(family, column, item.Timestamp, item.Value)
			}
		}
		apply(m)
	}
}

// damages are cells of a run's row that cannot be decoded.
func damages(t testing.TB, tbl *client.Table, id runstore.RunID) map[string]func() (restore func()) {
	key, _ := rowOf(t, tbl, id)
	return map[string]func() func(){
		"head":                  func() func() { return setCell(t, tbl, key, "h", "head", []byte(`{"rev":`)) },
		"no head":               func() func() { return setCell(t, tbl, key, "h", "head", nil) },
		"positions in the feed": func() func() { return setCell(t, tbl, key, "f", "?", []byte("?")) },
	}
}

// A run whose row cannot be decoded keeps no other run from the feed, the queues and the
// passes. It is logged once, its own operations fail at once with an error that names it, and
// it goes on where it was when it is repaired.
func TestDamagedRunStopsNoOther(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"head", "no head", "positions in the feed"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			var log lines
			writer, tbl := openBare(t, table), raw(t, table)
			ids := []runstore.RunID{"a", "b", "bad", "c", "d"}
			for _, id := range ids {
				hold(t, writer, id)
				b := signal(id, "event")
				b.Put("key", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
				commit(t, writer, b)
			}
			restore := damages(t, tbl, "bad")[what]()
			s := openBare(t, table, log.into)
			for range 3 {
				if err := bigtable.Publish(t.Context(), s, ids...); err != nil {
					t.Fatalf("into the feed: %v", err)
				}
				bigtable.OrphanScan(t.Context(), s)
			}
			if n := len(whole(t, s, 0, 10, nil)); n != 4 {
				t.Errorf("the feed has %d events, want those of the 4 sound runs", n)
			}
			want := 4
			if what == "positions in the feed" { // which the queues do not need
				want = 5
			}
			for _, index := range []runstore.IndexName{"queue", runstore.IndexRuns} {
				found, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: 10})
				if err != nil || len(found) != want {
					t.Errorf("the index %s has %d entries, %v, want %d", index, len(found), err, want)
				}
			}
			if all, bad := log.with("level="), log.with(`run=bad`); all != 1 || bad != 1 {
				t.Errorf("logged %q, want one line that names the run", log.all)
			}
			if want == 4 {
				_, readErr := s.GetRun(t.Context(), "bad")
				_, writeErr := s.Commit(t.Context(), signal("bad", "lost?"))
				for _, err := range []error{readErr, writeErr} {
					var damage *runstore.CorruptError
					if !errors.As(err, &damage) || damage.Run != "bad" {
						t.Errorf("got %v, want ErrCorrupt that names the run", err)
					}
					fails(t, err, runstore.ErrCorrupt, runstore.ErrCorrupt, runstore.NotApplied)
				}
			}
			restore()
			bigtable.OrphanScan(t.Context(), s)
			if n := len(whole(t, s, 0, 10, nil)); n != 5 {
				t.Errorf("after the repair the feed has %d events, want 5", n)
			}
			if found, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10}); err != nil || len(found) != 5 {
				t.Errorf("after the repair the queue has %d entries, %v, want 5", len(found), err)
			}
		})
	}
}

// Events that the feed has and that cannot be decoded, or are gone, are returned with an error
// that names their run, in their places. The events of other runs are returned as ever.
func TestDamagedEventsOfTheFeed(t *testing.T) {
	t.Parallel()
	drop := func(prefix string, n int) func(t testing.TB, tbl *client.Table) {
		return func(t testing.TB, tbl *client.Table) {
			m := client.NewMutation()
			m.DeleteRow()
			if err := tbl.Apply(t.Context(), keys(t, tbl, prefix)[n], m); err != nil {
				t.Fatal(err)
			}
		}
	}
	cell := func(family, column string) func(t testing.TB, tbl *client.Table) {
		return func(t testing.TB, tbl *client.Table) {
			key, row := rowOf(t, tbl, "bad")
			if column == "" {
				column = row[family][0].Column[2:]
			}
			setCell(t, tbl, key, family, column, []byte{0xff, 0xff, 0xff})
		}
	}
	for _, tc := range []struct {
		name  string
		harm  func(t testing.TB, tbl *client.Table)
		wrong int // events with an error, of 202; 1 means some of those that the row holds
	}{
		{"head", cell("h", "head"), 202},
		{"events of the row", cell("e", ""), 1},
		{"segment", func(t testing.TB, tbl *client.Table) {
			setCell(t, tbl, keys(t, tbl, "s")[0], "x", "", []byte{0xff, 0xff, 0xff})
		}, 64},
		{"no segment", drop("s", 0), 64},
		{"no value", drop("d", 0), 1},
		{"no row", func(t testing.TB, tbl *client.Table) {
			key, _ := rowOf(t, tbl, "bad")
			m := client.NewMutation()
			m.DeleteRow()
			if err := tbl.Apply(t.Context(), key, m); err != nil {
				t.Fatal(err)
			}
		}, 202},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, tbl := openBare(t, table), raw(t, table)
			lease := hold(t, s, "bad")
			fill(t, s, lease, 1, 200)
			large := appending(lease, "x")
			large.Append("test", bytes.Repeat([]byte("x"), 100<<10))
			commit(t, s, large)
			for i := range 3 {
				id := runstore.RunID(fmt.Sprint("good ", i))
				hold(t, s, id)
				commit(t, s, signal(id, "event"))
			}
			if err := bigtable.Publish(t.Context(), s, "bad", "good 0", "good 1", "good 2"); err != nil {
				t.Fatal(err)
			}
			seal(t, s, "bad")
			tc.harm(t, tbl)
			good, wrong := 0, 0
			for _, e := range whole(t, s, 0, 50, nil) {
				var damage *runstore.CorruptError
				switch {
				case e.Run != "bad" && e.Err == nil:
					good++
				case e.Err == nil:
				case e.Run != "bad" || !errors.As(e.Err, &damage) || damage.Run != "bad" || e.Data != nil:
					t.Errorf("event %d of %s: got %v", e.Seq, e.Run, e.Err)
				default:
					wrong++
				}
			}
			if good != 3 || tc.wrong == 1 && (wrong == 0 || wrong > 80) || tc.wrong > 1 && wrong != tc.wrong {
				t.Errorf("%d events of sound runs and %d with an error, want 3 and %d", good, wrong, tc.wrong)
			}
		})
	}
}

// An entry whose value is lost is left out of scans and logged. It keeps no other entry from them.
func TestLostValueLeavesTheQueue(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("x"), 100<<10)
	for _, index := range []runstore.IndexName{"queue", runstore.IndexRuns, runstore.IndexRunnable} {
		for _, limit := range []int{1, 2, 10} {
			t.Run(fmt.Sprintf("%s, limit %d", index, limit), func(t *testing.T) {
				t.Parallel()
				table := newTable(t)
				var log lines
				s, tbl := openBare(t, table, log.into), raw(t, table)
				for _, id := range []runstore.RunID{"bad", "good"} {
					if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
						t.Fatal(err)
					}
					b := signal(id, "event")
					b.Runnable = runstore.After(0)
					b.Put("key", large, runstore.Place{Index: "queue", At: runstore.After(0)})
					b.Put(runstore.SummaryKey, large)
					commit(t, s, b)
					if id == "bad" {
						for _, key := range keys(t, tbl, "d") {
							m := client.NewMutation()
							m.DeleteRow()
							if err := tbl.Apply(t.Context(), key, m); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				var got []runstore.RunID
				for e, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: limit}) {
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, e.Run)
				}
				if !slices.Equal(got, []runstore.RunID{"good"}) {
					t.Errorf("the scan has the entries of %q, want those of the sound run", got)
				}
				if n := log.with("run=bad"); n != 1 {
					t.Errorf("logged %q, want one line that names the run", log.all)
				}
			})
		}
	}
}

// A page of the feed's log that cannot be decoded is one event with an error, of no run.
func TestDamagedPageOfTheFeed(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	hold(t, s, "run")
	for range 3 {
		commit(t, s, signal("run", "event"))
		if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys(t, tbl, "l") {
		if strings.HasSuffix(key, "\x02") {
			setCell(t, tbl, key, "x", "", []byte("{"))
		}
	}
	commit(t, s, signal("run", "last"))
	if err := bigtable.Publish(t.Context(), openBare(t, table), "run"); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{1, 10} {
		var got []string
		var after runstore.Position
		for {
			page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: limit})
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				got = append(got, fmt.Sprintf("%s %d %t", e.Run, e.Seq, errors.Is(e.Err, runstore.ErrCorrupt)))
			}
			after = page[len(page)-1].Position
		}
		if want := []string{"run 1 false", " 0 true", "run 3 false", "run 4 false"}; !slices.Equal(got, want) {
			t.Errorf("the feed has %q, want %q", got, want)
		}
	}
}

// newer writes a run's head as a newer program would: with another format or field, and a
// revision of its own.
func newer(t testing.TB, tbl *client.Table, id runstore.RunID, field string, value any) {
	t.Helper()
	key, row := rowOf(t, tbl, id)
	for _, item := range row["h"] {
		if item.Column != "h:head" {
			continue
		}
		head := map[string]json.RawMessage{}
		if err := json.Unmarshal(item.Value, &head); err != nil {
			t.Fatal(err)
		}
		head["rev"] = json.RawMessage("100")
		head[field], _ = json.Marshal(value)
		changed, _ := json.Marshal(head)
		m := client.NewMutation()
		m.Set("h", "head", 0, changed)
		m.Set("h", "rev", 0, []byte("\x00\x00\x00\x00\x00\x00\x00\x64newer..."))
		if err := tbl.Apply(t.Context(), key, m); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("the run has no head")
}

// A run that a newer program has written to is refused from then on, by a handle that was open
// before too, and is left as it is. Other runs go on. The feed stops before it.
func TestNewerRun(t *testing.T) {
	t.Parallel()
	for field, value := range map[string]any{"format": 6, "unheardOf": "?"} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, tbl := openBare(t, table), raw(t, table)
			lease, other := hold(t, s, "run"), hold(t, s, "other")
			commit(t, s, appending(other, "first"))
			if err := bigtable.Publish(t.Context(), s, "other"); err != nil {
				t.Fatal(err)
			}
			commit(t, s, appending(lease, "first"))
			if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
				t.Fatal(err)
			}
			newer(t, tbl, "run", field, value)
			_, before := rowOf(t, tbl, "run")
			late := appending(lease, "late")
			for what, f := range map[string]func() error{
				"commit": func() error { _, err := s.Commit(t.Context(), late); return err },
				"renew": func() error {
					_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute})
					return err
				},
				"release": func() error {
					_, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
					return err
				},
				"read":    func() error { _, err := s.GetRun(t.Context(), "run"); return err },
				"journal": func() error { _, err := s.ReadJournal(t.Context(), "run", 1, 10); return err },
			} {
				err := f()
				if runstore.OutcomeOf(err) == runstore.Unknown { // it found a revision that it cannot read, which may follow on its own
					err = f()
				}
				fails(t, err, runstore.ErrUnsupported, runstore.ErrUnsupported, runstore.NotApplied)
				if !strings.Contains(fmt.Sprint(err), `run "run"`) || !strings.Contains(fmt.Sprint(err), "newer program") {
					t.Errorf("%s: %v does not name the run and the way out", what, err)
				}
			}
			bigtable.OrphanScan(t.Context(), s)
			if _, after := rowOf(t, tbl, "run"); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("the row was changed: %v, it was %v", after, before)
			}
			if page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10}); err != nil || len(page) != 1 || page[0].Run != "other" {
				t.Errorf("the feed: got %v, %v, want the event before", page, err)
			} else if page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: page[0].Position, Limit: 10}); !errors.Is(err, runstore.ErrUnsupported) || !strings.Contains(err.Error(), `run "run"`) {
				t.Errorf("the feed at the run: got %v, %v, want ErrUnsupported that names it", page, err)
			}
			commit(t, s, appending(other, "second"))
		})
	}
}

// A store of a newer format is not opened. A handle that is open creates no run and acquires no
// lease in it, and leaves the epochs as they are.
func TestNewerStore(t *testing.T) {
	t.Parallel()
	for field, value := range map[string]string{"format": "6", "unheardOf": `"?"`} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, tbl := openBare(t, table), raw(t, table)
			lease := hold(t, s, "run")
			rows := map[string][]byte{}
			for _, key := range keys(t, tbl, "g") {
				row, err := tbl.ReadRow(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				changed := bytes.Replace(row["x"][0].Value, []byte(`"format":5,`), nil, 1)
				changed = bytes.Replace(changed, []byte("{"), []byte(`{"`+field+`":`+value+","), 1)
				rows[key] = changed
				setCell(t, tbl, key, "x", "", changed)
			}
			_, opened := tryOpen(t, table)
			_, created := s.CreateRun(t.Context(), runstore.RunSpec{ID: "new"})
			_, acquired := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "o", TTL: time.Minute}, Preempt: "test"})
			_, raised := s.RaiseEpoch(t.Context(), "test")
			for what, err := range map[string]error{"a new handle": opened, "create": created, "acquire": acquired, "raise": raised} {
				if !errors.Is(err, runstore.ErrUnsupported) || !strings.Contains(err.Error(), "newer program") {
					t.Errorf("%s: got %v, want ErrUnsupported", what, err)
				}
			}
			for key, want := range rows {
				if row, err := tbl.ReadRow(t.Context(), key); err != nil || !bytes.Equal(row["x"][0].Value, want) {
					t.Errorf("the epochs were changed: %v, %v", row, err)
				}
			}
			commit(t, s, appending(lease, "under the grant that it has"))
		})
	}
}
