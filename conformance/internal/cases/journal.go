package cases

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// Journals returns the cases that prove I5: dense seqs, immutable events, one total order for each
// run.
func Journals() []harness.Case {
	return []harness.Case{
		{Guarantee: "I5", Name: "seq-is-dense-under-many-writers", Run: denseSeq, Doc: `
			Six writers on three handles commit batches of one to three events to one run, some under its lease and
			some unguarded. The journal counts from 1 without a gap, and each seq holds exactly the event that was
			acknowledged there. A store that takes seqs from a sequence leaves gaps; one that decides on an old head
			gives a seq to two batches.`},
		{Guarantee: "I5", Name: "one-winner-per-next-seq", Run: oneNextSeq, Doc: `
			Six handles commit at the same moment, each guarded by the same next seq, round after round. One wins and
			appends at that seq; every other is ErrConflict, which names the next seq. A store that checks the seq
			outside the step that appends lets two writers build on one journal.`},
		{Guarantee: "I5", Name: "events-never-change", Run: eventsNeverChange, Doc: `
			A run is preempted, its old holder and a forged seq are refused, and more is written. The first events
			stay as they were byte for byte, also when the caller overwrites the bytes that it gave to Commit or got
			from a read. A store that keeps the caller's slice, or that lets a later batch rewrite a seq, fails.`},
		{Guarantee: "I5", Name: "events-carry-their-fence", Run: eventsCarryFence, Doc: `
			Events are written under a fence, without one, by a release, by an acquire and under a later grant. Each
			event carries the token and owner of the grant it was written under, and token 0 and no owner where there
			was no fence. A store that stamps the run's current holder on every event blames the wrong writer.`},
		{Guarantee: "I5", Name: "stamps-name-the-event-that-explains-a-change", Run: stamps, Doc: `
			Records are put by batches with several events, with one and with none, deleted and made again. Each
			names the seq and time of the event that created it and of the one that last changed it; a batch without
			events names the run's last seq. A store that names the batch's first event for all records explains a
			change by another event.`},
		{Guarantee: "I5", Name: "positions-follow-seq", Run: positionsFollowSeq, Doc: `
			Four writers commit to two runs at once, and the feed is read to its end. In each run, positions grow
			with the seq, and a position that the journal shows equals that in the feed. A store that takes positions
			and seqs in different orders shows a reader of the feed an effect before its cause.`},
		{Guarantee: "I5", Name: "pages-begin-where-asked", Run: journalPages, Doc: `
			A journal of 25 events is read from every seq, also before the first and after the last, in pages of
			several sizes. Each page begins at the seq asked for and has as many events as the limit and the journal
			allow. A store that begins after the seq, or returns whole batches, makes a resuming driver miss or repeat
			events.`},
		{Guarantee: "I5", Name: "a-long-journal-reads-whole-in-pages", Run: longJournal, Doc: `
			A run gets thousands of events (8,000 in a quick run, 100,000 in a full one), and another handle reads it
			whole, from its middle and from its end, and at random. Every event is there once at its seq, and the
			next append gets the next seq. A store that seals or splits a long journal and loses the seam fails.`},
		{Guarantee: "I5", Name: "journal-pages-of-large-and-tiny-events-lose-nothing", Run: mixedJournal, Doc: `
			A journal alternates tiny and largest events and is read in pages of three and of the largest count. The
			pages join to the journal that was written, and a page ends with the event that passes the limit in bytes.
			A store that leaves this event out and continues with the tiny one after it loses the large one.`},
	}
}

