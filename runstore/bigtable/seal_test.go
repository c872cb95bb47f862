package bigtable_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// segmentRows are the keys and contents of the rows of segments.
func segmentRows(t testing.TB, tbl *client.Table) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := tbl.ReadRows(t.Context(), client.PrefixRange("s"), func(r client.Row) bool {
		for _, items := range r {
			for _, item := range items {
				found[r.Key()] += fmt.Sprintf("%s at %d: %x\n", item.Column, item.Timestamp, item.Value)
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// fill appends n events of different sizes, from seq first on, in batches.
func fill(t testing.TB, s *bigtable.Store, l runstore.Lease, first, n int) {
	t.Helper()
	for n > 0 {
		b := appending(l)
		for range min(n, 7) {
			b.Append("test", eventOf(first))
			first++
			n--
		}
		commit(t, s, b)
	}
}

// eventOf is the data of the event at a seq.
func eventOf(seq int) []byte {
	return append(bytes.Repeat([]byte("x"), []int{0, 10, 300, 17 << 10}[seq%4]), fmt.Sprint(seq)...)
}

// readsAs checks the journal of "run" from many a seq on: n events.
func readsAs(t testing.TB, s *bigtable.Store, n int) {
	t.Helper()
	for _, limit := range []int{1, 63, 64, 65, 200, runstore.MaxPage} {
		step := max(13, limit/3)
		for from := 1; from <= n; from++ {
			if from%step != 1 && (limit > 1 || from%64 > 1) { // single events at the ends of segments, too
				continue
			}
			page, err := s.ReadJournal(t.Context(), "run", runstore.Seq(from), limit)
			if err != nil || len(page) == 0 {
				t.Fatalf("from %d on: got %d events, %v", from, len(page), err)
			}
			if want := min(limit, n-from+1); len(page) != want {
				t.Fatalf("from %d on: got %d events, want %d", from, len(page), want)
			}
			for i, e := range page {
				if seq := from + i; e.Seq != runstore.Seq(seq) || !bytes.Equal(e.Data, eventOf(seq)) {
					t.Fatalf("event %d is %s at %d", seq, short(e.Data), e.Seq)
				}
			}
		}
	}
}

// inFeed checks that the feed has n events of "run", in order.
func inFeed(t testing.TB, s *bigtable.Store, n int) {
	t.Helper()
	found := 0
	var after runstore.Position
	for {
		page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: runstore.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			if e.Position <= after {
				t.Fatalf("position %d comes after %d", e.Position, after)
			}
			after = e.Position
			if e.Run != "run" {
				continue
			}
			if e.Seq != runstore.Seq(found+1) {
				t.Fatalf("event %d comes after %d", e.Seq, found)
			}
			if !bytes.Equal(e.Data, eventOf(int(e.Seq))) {
				t.Fatalf("event %d is %s in the feed", e.Seq, short(e.Data))
			}
			found++
		}
	}
	if found != n {
		t.Fatalf("the feed has %d events, want %d", found, n)
	}
}

// Segments never change once they are written, and hold what the row held. The journal reads on
// across the border.
func TestSegmentsAreImmutable(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other, tbl := openBare(t, table), openBare(t, table), raw(t, table)
	lease := hold(t, s, "run")
	var before map[string]string
	n := 0
	for round, more := range []int{127, 1, 64, 200, 3} {
		fill(t, s, lease, n+1, more)
		n += more
		seal(t, s, "run")
		rows := segmentRows(t, tbl)
		for key, was := range before {
			if rows[key] != was {
				t.Errorf("round %d: the segment %q has changed, or is gone", round, key)
			}
		}
		before = rows
		readsAs(t, other, n)
		inFeed(t, other, n)
	}
	if len(before) < 4 {
		t.Errorf("%d events are in %d segments", n, len(before))
	}
}

// A row is relieved of its events whether or not the feed has them. It gets them from the segments
// as it does from the row (I10).
func TestSealWaitsForNoFeed(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other, tbl := openBare(t, table), openBare(t, table), raw(t, table)
	lease := hold(t, s, "run")
	fill(t, s, lease, 1, 300)
	if err := bigtable.Seal(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	if got := len(segmentRows(t, tbl)); got != 3 {
		t.Errorf("got %d segments of 64, want 3", got)
	}
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	readsAs(t, other, 300)
	inFeed(t, other, 300)
}

// byRest matches the RPCs of a method on a table that serve no operation.
func byRest(table bigtableemulator.TableName, method string) func(bigtableemulator.Call) bool {
	return func(c bigtableemulator.Call) bool {
		return c.Table == table.String() && c.Method == method && !isServed(c) && len(c.Row) > 0 && (method != writes || c.Row[0] == 's')
	}
}

// Sealing that is cut after its segments were written, or while they are, leaves the
// journal as it was. Whoever seals next finds the same segments, and no others remain.
func TestSealIsCut(t *testing.T) {
	t.Parallel()
	for _, method := range []string{writes, swaps} {
		for _, harm := range []string{"refused", "reply lost"} {
			t.Run(method+" "+harm, func(t *testing.T) {
				t.Parallel()
				table := newTable(t)
				s, other, tbl := openDying(t, table), openBare(t, table), raw(t, table)
				lease := hold(t, other, "run")
				fill(t, other, lease, 1, 200)
				if err := bigtable.Publish(t.Context(), other, "run"); err != nil {
					t.Fatal(err)
				}
				var cut emulators.Fault
				if harm == "refused" {
					cut = server(t).Refuse(0, s.only(byRest(table, method)))
				} else {
					cut = server(t).DropReplies(0, s.only(byRest(table, method)))
				}
				defer cut.Stop()
				if err := cutAt(t, cut, func(ctx context.Context) error { return bigtable.Seal(ctx, s.Store, "run") }); err == nil {
					t.Error("sealing was not cut")
				}
				inFeed(t, other, 200)
				readsAs(t, other, 200)
				half := segmentRows(t, tbl)
				fill(t, other, lease, 201, 1)
				seal(t, other, "run")
				rows := segmentRows(t, tbl)
				for key, was := range half {
					if rows[key] != was {
						t.Errorf("the segment %q has changed", key)
					}
				}
				readsAs(t, other, 201)
				inFeed(t, other, 201)
				if len(rows) != 2 { // the third segment's end stays in the row
					t.Errorf("there are %d segments, want 2", len(rows))
				}
			})
		}
	}
}

// A write that seals a full row is applied once, as a whole, though its reply is lost or another handle's write
// comes before it: one that leaves the row full, or one that seals it.
func TestWriteThatSealsIsAppliedOnce(t *testing.T) {
	t.Parallel()
	const full = 518 // the next write seals
	for _, harm := range []string{"reply lost", "record before", "event before"} {
		t.Run(harm, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			other := openBare(t, table)
			lease := hold(t, other, "run")
			next := full + 1
			meanwhile := func() {}
			s := openBare(t, table, meddle(func(_ context.Context, send func() error) error {
				now := meanwhile
				meanwhile = func() {}
				now()
				return send()
			}))
			fill(t, s, lease, 1, full)
			switch harm {
			case "reply lost":
				lost := server(t).DropReplies(1, served(table, swaps))
				defer lost.Stop()
			case "record before":
				meanwhile = func() {
					b := runstore.NewBatch("run", lease.Fence())
					b.Put("key", nil)
					commit(t, other, b)
				}
			case "event before":
				meanwhile = func() { fill(t, other, lease, full+1, 1) }
				next++
			}
			fill(t, s, lease, next, 7)
			readsAs(t, s, next+6)
			readsAs(t, openBare(t, table), next+6)
			if n := len(segmentRows(t, raw(t, table))); n != 7 { // the eighth, the last whole one, stays in the row
				t.Errorf("there are %d segments, want 7", n)
			}
		})
	}
}

// rest returns the rows of a table that belong to runs, but for the runs' own.
func rest(t testing.TB, tbl *client.Table) (found []string) {
	t.Helper()
	for _, prefix := range []string{"s", "d", "i", "m"} {
		found = append(found, keys(t, tbl, prefix)...)
	}
	return found
}

// bulky makes a run that has rows of every kind.
func bulky(t testing.TB, s *bigtable.Store, id runstore.RunID) runstore.Lease {
	t.Helper()
	lease := hold(t, s, id)
	fill(t, s, lease, 1, 200)
	b := appending(lease)
	b.Put("large", bytes.Repeat([]byte("x"), 100<<10), runstore.Place{Index: "queue", At: runstore.After(0)})
	b.Put("gone", bytes.Repeat([]byte("x"), 100<<10), runstore.Place{Index: "queue", At: runstore.After(0)})
	b.Runnable = runstore.After(0)
	commit(t, s, b)
	b = runstore.NewBatch(id, lease.Fence())
	b.Put("large", bytes.Repeat([]byte("y"), 3<<20))
	b.Delete("gone")
	commit(t, s, b)
	return lease
}

// A purge takes away all rows of the run but its own, soon. A new run of the id shows
// nothing of the former generation, and nor does the feed.
func TestPurgeLeavesNothing(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := open(t, table), raw(t, table)
	lease := bulky(t, s, "run")
	other := hold(t, s, "other")
	commit(t, s, appending(other, "theirs"))
	await(t, "sealed events", func() bool { return len(segmentRows(t, tbl)) > 0 })
	kept := 2 // the mark and the place in "runs" of the other run
	purge(t, s, lease)
	await(t, "an end of all rows of the purged run", func() bool {
		bigtable.EmptyGarbage(t.Context(), s)
		return len(rest(t, tbl)) == kept
	})
	await(t, "the feed of the other run", func() bool {
		found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: runstore.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		return len(found) == 1 && found[0].Run == "other"
	})
	if weight := weigh(t, tbl); weight > 4<<10 {
		t.Errorf("the runs' rows have %d bytes", weight)
	}

	next := holdAnew(t, s, "run")
	if next.Token != lease.Token+1 {
		t.Errorf("the new run's lease has token %d, want %d", next.Token, lease.Token+1)
	}
	if found, err := s.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(found) != 0 {
		t.Errorf("the new run's journal has %v, %v", found, err)
	}
	for r, err := range runstore.Records(t.Context(), s, "run", "") {
		t.Errorf("the new run has the record %v, %v", r.Key, err)
	}
	fill(t, s, next, 1, 2)
	await(t, "the new run's events in the feed", func() bool {
		found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: runstore.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		return len(found) == 3
	})
	inFeed(t, s, 2)
	readsAs(t, s, 2)
}

// A run that is purged by one process while another seals it leaves no segment behind,
// however late that one writes.
func TestPurgeWhileSealing(t *testing.T) {
	t.Parallel()
	for _, method := range []string{writes, swaps} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			sealer, s, tbl := openBare(t, table), open(t, table), raw(t, table)
			lease := hold(t, sealer, "run")
			fill(t, sealer, lease, 1, 200)
			if err := bigtable.Publish(t.Context(), sealer, "run"); err != nil {
				t.Fatal(err)
			}
			held := server(t).Hold(1, byRest(table, method))
			sealed := make(chan error, 1)
			go func() { sealed <- bigtable.Seal(t.Context(), sealer, "run") }()
			met(t, held, 1)
			purge(t, s, lease)
			await(t, "the first collection", func() bool { return len(keys(t, tbl, "m")) == 0 })
			held.Stop()
			if err := <-sealed; err != nil {
				t.Fatal(err)
			}
			bigtable.EmptyGarbage(t.Context(), sealer)
			bigtable.EmptyGarbage(t.Context(), s)
			if left := rest(t, tbl); len(left) != 0 {
				t.Errorf("%d rows remain of a run that was purged: %.80q", len(left), left)
			}
		})
	}
}

