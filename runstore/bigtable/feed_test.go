package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// whole reads the feed behind a position to its end, and checks that positions grow and
// that each run's events come once and in order. next are the seqs that are expected
// of runs which were read before; it may be nil.
func whole(t testing.TB, s *bigtable.Store, after runstore.Position, limit int, next map[runstore.RunID]runstore.Seq) (all []runstore.FeedEvent) {
	t.Helper()
	if next == nil {
		next = map[runstore.RunID]runstore.Seq{}
	}
	for {
		page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			return all
		}
		for _, e := range page {
			if e.Position <= after {
				t.Fatalf("position %d comes after %d", e.Position, after)
			}
			if want := max(next[e.Run], 1); e.Seq != want {
				t.Fatalf("event %d of %s comes at position %d, want %d", e.Seq, e.Run, e.Position, want)
			}
			next[e.Run], after = e.Seq+1, e.Position
		}
		all = append(all, page...)
	}
}

// Handles that bring events into the feed at the same time write one log: each event
// is in it once, and in the order of its run. A reader that follows misses none.
func TestFeedOfManyHandles(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	reader := open(t, table)
	const handles, commits = 5, 60
	runs := []runstore.RunID{"a", "b", "c"}
	for _, id := range runs {
		hold(t, reader, id)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg, following sync.WaitGroup
	for h := range handles {
		s := open(t, table)
		wg.Go(func() {
			for i := range commits {
				if _, err := s.Commit(t.Context(), signal(runs[(h+i)%len(runs)], "event")); err != nil {
					t.Errorf("handle %d: %v", h, err)
				}
			}
		})
	}
	var followed []runstore.FeedEvent
	following.Go(func() {
		next := map[runstore.RunID]runstore.Seq{}
		var after runstore.Position
		for len(followed) < handles*commits && ctx.Err() == nil {
			page, err := reader.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 7})
			if err != nil {
				t.Errorf("follow: %v", err)
				return
			}
			for _, e := range page {
				if e.Position <= after || e.Seq != next[e.Run]+1 {
					t.Errorf("event %d of %s comes at %d, after event %d and position %d", e.Seq, e.Run, e.Position, next[e.Run], after)
				}
				next[e.Run], after = e.Seq, e.Position
			}
			followed = append(followed, page...)
		}
	})
	wg.Wait()
	feed(t, reader, 0, handles*commits)
	stop := context.AfterFunc(t.Context(), cancel)
	defer stop()
	following.Wait()
	cancel()
	again := whole(t, reader, 0, 1000, nil)
	if len(again) != handles*commits || len(followed) != len(again) {
		t.Fatalf("the feed has %d events and a follower saw %d, want %d", len(again), len(followed), handles*commits)
	}
	for i := range again {
		if again[i].Position != followed[i].Position || again[i].Run != followed[i].Run {
			t.Fatalf("event %d is %+v, and was %+v", i, again[i], followed[i])
		}
	}
}

// Two handles that want the same number of the log: one gets it, and the other goes
// on behind it, without naming an event again.
func TestTwoCreateOnePage(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("the same events %v", same), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			first, second := openBare(t, table), openBare(t, table)
			ids := []runstore.RunID{"run", "other"}
			if same {
				ids[1] = "run"
			}
			hold(t, first, "run")
			hold(t, first, "other")
			for i := range 3 {
				commit(t, first, signal("run", fmt.Sprint(i)))
				commit(t, first, signal("other", fmt.Sprint(i)))
			}
			held := server(t).Hold(1, onLog(table))
			late := make(chan error, 1)
			go func() { late <- bigtable.Publish(t.Context(), first, ids[0]) }()
			met(t, held, 1)
			if err := bigtable.Publish(t.Context(), second, ids[1]); err != nil {
				t.Fatal(err)
			}
			held.Stop()
			if err := <-late; err != nil {
				t.Fatal(err)
			}
			want := 6
			if same {
				want = 3
			}
			if n := len(whole(t, first, 0, 2, nil)); n != want {
				t.Errorf("the feed has %d events, want %d", n, want)
			}
		})
	}
}

// onLog matches what creates a page of the log.
func onLog(table bigtableemulator.TableName) func(bigtableemulator.Call) bool {
	return func(c bigtableemulator.Call) bool {
		return c.Table == table.String() && c.Method == swaps && len(c.Row) > 0 && c.Row[0] == 'l'
	}
}

