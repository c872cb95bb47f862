package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// A handle learns of a later raise, which is under way, while it raises a run. The run loses nothing.
func TestRaiseLearnsOfALaterOne(t *testing.T) {
	t.Parallel()
	for n, paused := 1, true; paused; n++ {
		table := newTable(t)
		s, other := openDying(t, table), openDying(t, table)
		hold(t, s.Store, "run")
		if _, err := s.RaiseEpoch(t.Context(), "first"); err != nil { // the run's cells have its stamp
			t.Fatal(err)
		}
		b := signal("run", "event")
		b.Put("record", []byte("value"))
		commit(t, s.Store, b)
		seen := 0
		held := server(t).Hold(1, s.only(func(c bigtableemulator.Call) bool {
			if c.Method == reads {
				seen++
			}
			return c.Method == reads && seen == n
		}))
		late := server(t).Hold(1, other.only(func(c bigtableemulator.Call) bool { return c.Method == swaps && c.Row[0] == 'l' }))
		raised, end := context.WithCancel(t.Context())
		go func() {
			defer end()
			if _, err := s.RaiseEpoch(t.Context(), "second"); err != nil {
				t.Error(err)
			}
		}()
		later := make(chan error, 1)
		if paused = held.Await(raised, 1) == nil; paused {
			go func() {
				_, err := other.RaiseEpoch(t.Context(), "third")
				later <- err
			}()
			met(t, late, 1) // before it ends the log of the epoch before
			if err := bigtable.LearnEpochs(t.Context(), s.Store); err != nil {
				t.Error(err)
			}
		}
		held.Stop()
		<-raised.Done()
		late.Stop()
		if paused {
			if err := <-later; err != nil {
				t.Error(err)
			}
		}
		if _, err := s.RaiseEpoch(t.Context(), "last"); err != nil {
			t.Fatal(err)
		}
		heir := openBare(t, table)
		records, err := heir.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: 10})
		if got := journal(t, heir, "run"); err != nil || len(got) != 1 || len(records) != 1 {
			t.Errorf("paused before read %d: the run has the events %q and the records %v, %v, want one each", n, got, records, err)
		}
	}
}

// A raise whose reply was lost, and which another handle has finished before the repeat, is made once.
func TestRaiseIsFinishedByAnotherBeforeItsRepeat(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	lost := false
	s := openBare(t, table, meddle(func(_ context.Context, send func() error) error {
		err := send()
		if !lost || err != nil {
			return err
		}
		lost = false
		open(t, table) // a handle finishes the raise that it finds when it is opened
		return status.Error(codes.Unavailable, "lost")
	}))
	hold(t, s, "run")
	lost = true
	epoch, err := s.RaiseEpoch(t.Context(), "once")
	if err != nil || epoch != 1 {
		t.Errorf("got epoch %d, %v, want 1", epoch, err)
	}
	changes, err := s.Epochs(t.Context())
	if err != nil || len(changes) != 1 {
		t.Errorf("the epochs are %+v, %v, want one", changes, err)
	}
}

// TestConsumerReadsOnOverRaises checks that a consumer gets each event once, although only an open page has the
// positions when the epoch is raised, and a raise may be cut before it has ended the log of the former epoch.
func TestConsumerReadsOnOverRaises(t *testing.T) {
	t.Parallel()
	for _, cut := range []struct{ name, method string }{{"none is cut", ""}, {"the log stays open", clock}, {"its last page is closed", swaps}} {
		t.Run(cut.name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s := openBare(t, table)
			hold(t, s, "run")
			const raises = 3
			var operators []dying // open before the first raise, so that they do not finish one when they are opened
			for range raises {
				operators = append(operators, openDying(t, table))
			}
			after, next := runstore.Position(0), map[runstore.RunID]runstore.Seq{}
			for i := range raises + 1 {
				commit(t, s, signal("run", "event"))
				bigtable.PublishPending(t.Context(), s)
				page := whole(t, s, after, 10, next)
				if len(page) != 1 {
					t.Fatalf("after %d raises the consumer gets %d events, want the new one", i, len(page))
				}
				if after = page[0].Position; i == raises {
					break
				}
				if d := operators[i]; cut.method != "" {
					err := d.dieAt(t, func(c bigtableemulator.Call) bool { return c.Method == cut.method && c.Row[0] == 'l' }, func(ctx context.Context) error {
						_, err := d.RaiseEpoch(ctx, "cut")
						return err
					})
					if !errors.Is(err, runstore.ErrUnknownOutcome) {
						t.Fatalf("the raise that is cut: got %v, want ErrUnknownOutcome", err)
					}
				}
				if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
