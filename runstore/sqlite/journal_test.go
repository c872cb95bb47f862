package sqlite_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// TestAReplayAllocatesLittle reads a journal of 1,500 events, and the feed. A replay makes 2
// allocations for an event, and some for each page.
func TestAReplayAllocatesLittle(t *testing.T) {
	for _, perCommit := range []int{1, 100} {
		t.Run(fmt.Sprint(perCommit, " a commit"), func(t *testing.T) {
			s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "tape.db"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &runstore.LeaseSpec{Owner: "driver", TTL: time.Minute}})
			if err != nil {
				t.Fatal(err)
			}
			const length = 1500
			for n := 0; n < length; {
				batch := runstore.NewBatch("run", created.Lease.Fence())
				for range perCommit {
					batch.Append("event", fmt.Appendf(nil, "%100d", n))
					n++
				}
				if _, err := s.Commit(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
			}
			for name, replay := range map[string]func(check func(runstore.Event)){
				"journal": func(check func(runstore.Event)) {
					for e, err := range runstore.Journal(t.Context(), s, "run", 1) {
						if err != nil {
							t.Fatal(err)
						}
						check(e)
					}
				},
				"feed": func(check func(runstore.Event)) {
					for after := runstore.Position(0); after < length; {
						page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: runstore.MaxPage})
						if err != nil || len(page) == 0 {
							t.Fatalf("got %d events, error %v", len(page), err)
						}
						for _, e := range page {
							if e.Run != "run" {
								t.Fatalf("got an event of run %q", e.Run)
							}
							check(e.Event)
						}
						after = page[len(page)-1].Position
					}
				},
			} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				n := 0
				replay(func(e runstore.Event) {
					if n++; int(e.Seq) != n || e.Kind != "event" || e.Owner != "driver" {
						t.Fatalf("event %d: %+v", n, e)
					}
				})
				runtime.ReadMemStats(&after)
				if n != length {
					t.Fatalf("%s: %d events", name, n)
				}
				perEvent := float64(after.Mallocs-before.Mallocs) / length
				t.Logf("%s: %.2f allocations per event", name, perEvent)
				if perEvent > 3 {
					t.Errorf("%s: %.2f allocations per event, want 3 at most", name, perEvent)
				}
			}
		})
	}
}

// TestJournalsKeepAnyBytes writes kinds, owners and data that would end a text early, and reads
// them beside another run's.
func TestJournalsKeepAnyBytes(t *testing.T) {
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "tape.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	owner := runstore.Owner("a\x00 1 \xff")
	fences := map[runstore.RunID]runstore.Fence{}
	for _, id := range []runstore.RunID{"run", "other"} {
		created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: owner, TTL: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		fences[id] = created.Lease.Fence()
	}
	var want []runstore.NewEvent
	for i, data := range [][]byte{nil, {0}, []byte("\x00 5 5 "), {0xff, 0xfe}, []byte("é"), bytes.Repeat([]byte{0, ' '}, 100_000)} {
		want = append(want, runstore.NewEvent{Kind: []string{"k", "k 3 \u00e9", "12 "}[i%3], Data: data})
	}
	gap := 0
	for _, e := range want {
		for id, n := range map[runstore.RunID]int{"run": 1, "other": 1 + gap} {
			batch := runstore.NewBatch(id, fences[id])
			for range n {
				batch.Append(e.Kind, e.Data[:min(len(e.Data), 10)])
			}
			if id == "run" {
				batch.Events[0] = e
			}
			if _, err := s.Commit(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
		}
		gap += 10 // some are passed over by a query, and some end it
	}
	for from := range want {
		events, err := s.ReadJournal(t.Context(), "run", runstore.Seq(from+1), 100)
		if err != nil || len(events) != len(want)-from {
			t.Fatalf("from %d: %d events, %v", from+1, len(events), err)
		}
		for i, e := range events {
			w := want[from+i]
			if e.Kind != w.Kind || !bytes.Equal(e.Data, w.Data) || e.Owner != owner || e.Token != fences["run"].Token() ||
				e.Seq != runstore.Seq(from+i+1) || e.Position <= 0 || e.Time.IsZero() {
				t.Errorf("from %d: %+v, want %+v", from+1, e, w)
			}
		}
	}
}

// Two runs that append by turns have an extent for each event, so their tails are sealed several
// times. All their events stay readable, from every position.
func TestSealedTails(t *testing.T) {
	s := openFile(t, filepath.Join(t.TempDir(), "tape.db"))
	runs := []runstore.RunID{"a", "b"}
	for _, id := range runs {
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	const length = 300
	for n := range length {
		for _, id := range runs {
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			b.Append("event", fmt.Append(nil, n+1))
			if _, err := s.Commit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, id := range runs {
		for _, from := range []runstore.Seq{1, 2, length / 2, length} {
			seq := from
			for e, err := range runstore.Journal(t.Context(), s, id, from) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Seq != seq || string(e.Data) != fmt.Sprint(seq) {
					t.Fatalf("run %s from %d: got event %d with %s, want %d", id, from, e.Seq, e.Data, seq)
				}
				seq++
			}
			if seq != length+1 {
				t.Errorf("run %s from %d: the journal ends before %d, want after %d", id, from, seq, length)
			}
		}
	}
}
