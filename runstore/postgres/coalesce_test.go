package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// coalesced starts n appends, each to a run of its own, that wait for a slot and are then sent
// together. It returns each append's error. It calls meanwhile before they are sent.
func coalesced(t *testing.T, s *postgres.Store, n int, do func(i int) error, meanwhile func()) []error {
	t.Helper()
	leave := postgres.FillSlots(s)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = do(i) })
		await(t, "all wait for a place", func() bool { waiting, _ := postgres.Coalescer(s); return waiting == i+1 })
	}
	meanwhile()
	for range postgres.MaxInFlight {
		leave()
	}
	wg.Wait()
	await(t, "all slots are free", func() bool { _, free := postgres.Coalescer(s); return free == postgres.MaxInFlight })
	return errs
}

// holdMany creates runs and takes their leases.
func holdMany(t *testing.T, s *postgres.Store, n int) []runstore.Lease {
	t.Helper()
	leases := make([]runstore.Lease, n)
	for i := range leases {
		leases[i] = hold(t, s, runstore.RunID(fmt.Sprintf("run %03d", i)))
	}
	return leases
}

// wantJournal checks the data of a run's events.
func wantJournal(t *testing.T, s *postgres.Store, id runstore.RunID, want ...string) {
	t.Helper()
	events, err := s.ReadJournal(t.Context(), id, 1, runstore.MaxPage)
	if err != nil {
		t.Fatalf("read %s: %v", id, err)
	}
	var got []string
	for i, e := range events {
		got = append(got, string(e.Data))
		if e.Seq != runstore.Seq(i+1) {
			t.Errorf("%s: event %d has the seq %d", id, i+1, e.Seq)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: got the events %q, want %q", id, got, want)
	}
}

// Appends to runs of their own share one statement when no slot is free. Each has its own result,
// and a fence that does not hold refuses its own append only.
func TestAppendsOfSeveralRunsShareAStatement(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			w := &wire{}
			s := open(t, with(address, "default_query_exec_mode="+mode), w.through)
			const n = 20
			leases := holdMany(t, s, n)
			for _, l := range leases {
				commit(t, s, appending(l, "before"))
			}
			stale := leases[7]
			if _, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: stale.Run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: runstore.MaxTTL}, Preempt: "test",
			}); err != nil {
				t.Fatal(err)
			}
			done := make([]runstore.Committed, n)
			errs := coalesced(t, s, n, func(i int) (err error) {
				b := appending(leases[i])
				for k := range i%3 + 1 {
					b.Append("test", fmt.Append(nil, i, k))
				}
				done[i], err = s.Commit(t.Context(), b)
				return err
			}, func() { w.lose(none, "") })
			for i, err := range errs {
				if i == 7 {
					var fenced *runstore.FencedError
					if !errors.As(err, &fenced) || fenced.Holder.Owner != "next" {
						t.Errorf("the zombie: got error %v, want ErrFenced by next", err)
					}
					wantJournal(t, s, leases[i].Run, "before")
					continue
				}
				last := runstore.Seq(2 + i%3)
				if err != nil || done[i].FirstSeq != 2 || done[i].LastSeq != last || done[i].Time.IsZero() {
					t.Errorf("commit %d: got %+v, %v, want seqs 2 to %d", i, done[i], err, last)
				}
				want := []string{"before"}
				for k := range i%3 + 1 {
					want = append(want, fmt.Sprint(i, k))
				}
				wantJournal(t, s, leases[i].Run, want...)
			}
			if sent := len(w.sent()); sent != 2 {
				t.Errorf("%d statements were sent, want one for all and one for the zombie", sent)
			}
			wantFeed(t, s, n+(n-1)+6+2*6) // 7 of 20 have one event, 7 two, 6 three; the zombie would have had two
		})
	}
}

// wantFeed reads the feed and checks that each run's events are there in order.
func wantFeed(t *testing.T, s *postgres.Store, n int) {
	t.Helper()
	var all []runstore.FeedEvent
	await(t, "the feed has all", func() bool {
		var err error
		if all, err = s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: runstore.MaxPage}); err != nil {
			t.Fatal(err)
		}
		return len(all) >= n
	})
	seqs := map[runstore.RunID]runstore.Seq{}
	for _, e := range all {
		if seqs[e.Run]++; e.Seq != seqs[e.Run] {
			t.Errorf("%s: seq %d comes where %d should", e.Run, e.Seq, seqs[e.Run])
		}
	}
	if len(all) != n {
		t.Errorf("the feed has %d events, want %d", len(all), n)
	}
}