func denseSeq(t harness.T, e *harness.Env) {
	const writers = 6
	ctx, each := t.Context(), e.Scaled(t, "commits of each writer", 8, 20)
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "owner")
	stores := kit.OpenHandles(t, e, 3)
	type part struct {
		name        string
		first, last runstore.Seq
	}
	parts := make([][]part, writers)
	kit.RunConcurrently(t, writers, func(i int) error {
		for n := range each {
			b := runstore.NewBatch("run", runstore.Unguarded("a signal"))
			if i%2 == 0 {
				b = runstore.NewBatch("run", lease.Fence())
			}
			name := fmt.Sprintf("%d/%d", i, n)
			for k := range 1 + n%3 {
				b.Append("event", fmt.Appendf(nil, "%s/%d", name, k))
			}
			done, err := stores[i%len(stores)].Commit(ctx, b)
			if err != nil {
				return fmt.Errorf("batch %s: %w", name, err)
			}
			if done.LastSeq-done.FirstSeq != runstore.Seq(n%3) {
				return fmt.Errorf("batch %s of %d events got seqs %d to %d", name, 1+n%3, done.FirstSeq, done.LastSeq)
			}
			parts[i] = append(parts[i], part{name, done.FirstSeq, done.LastSeq})
		}
		return nil
	})
	journal := kit.MustCollect(t, "journal", runstore.Journal(ctx, e.Store, "run", 1))
	dense(t, journal)
	names := map[runstore.Seq]string{}
	for i := range parts {
		for n, p := range parts[i] {
			if n > 0 && p.first <= parts[i][n-1].last {
				t.Errorf("batch %s at seq %d follows its predecessor, which ended at %d", p.name, p.first, parts[i][n-1].last)
			}
			for seq := p.first; seq <= p.last; seq++ {
				if other, taken := names[seq]; taken {
					t.Errorf("seq %d was acknowledged to two batches: to %s, and to %s as its event %d", seq, other, p.name, seq-p.first)
				}
				names[seq] = fmt.Sprintf("%s/%d", p.name, seq-p.first)
			}
		}
	}
	total := len(names)
	var got, want []string
	for _, event := range journal {
		got = append(got, fmt.Sprintf("seq %d with %s", event.Seq, event.Data))
	}
	for _, seq := range slices.Sorted(maps.Keys(names)) {
		want = append(want, fmt.Sprintf("seq %d with %s", seq, names[seq]))
	}
	kit.CheckOrder(t, `the journal of "run", beside what was acknowledged`, got, want)
	kit.Equal(t, "last seq", e.Get(t, "run").LastSeq, runstore.Seq(total))
}

// dense fails the case unless the journal counts from 1 without a gap.
func dense(t harness.T, journal []runstore.Event) {
	t.Helper()
	seqs := make([]runstore.Seq, len(journal))
	isDense := true
	for i, event := range journal {
		seqs[i] = event.Seq
		isDense = isDense && event.Seq == runstore.Seq(i+1)
	}
	if !isDense {
		t.Fatalf("the journal is not dense:%s", kit.SeqRanges(seqs))
	}
}

func oneNextSeq(t harness.T, e *harness.Env) {
	const contenders = 6
	rounds := e.Scaled(t, "rounds", 4, 8)
	e.Create(t, "run")
	stores := kit.OpenHandles(t, e, contenders)
	for round := range rounds {
		next := runstore.Seq(round + 1)
		won := make(chan string, contenders)
		kit.RunConcurrently(t, contenders, func(i int) error {
			name := fmt.Sprintf("%d/%d", round, i)
			b := runstore.NewBatch("run", runstore.AtSeq(next))
			b.Append("event", []byte(name))
			done, err := stores[i].Commit(t.Context(), b)
			if err == nil {
				won <- name
				if done.FirstSeq != next {
					return fmt.Errorf("guarded by seq %d, appended at %d", next, done.FirstSeq)
				}
				return nil
			}
			var conflict *runstore.ConflictError
			if !errors.As(err, &conflict) || conflict.Guard != "seq" || conflict.NextSeq != next+1 {
				return fmt.Errorf("a loser got %w, want a conflict that tells next seq %d", err, next+1)
			}
			return nil
		})
		if len(won) != 1 {
			t.Fatalf("round %d: %d winners, want 1", round, len(won))
		}
		journal := kit.MustCollect(t, "journal", runstore.Journal(t.Context(), e.Store, "run", next))
		if winner := <-won; len(journal) != 1 || string(journal[0].Data) != winner {
			t.Errorf("round %d: the journal goes on with %d events, first %+v, want that of %s", round, len(journal), journal[0], winner)
		}
	}
}

func eventsNeverChange(t harness.T, e *harness.Env) {
	ctx := t.Context()
	lease := kit.SeedFixture(t, e, "run")
	b := runstore.NewBatch("run", lease.Fence())
	kit.WriteEverything(&b.Writes, "first", 2)
	kit.MustCommit(t, e.Store, b)
	read := func() []runstore.Event {
		events := kit.MustCollect(t, "journal", runstore.Journal(ctx, e.Store, "run", 1))
		for i := range events {
			events[i].Position = 0 // 0 until the feed reaches the event
		}
		return events
	}
	before := read()
	steps := []func() error{
		func() error { // a takeover, and a write of the former holder
			req := kit.Acquiring("run", "second", harness.TTL)
			req.Preempt = "test"
			_, err := e.Store.AcquireLease(ctx, req)
			_, refused := e.Store.Commit(ctx, b)
			harness.Refused(t, "commit of the one before", refused, runstore.ErrFenced)
			return err
		},
		func() error { // a write at a seq that is taken
			b := runstore.NewBatch("run", runstore.AtSeq(2))
			b.Append("event", []byte("forged"))
			_, err := e.Store.Commit(ctx, b)
			harness.Refused(t, "appending at a seq that is taken", err, runstore.ErrConflict)
			return nil
		},
		func() error {
			b := runstore.NewBatch("run", runstore.InStatus(2))
			kit.WriteEverything(&b.Writes, "later", 3)
			b.Release = true
			_, err := e.Store.Commit(ctx, b)
			return err
		},
	}
	for i, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		kit.Equal(t, fmt.Sprintf("the first events after step %d", i), read()[:len(before)], before)
	}
	// Changes to bytes that a caller passed or received must not reach the store.
	copy(b.Events[0].Data, "XXXXX")
	copy(kit.MustCollect(t, "journal", runstore.Journal(ctx, e.Store, "run", 1))[0].Data, "XXXXX")
	kit.Equal(t, "the first events at the end", read()[:len(before)], before)
}