// A page of the log is created once, whatever becomes of the request and its reply.
func TestLogLosesMessages(t *testing.T) {
	t.Parallel()
	for _, harm := range []string{"request", "reply", "what is told to the runs", "all that is told"} {
		t.Run(harm, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, other := openBare(t, table), openBare(t, table)
			hold(t, other, "run")
			recorded := func(c bigtableemulator.Call) bool { return c.Table == table.String() && c.Method == writes }
			for i := range 4 {
				commit(t, other, signal("run", fmt.Sprint(i)))
				var fault emulators.Fault
				switch harm {
				case "request":
					fault = server(t).Refuse(1, onLog(table))
				case "reply":
					fault = server(t).DropReplies(1, onLog(table))
				case "what is told to the runs":
					fault = server(t).DropReplies(1, recorded)
				default:
					fault = server(t).Refuse(0, recorded)
				}
				sequence := func(ctx context.Context) error { return bigtable.Publish(ctx, s, "run") }
				if harm == "all that is told" {
					if err := cutAt(t, fault, sequence); err == nil {
						t.Error("what could not be told to the runs is no error")
					}
				} else if err := sequence(t.Context()); err != nil || fault.Count() == 0 {
					t.Errorf("%d RPCs failed: %v", fault.Count(), err)
				}
				fault.Stop()
				if n := len(whole(t, other, 0, 10, nil)); n != i+1 {
					t.Errorf("the feed has %d events, want %d", n, i+1)
				}
			}
			commit(t, other, signal("run", "last"))
			if err := bigtable.Publish(t.Context(), other, "run"); err != nil {
				t.Fatal(err)
			}
			if n := len(whole(t, other, 0, 10, nil)); n != 5 {
				t.Errorf("the feed has %d events, want 5", n)
			}
		})
	}
}

// What a process committed that died at once comes into the feed by another's pass
// over the marks, and by that of one that is opened later.
func TestFeedOfTheDead(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	dead := openBare(t, table)
	hold(t, dead, "run")
	for i := range 5 {
		commit(t, dead, signal("run", fmt.Sprint(i)))
	}
	if n := len(whole(t, dead, 0, 10, nil)); n != 0 {
		t.Fatalf("the feed has %d events already", n)
	}
	heir := openBare(t, table)
	bigtable.OrphanScan(t.Context(), heir)
	if n := len(whole(t, heir, 0, 10, nil)); n != 5 {
		t.Errorf("the feed has %d events, want 5", n)
	}
	commit(t, dead, signal("run", "one more"))
	feed(t, open(t, table), 0, 6) // by itself
}

// What an old segment says is told to a run's row once more, and late: the row goes on
// saying what newer ones did.
func TestOldPageIsRecordedLate(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other := openBare(t, table), openBare(t, table)
	hold(t, s, "run")
	commit(t, s, signal("run", "first"))
	telling := server(t).Hold(1, func(c bigtableemulator.Call) bool {
		return c.Table == table.String() && c.Method == writes && len(c.Row) > 0 && c.Row[0] == 'r'
	})
	late := make(chan error, 1)
	go func() { late <- bigtable.Publish(t.Context(), s, "run") }()
	met(t, telling, 1)
	for i := range 200 {
		commit(t, other, signal("run", fmt.Sprint(i)))
	}
	seal(t, other, "run")
	commit(t, other, signal("run", "last"))
	seal(t, other, "run")
	telling.Stop()
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	third := openBare(t, table)
	if err := bigtable.Publish(t.Context(), third, "run"); err != nil {
		t.Fatal(err)
	}
	if all := whole(t, third, 0, 50, nil); len(all) != 202 {
		t.Errorf("the feed has %d events, want 202", len(all))
	}
}