// A row that another transaction has locked delays its own append only.
func TestSharedAppendWaitsForNoRow(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	leases := holdMany(t, s, 6)
	other := connect(t, address)
	exec(t, other, "BEGIN")
	exec(t, other, "SELECT FROM tapestore.runs WHERE id = $1 FOR NO KEY UPDATE", []byte(leases[2].Run))
	answered, freed := make(chan int, 6), make(chan struct{})
	errs := coalesced(t, s, 6, func(i int) error {
		_, err := s.Commit(t.Context(), appending(leases[i], fmt.Sprint(i)))
		answered <- i
		return err
	}, func() {
		go func() {
			defer close(freed)
			for range 5 {
				if i := <-answered; i == 2 {
					t.Error("the append to the locked row was answered")
				}
			}
			_, _ = other.Exec(context.WithoutCancel(t.Context()), "ROLLBACK") // if it fails, the append fails
		}()
	})
	<-freed
	for i, err := range errs {
		if err != nil {
			t.Errorf("commit %d: %v", i, err)
		}
		wantJournal(t, s, leases[i].Run, fmt.Sprint(i))
	}
}

// Appends that wait for locked rows give up their slots.
func TestSlowAppendsGiveUpTheirSlots(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	leases := holdMany(t, s, postgres.MaxInFlight+1)
	other := connect(t, address)
	exec(t, other, "BEGIN")
	exec(t, other, "SELECT FROM tapestore.runs WHERE id <> $1 FOR NO KEY UPDATE", []byte(leases[postgres.MaxInFlight].Run))
	held := make(chan error, postgres.MaxInFlight)
	for _, l := range leases[:postgres.MaxInFlight] {
		go func() {
			_, err := s.Commit(t.Context(), appending(l, "late"))
			held <- err
		}()
	}
	awaitLocked(t, address, postgres.MaxInFlight)
	commit(t, s, appending(leases[postgres.MaxInFlight], "event"))
	if len(held) > 0 {
		t.Error("it had to wait for the rows of others")
	}
	exec(t, other, "ROLLBACK")
	for range postgres.MaxInFlight {
		if err := <-held; err != nil {
			t.Error(err)
		}
	}
}

// poison makes every insert of an event with the payload poison fail.
func poison(t *testing.T, address string) {
	t.Helper()
	conn := connect(t, address)
	exec(t, conn, `CREATE FUNCTION tapestore.poison() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF new.data = 'poison' THEN RAISE EXCEPTION 'poisoned'; END IF; RETURN new; END $$`)
	exec(t, conn, `CREATE TRIGGER poison BEFORE INSERT ON tapestore.events FOR EACH ROW EXECUTE FUNCTION tapestore.poison()`)
}

// An append at which the engine fails does not fail those of other runs.
func TestSharedAppendSurvivesAPoisonedOne(t *testing.T) {
	t.Parallel()
	address := database(t)
	poison(t, address)
	s := open(t, address)
	leases := holdMany(t, s, 6)
	payload := func(i int) string { return []string{"event", "poison"}[min(i%4/3, 1)] } // the fourth
	errs := coalesced(t, s, 6, func(i int) error {
		_, err := s.Commit(t.Context(), appending(leases[i], payload(i)))
		return err
	}, func() {})
	for i, err := range errs {
		if i == 3 {
			if !errors.Is(err, runstore.ErrUnavailable) {
				t.Errorf("the poisoned commit: got error %v, want ErrUnavailable", err)
			}
			wantJournal(t, s, leases[i].Run)
			continue
		}
		if err != nil {
			t.Errorf("commit %d, beside the poisoned one: %v", i, err)
		}
		wantJournal(t, s, leases[i].Run, "event")
	}
}

// When the messages of a shared statement are lost, each append is settled on its
// own, and applied once.
func TestLostMessagesOfASharedAppend(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exec", "simple_protocol"} {
		for _, harm := range []harm{loseRequest, loseReply} {
			t.Run(fmt.Sprint(mode, "/", harm), func(t *testing.T) {
				t.Parallel()
				w := &wire{}
				s := open(t, with(database(t), "default_query_exec_mode="+mode), w.through)
				leases := holdMany(t, s, 8)
				errs := coalesced(t, s, 8, func(i int) error {
					done, err := s.Commit(t.Context(), appending(leases[i], fmt.Sprint(i), "second"))
					if err == nil && (done.FirstSeq != 1 || done.LastSeq != 2) {
						err = fmt.Errorf("got seqs %d to %d, want 1 and 2", done.FirstSeq, done.LastSeq)
					}
					return err
				}, func() { w.lose(harm, "") })
				for i, err := range errs {
					if err != nil {
						t.Errorf("commit %d: %v", i, err)
					}
					wantJournal(t, s, leases[i].Run, fmt.Sprint(i), "second")
				}
				if len(w.sent()) == 0 {
					t.Error("nothing was lost")
				}
			})
		}
	}
}