func eventsCarryFence(t harness.T, e *harness.Env) {
	ctx := t.Context()
	e.Create(t, "run")
	write := func(g runstore.Guard, more ...runstore.Guard) {
		t.Helper()
		b := runstore.NewBatch("run", g, more...)
		b.Append("event", nil)
		kit.MustCommit(t, e.Store, b)
	}
	first := e.Acquire(t, e.Store, "run", "first")
	write(first.Fence())
	write(runstore.Unguarded("a signal"))
	write(runstore.AtSeq(3), first.Fence())
	release := runstore.ReleaseRequest{Fence: first.Fence()}
	release.Writes.Append("event", nil)
	if _, err := e.Store.ReleaseLease(ctx, release); err != nil {
		t.Fatalf("release: %v", err)
	}
	req := kit.Acquiring("run", "second", harness.TTL)
	req.Writes.Append("event", nil)
	second, err := e.Store.AcquireLease(ctx, req)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	write(runstore.InStatus(0))
	write(second.Fence())
	var got []string
	for _, event := range kit.MustCollect(t, "journal", runstore.Journal(ctx, e.Reopen(t), "run", 1)) {
		got = append(got, fmt.Sprintf("%v %s", event.Token, event.Owner))
	}
	kit.Equal(t, "tokens and owners", got, []string{"1 first", "0 ", "1 first", "1 first", "2 second", "0 ", "2 second"})
}

func stamps(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	b := runstore.NewBatch("run", runstore.AtSeq(1))
	b.Append("event", nil)
	second := b.Append("event", nil)
	third := b.Append("event", nil)
	b.Put("first", nil)
	b.Put("second", nil)
	b.Put("third", nil)
	b.Records[1].Event, b.Records[2].Event = second, third
	made := kit.MustCommit(t, e.Store, b)
	e.Advance(t, runstore.TimePrecision)

	b = runstore.NewBatch("run", runstore.AtVersion("first", 1))
	b.Append("event", nil)
	b.Put("first", nil)
	changed := kit.MustCommit(t, e.Store, b)
	if !changed.Time.After(made.Time) {
		t.Errorf("a batch committed later is stamped %v, the one before %v", changed.Time, made.Time)
	}
	b = runstore.NewBatch("run", runstore.AtVersion("second", 1))
	b.Put("second", nil)
	silent := kit.MustCommit(t, e.Store, b)
	kit.Equal(t, "seqs of a batch without events", [2]runstore.Seq{silent.FirstSeq, silent.LastSeq}, [2]runstore.Seq{0, 4})

	other := e.Reopen(t)
	want := map[runstore.RecordKey][2]runstore.Stamp{
		"first":  {{Seq: 1, Time: made.Time}, {Seq: 4, Time: changed.Time}},
		"second": {{Seq: 2, Time: made.Time}, {Seq: 4, Time: silent.Time}},
		"third":  {{Seq: 3, Time: made.Time}, {Seq: 3, Time: made.Time}},
	}
	for _, r := range kit.MustCollect(t, "records", runstore.Records(t.Context(), other, "run", "")) {
		kit.Equal(t, fmt.Sprintf("stamps of %q", r.Key), [2]runstore.Stamp{r.Created, r.Updated}, want[r.Key])
	}
	for _, event := range kit.MustCollect(t, "journal", runstore.Journal(t.Context(), other, "run", 1)) {
		at := made.Time
		if event.Seq == 4 {
			at = changed.Time
		}
		kit.Equal(t, fmt.Sprintf("time of event %d", event.Seq), event.Time, at)
	}
	// A record that is created again is a new record.
	kit.Remove(t, e.Store, "run", "third", 1)
	b = runstore.NewBatch("run", runstore.AtVersion("third", 0))
	b.Append("event", nil)
	b.Put("third", nil)
	done := kit.MustCommit(t, e.Store, b)
	kit.Equal(t, "first stamp of a record made anew", kit.Record(t, other, "run", "third").Created, runstore.Stamp{Seq: 5, Time: done.Time})
}

