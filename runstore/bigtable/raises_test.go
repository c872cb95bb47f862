package bigtable_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// However often the epoch is raised, in turn or at once, by several handles, and whether
// events came between or not, the feed has every event.
func TestManyRaises(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]func(wg *sync.WaitGroup, raise func()){
		"in turn": func(_ *sync.WaitGroup, raise func()) { raise() },
		"at once": func(wg *sync.WaitGroup, raise func()) { wg.Go(raise) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tbl := newTable(t)
			handles := make([]*bigtable.Store, 4)
			for i := range handles {
				handles[i] = open(t, tbl)
			}
			want := map[string]bool{}
			for round := range 5 {
				id := runstore.RunID(fmt.Sprint("run-", round))
				if _, err := handles[0].CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
					t.Fatal(err)
				}
				for seq := range 3 {
					b := runstore.NewBatch(id, runstore.Unguarded("test"))
					b.Append("test", []byte("event"))
					if _, err := handles[(round+seq)%len(handles)].Commit(t.Context(), b); err != nil {
						t.Fatal(err)
					}
					want[fmt.Sprint(id, " ", seq+1)] = true
				}
				var wg sync.WaitGroup
				for _, h := range handles[:round] { // none, one, several
					each(&wg, func() {
						if _, err := h.RaiseEpoch(t.Context(), "test"); err != nil {
							t.Errorf("raise: %v", err)
						}
					})
				}
				wg.Wait()
			}
			for i, h := range append(handles, open(t, tbl)) {
				wholeFeed(t, fmt.Sprint("handle ", i), h, want)
			}
		})
	}
}

// wholeFeed reads the feed until it has shown every wanted event. It fails the test if an
// event comes out of order, twice, or is not wanted.
func wholeFeed(t *testing.T, what string, s *bigtable.Store, want map[string]bool) {
	t.Helper()
	var after runstore.Position
	seen := map[string]bool{}
	for len(seen) < len(want) {
		page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 5})
		if err != nil {
			t.Fatalf("%s: feed after %d: %v", what, after, err)
		}
		for _, e := range page {
			name := fmt.Sprint(e.Run, " ", e.Seq)
			if e.Position <= after || !want[name] || seen[name] {
				t.Fatalf("%s: event %s at %d came after position %d", what, name, e.Position, after)
			}
			after, seen[name] = e.Position, true
		}
	}
}

// A raise that is held up while it ends the log of the former epoch, and that other raises
// overtake, ends no log again.
func TestRaiseOvertakenByOthers(t *testing.T) {
	t.Parallel()
	tbl := newTable(t)
	slow, fast := open(t, tbl), open(t, tbl)
	want := map[string]bool{}
	write := func(id runstore.RunID) {
		t.Helper()
		if _, err := fast.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
			t.Fatal(err)
		}
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Append("test", []byte("event"))
		if _, err := fast.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		want[string(id)+" 1"] = true
		wholeFeed(t, "before "+string(id), fast, want)
	}
	write("before")
	held := server(t).Hold(1, onLog(tbl))
	defer held.Stop()
	raised := make(chan error, 1)
	go func() {
		_, err := slow.RaiseEpoch(t.Context(), "slow")
		raised <- err
	}()
	if err := held.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := fast.RaiseEpoch(t.Context(), "fast"); err != nil {
			t.Fatal(err)
		}
		write(runstore.RunID(fmt.Sprint("meanwhile ", i)))
	}
	held.Stop()
	if err := <-raised; err != nil {
		t.Errorf("the raise that was overtaken: %v", err)
	}
	write("after")
	wholeFeed(t, "a new handle", open(t, tbl), want)
}
