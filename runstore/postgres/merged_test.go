package postgres_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Appends that have failed with an error that a retry resolves, and are then applied in a statement that they
// share, are applied once: they keep no error of the attempt before.
func TestAppendsMergeAfterARetryableError(t *testing.T) {
	t.Parallel()
	address := database(t)
	gate := connect(t, address)
	exec(t, gate, `CREATE SEQUENCE tapestore.tries`) // is not rolled back
	exec(t, gate, `CREATE FUNCTION tapestore.fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF new.data <> '0' THEN
			CASE nextval('tapestore.tries')
			WHEN 1 THEN
				PERFORM pg_advisory_xact_lock(1);
				RAISE EXCEPTION 'made to fail' USING ERRCODE = 'serialization_failure';
			WHEN 2 THEN
				PERFORM pg_advisory_xact_lock(2);
			ELSE
			END CASE;
		END IF;
		RETURN new;
	END $$`)
	exec(t, gate, `CREATE TRIGGER fail_once BEFORE INSERT ON tapestore.events FOR EACH ROW EXECUTE FUNCTION tapestore.fail_once()`)
	exec(t, gate, "SELECT pg_advisory_lock(1), pg_advisory_lock(2)")
	s := open(t, address)
	lease := hold(t, s, "run")
	const n = 5
	done := make([]runstore.Committed, n)
	var freed sync.WaitGroup
	errs := grouped(t, s, address, n-1, func(i int) (err error) {
		done[i], err = s.Commit(t.Context(), appending(lease, fmt.Sprint(i)))
		return err
	}, func() {
		freed.Go(func() {
			watch := connect(t, address)
			await(t, "all but the first append are about to fail", func() bool {
				return get[bool](t, watch, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory')`)
			})
			exec(t, gate, "SELECT pg_advisory_unlock(1)")
			await(t, "they queue behind the one that was repeated first", func() bool { return postgres.Waiting(s, "run") == n-2 })
			exec(t, gate, "SELECT pg_advisory_unlock(2)")
		})
	})
	freed.Wait()
	wantOnce(t, s, "run", done, errs)
}

// The same where the shared statement of several runs failed at one of them: what is sent without that one is
// applied, and is no error.
func TestAppendsMergeAfterASharedStatementFailed(t *testing.T) {
	t.Parallel()
	address := database(t)
	poison(t, address)
	s := open(t, address)
	lease, other := hold(t, s, "run"), hold(t, s, "other")
	var sent sync.WaitGroup
	var poisoned error
	done := make([]runstore.Committed, 4)
	errs := grouped(t, s, address, 3, func(i int) (err error) {
		done[i], err = s.Commit(t.Context(), appending(lease, fmt.Sprint(i)))
		return err
	}, func() {
		await(t, "the first append gives up its slot", func() bool { _, free := postgres.Coalescer(s); return free == postgres.MaxInFlight })
		releaseSlot := postgres.FillSlots(s)
		sent.Go(func() { _, poisoned = s.Commit(t.Context(), appending(other, "poison")) })
		await(t, "the other run's append waits for a slot", func() bool { waiting, _ := postgres.Coalescer(s); return waiting == 1 })
		sent.Go(func() {
			await(t, "the group waits for a slot too", func() bool { waiting, _ := postgres.Coalescer(s); return waiting == 2 })
			for range postgres.MaxInFlight {
				releaseSlot()
			}
		})
	})
	sent.Wait()
	if !errors.Is(poisoned, runstore.ErrUnavailable) {
		t.Errorf("the append that fails: got %v, want ErrUnavailable", poisoned)
	}
	wantJournal(t, s, "other")
	wantOnce(t, s, "run", done, errs)
}

// wantOnce checks that append i was applied, that its one event is the only one with the payload i, and that
// its result is that of this event.
func wantOnce(t *testing.T, s *postgres.Store, id runstore.RunID, done []runstore.Committed, errs []error) {
	t.Helper()
	events, err := s.ReadJournal(t.Context(), id, 1, runstore.MaxPage)
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, e := range events {
		times[string(e.Data)]++
	}
	for i, err := range errs {
		switch data := fmt.Sprint(i); {
		case err != nil:
			t.Errorf("append %d: %v", i, err)
		case times[data] != 1:
			t.Errorf("append %d is in the journal %d times, want once", i, times[data])
		case done[i].Replayed || string(events[done[i].FirstSeq-1].Data) != data:
			t.Errorf("append %d: got %+v, want the result of its event", i, done[i])
		}
	}
	if len(events) != len(errs) {
		t.Errorf("got %d events, want %d", len(events), len(errs))
	}
}