// A raised epoch closes the log that there is, and the feed goes on above it: a reader
// that comes from before, from between or from what the store has lost misses nothing.
func TestFeedAcrossEpochs(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := open(t, table)
	hold(t, s, "run")
	commit(t, s, signal("run", "before"))
	before := feed(t, s, 0, 1)[0].Position
	bystander := open(t, table)
	commit(t, bystander, signal("run", "before too"))
	before = max(before, feed(t, s, before, 1)[0].Position)
	epoch, err := s.RaiseEpoch(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	floor := runstore.Position(epoch.Floor())
	for _, after := range []runstore.Position{before, before + 1, before + 5000, floor - 1, floor} { // nothing is there yet
		if page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 10}); err != nil || len(page) != 0 {
			t.Errorf("behind %d: got %d events, %v, want none", after, len(page), err)
		}
	}
	lease := takeOver(t, s, "run")
	commit(t, bystander, appending(lease, "after")) // a handle that was open before
	next := feed(t, s, before, 1)[0]
	if next.Position <= floor || next.Seq != 3 {
		t.Errorf("the next event is %d at position %d, want event 3 above %d", next.Seq, next.Position, floor)
	}
	for _, after := range []runstore.Position{before, before + 1, before + 5000, floor - 1, floor} {
		page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: 10})
		if err != nil || len(page) != 1 || page[0].Position != next.Position {
			t.Errorf("behind %d: got %d events, %v, want the one at %d", after, len(page), err, next.Position)
		}
	}
	if n := len(whole(t, s, 0, 1, nil)); n != 3 {
		t.Errorf("the feed has %d events, want 3", n)
	}
	var behind *runstore.StoreBehindError
	if _, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: next.Position + 1, Limit: 10}); !errors.As(err, &behind) || behind.Field != "position" || behind.Known != int64(next.Position) {
		t.Errorf("above all: got %v, want ErrStoreBehind that knows %d", err, next.Position)
	}
}

// A position above all that the store knows is refused; one that is there, or lies
// within or behind a segment that is, is not.
func TestFeedPositions(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	if page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10}); err != nil || len(page) != 0 {
		t.Errorf("an empty feed has %d events, %v", len(page), err)
	}
	if _, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: 5000, Limit: 10}); !errors.Is(err, runstore.ErrStoreBehind) {
		t.Errorf("above an empty feed: got %v, want ErrStoreBehind", err)
	}
	hold(t, s, "run")
	for range 3 { // three segments of two events
		commit(t, s, signal("run", "event"))
		commit(t, s, signal("run", "event"))
		if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
			t.Fatal(err)
		}
	}
	all := whole(t, s, 0, 1, nil)
	for i, e := range all {
		for _, limit := range []int{1, 2, 100} {
			page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: e.Position, Limit: limit})
			if want := min(limit, len(all)-i-1); err != nil || len(page) != want {
				t.Errorf("behind event %d: got %d events, %v, want %d", i+1, len(page), err, want)
			}
		}
	}
	// Behind the two events of the first segment there are positions that no event has.
	page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: all[1].Position + 7, Limit: 100})
	if err != nil || len(page) != 4 || page[0].Position != all[2].Position {
		t.Errorf("in a gap: got %d events, %v, want those of the segments behind it", len(page), err)
	}
	last := all[len(all)-1].Position
	for _, above := range []runstore.Position{last + 1, last + 2000, 1 << 52} {
		var behind *runstore.StoreBehindError
		if _, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: above, Limit: 10}); !errors.As(err, &behind) || behind.Known != int64(last) || behind.Presented != int64(above) {
			t.Errorf("at %d: got %v, want ErrStoreBehind that knows %d", above, err, last)
		}
	}
}

// A reader above the feed, which asks for its end, costs the same however long the log is.
func TestEndOfTheFeed(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	hold(t, s, "run")
	ledger := keepLedger(t, table)
	costs := map[string]bool{}
	for range 3 {
		for range 15 {
			commit(t, s, signal("run", "event"))
			if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
				t.Fatal(err)
			}
		}
		all := whole(t, s, 0, 100, nil)
		costs[ledger.during(func() {
			var behind *runstore.StoreBehindError
			if _, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: runstore.MaxPosition, Limit: 1}); !errors.As(err, &behind) || behind.Known != int64(all[len(all)-1].Position) {
				t.Errorf("got %v, want ErrStoreBehind that knows %d", err, all[len(all)-1].Position)
			}
		})] = true
	}
	if len(costs) != 1 {
		t.Errorf("the end of the feed costs %q, want the same after 15, 30 and 45 segments", slices.Collect(maps.Keys(costs)))
	}
}

// The log is spread over the table: segments that follow each other are not neighbours,
// so that its end is no hot spot.
func TestLogIsSpread(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	hold(t, s, "run")
	for range 64 {
		commit(t, s, signal("run", "event"))
		if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
			t.Fatal(err)
		}
	}
	prefixes := map[string]bool{}
	err := tbl.ReadRows(t.Context(), client.PrefixRange("l"), func(r client.Row) bool {
		prefixes[r.Key()[:3]] = true
		return true
	})
	if err != nil || len(prefixes) < 48 {
		t.Errorf("64 segments begin with %d prefixes, %v", len(prefixes), err)
	}
}