func positionsFollowSeq(t harness.T, e *harness.Env) {
	const writers, each = 4, 15
	e.Create(t, "one")
	e.Create(t, "two")
	kit.RunConcurrently(t, writers, func(i int) error {
		for range each {
			b := runstore.NewBatch([]runstore.RunID{"one", "two"}[i%2], runstore.Unguarded("test"))
			b.Append("event", nil)
			b.Append("event", nil)
			if _, err := e.Store.Commit(t.Context(), b); err != nil {
				return err
			}
		}
		return nil
	})
	inFeed := map[runstore.RunID]map[runstore.Seq]runstore.Position{"one": {}, "two": {}}
	for _, event := range kit.FeedOf(t, e, e.Store, writers*each*2) {
		inFeed[event.Run][event.Seq] = event.Position
	}
	for run, positions := range inFeed {
		last := runstore.Position(0)
		for _, event := range kit.MustCollect(t, "journal", runstore.Journal(t.Context(), e.Store, run, 1)) {
			at := positions[event.Seq]
			if at <= last {
				t.Errorf("event %d of %q is at position %d of the feed, the one before at %d", event.Seq, run, at, last)
			}
			if event.Position != at && event.Position != 0 { // 0: the engine does not know the position at the commit
				t.Errorf("event %d of %q is at position %d according to its journal, in the feed at %d", event.Seq, run, event.Position, at)
			}
			last = at
		}
	}
}

func journalPages(t harness.T, e *harness.Env) {
	const events = 25
	ctx := t.Context()
	e.Create(t, "run")
	for n := 1; n <= events; n += 5 {
		b := runstore.NewBatch("run", runstore.AtSeq(runstore.Seq(n)))
		for k := range 5 {
			b.Append("event", fmt.Append(nil, n+k))
		}
		kit.MustCommit(t, e.Store, b)
	}
	for _, limit := range []int{1, 4, events, runstore.MaxPage} {
		for from := runstore.Seq(0); from <= events+2; from++ {
			page, err := e.Store.ReadJournal(ctx, "run", from, limit)
			if err != nil {
				t.Fatalf("read from %d: %v", from, err)
			}
			begin := max(from, 1)
			kit.Equal(t, fmt.Sprintf("events of a page of %d from %d", limit, from), len(page), max(0, min(limit, events+1-int(begin))))
			for i, event := range page {
				if want := begin + runstore.Seq(i); event.Seq != want || string(event.Data) != fmt.Sprint(want) {
					t.Errorf("page of %d from %d: event %d is %q, want %d", limit, from, event.Seq, event.Data, want)
				}
			}
		}
	}
}

func longJournal(t harness.T, e *harness.Env) {
	ctx, total := t.Context(), runstore.Seq(e.Scaled(t, "events", 8_000, 100_000))
	e.Create(t, "run")
	for n := runstore.Seq(0); n < total; n += runstore.MaxEvents {
		b := runstore.NewBatch("run", runstore.AtSeq(n+1))
		for k := range runstore.Seq(runstore.MaxEvents) {
			b.Append("event", fmt.Appendf(nil, "event %d", n+k+1))
		}
		done := kit.MustCommit(t, e.Store, b)
		kit.Equal(t, "seqs", [2]runstore.Seq{done.FirstSeq, done.LastSeq}, [2]runstore.Seq{n + 1, n + runstore.MaxEvents})
	}
	other := e.Reopen(t)
	for _, from := range []runstore.Seq{1, total / 2, total - 999, total} {
		next := from
		for event, err := range runstore.Journal(ctx, other, "run", from) {
			if err != nil {
				t.Fatalf("journal from %d: %v", from, err)
			}
			if event.Seq != next || string(event.Data) != fmt.Sprintf("event %d", next) {
				t.Fatalf("journal from %d: seq %d holds %q, want seq %d", from, event.Seq, event.Data, next)
			}
			next++
		}
		kit.Equal(t, fmt.Sprintf("end of the journal from %d", from), next, total+1)
	}
	pick := kit.Seeded(t)(0)
	for range 50 {
		from, limit := runstore.Seq(1+pick.IntN(int(total))), 1+pick.IntN(5)
		page, err := other.ReadJournal(ctx, "run", from, limit)
		if err != nil || len(page) != min(limit, int(total-from+1)) || page[0].Seq != from {
			t.Fatalf("page of %d from %d: %d events, %v", limit, from, len(page), err)
		}
	}
	// The run is as usable as one with a short journal.
	lease := e.Acquire(t, other, "run", "owner")
	kit.Equal(t, "next seq", e.Append(t, other, lease, "more"), total+1)
}