// A handle that was suspended over a failover has copied events that the failover lost. Its next write does
// not put them in the place of those that were written since.
func TestSegmentsOfALostHistoryAreNotRecorded(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, heir, tbl := openBare(t, table), openBare(t, table), raw(t, table)
	lease := hold(t, old, "run")
	commit(t, old, appending(lease, "kept"))
	survived := snapshot(t, tbl)
	write := func(s *bigtable.Store, what string) (events []string) {
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		for i := range 200 {
			events = append(events, fmt.Sprint(what, " ", i))
			b.Append("test", []byte(events[i]))
		}
		commit(t, s, b)
		return events
	}
	write(old, "lost")
	if err := bigtable.PrepareSeal(t.Context(), old, "run"); err != nil {
		t.Fatal(err)
	}
	if len(segmentRows(t, tbl)) == 0 {
		t.Fatal("no segment was copied")
	}
	survived.rollBack(t, tbl)
	if _, err := heir.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	want := append([]string{"kept"}, write(heir, "written since")...)
	commit(t, old, signal("run", "awake"))
	if got := journal(t, heir, "run"); !slices.Equal(got, append(want, "awake")) {
		t.Errorf("the journal has the %d events %.300q, want the %d committed", len(got), got, len(want)+1)
	}
}

// The background seals a long run. If it cannot write the segments, the next commit has it try again.
func TestSealInTheBackgroundIsRepeated(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := open(t, table), raw(t, table)
	refused := server(t).RefuseRows(1, func(c bigtableemulator.Call) bool {
		return c.Table == table.String() && c.Method == writes && c.Row[0] == 's'
	}, func([]byte) error { return status.Error(codes.PermissionDenied, "refused by the test") })
	defer refused.Stop()
	fill(t, s, hold(t, s, "run"), 1, 150)
	met(t, refused, 1)
	for n := 0; len(keys(t, tbl, "s")) == 0; n++ {
		if n == 300 { // soon the row is full, and a commit seals events
			t.Fatal("the background has sealed nothing")
		}
		commit(t, s, signal("run", "another"))
	}
}