// A shared statement that arrives after its appends were voided applies none of them, because of
// their nonces and nothing else.
func TestLateSharedAppendIsRefused(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s := open(t, with(address, "default_query_exec_mode=exec"), w.through, impatient)
	const n = 4
	leases := holdMany(t, s, n)
	errs := coalesced(t, s, n, func(i int) error {
		_, err := s.Commit(t.Context(), appending(leases[i], "first", "second"))
		return err
	}, func() { w.lose(loseRequest, "") })
	for i, err := range errs {
		if !errors.Is(err, runstore.ErrUnavailable) {
			t.Fatalf("commit %d: got %v, want ErrUnavailable", i, err)
		}
	}
	late := w.sent()[0]
	at := noncesOf(late)
	nonces := late.args[at].([]*int64)
	if len(nonces) != 2*n {
		t.Fatalf("sent %s\nwith %v, want one statement for %d runs", late.sql, late.args, n)
	}
	conn := connect(t, address)
	before := stored(t, conn)
	exec(t, conn, late.sql, late.args...)
	if after := stored(t, conn); after != before {
		t.Errorf("the late copy changed\n%s\nto\n%s", before, after)
	}
	others := slices.Clone(nonces)
	for i, nonce := range nonces {
		if nonce != nil {
			other := *nonce ^ 1
			others[i] = &other
		}
	}
	late.args[at] = others
	exec(t, conn, late.sql, late.args...)
	for _, l := range leases {
		wantJournal(t, s, l.Run, "first", "second") // else something else than the nonces refused it
	}
}

// An append whose caller leaves while it waits for a slot is not sent, and the caller may reuse the
// buffers that it passed.
func TestCallerLeavesTheSlotQueue(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	leases := holdMany(t, s, 3)
	ctx, cancel := context.WithCancel(t.Context())
	data := []byte("as given")
	withdrawn := make(chan error, 1)
	errs := coalesced(t, s, 3, func(i int) error {
		b := runstore.NewBatch(leases[i].Run, leases[i].Fence())
		b.Append("test", data)
		if i != 1 {
			_, err := s.Commit(t.Context(), b)
			return err
		}
		_, err := s.Commit(ctx, b)
		withdrawn <- err
		return nil
	}, func() {
		cancel()
		if err := <-withdrawn; !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want ErrUnavailable for its cancellation: it surely was not applied", err)
		}
		copy(data, "reused!!")
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	wantJournal(t, s, leases[0].Run, "as given")
	wantJournal(t, s, leases[1].Run)
	wantJournal(t, s, leases[2].Run, "as given")
}

// A caller that leaves while the shared statement is in flight gets an ambiguous outcome; the
// others get their results.
func TestCallerLeavesASharedAppend(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	leases := holdMany(t, s, 3)
	release := holdEvents(t, address)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	freed := make(chan struct{})
	errs := coalesced(t, s, 3, func(i int) error {
		if i != 1 {
			_, err := s.Commit(t.Context(), appending(leases[i], "event"))
			return err
		}
		_, err := s.Commit(ctx, appending(leases[i], "event"))
		left <- err
		return nil
	}, func() {
		go func() {
			defer close(freed)
			awaitLocked(t, address, 1)
			cancel()
			if err := <-left; !errors.Is(err, runstore.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want ErrUnknownOutcome for its cancellation", err)
			}
			release()
		}()
	})
	<-freed
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	for _, l := range leases { // it was applied, with the others
		wantJournal(t, s, l.Run, "event")
	}
}

// Appends to many runs at once, by many writers for each, lose none and keep order.
func TestSharedAppendsOfManyRuns(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	const runs, writers, each = 12, 4, 25
	leases := holdMany(t, s, runs)
	var wg sync.WaitGroup
	for _, l := range leases {
		for range writers {
			wg.Go(func() {
				for range each {
					if _, err := s.Commit(t.Context(), appending(l, "event")); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	for _, l := range leases {
		run, err := s.GetRun(t.Context(), l.Run)
		if err != nil || run.LastSeq != writers*each {
			t.Errorf("%s: got last seq %d, %v, want %d", l.Run, run.LastSeq, err, writers*each)
		}
	}
	await(t, "all slots are free", func() bool { _, free := postgres.Coalescer(s); return free == postgres.MaxInFlight })
	var after runstore.Position
	seqs := map[runstore.RunID]runstore.Seq{}
	total := 0
	await(t, "the feed has all", func() bool {
		page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: runstore.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page {
			if seqs[e.Run]++; e.Seq != seqs[e.Run] || e.Position <= after {
				t.Fatalf("%s: seq %d at position %d after %d, want seq %d", e.Run, e.Seq, e.Position, after, seqs[e.Run])
			}
			after = e.Position
			total++
		}
		return total == runs*writers*each
	})
}
