package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// A page that ends early by its size skips no run, with a summary or without.
func TestScanSkipsNoRunBehindALargeOne(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	for i, size := range []int{4 << 20, 4 << 20, 1, 0, 1} {
		var w runstore.Writes
		if size > 0 {
			w.Put(runstore.SummaryKey, bytes.Repeat([]byte("x"), size))
		}
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: runstore.RunID(fmt.Sprint("r", i)), Runnable: runstore.After(0), Writes: w}); err != nil {
			t.Fatal(err)
		}
	}
	for _, index := range []runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable} {
		var ids []runstore.RunID
		for e, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, e.Run)
		}
		if len(ids) != 5 {
			t.Errorf("%s: got %v, want r0..r4", index, ids)
		}
	}
}

// sentTo is a connection that calls before with all that is sent.
type sentTo struct {
	net.Conn
	before func([]byte)
}

func (c sentTo) Write(b []byte) (int, error) {
	c.before(b)
	return c.Conn.Write(b)
}

// When the trace of a lost write may have been evicted, its outcome is unknown, not "not applied": whether
// the other writes come before the store asks for the trace, or while the question is on its way.
func TestForgottenTraceIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("late=", late), func(t *testing.T) {
			t.Parallel()
			address := database(t)
			w := &wire{}
			var armed atomic.Bool
			other := open(t, address)
			var lease runstore.Lease
			evict := func() {
				for i := range 400 {
					b := runstore.NewBatch("run", lease.Fence())
					b.Put("noise", []byte(fmt.Sprint(i)))
					commit(t, other, b)
				}
			}
			s := open(t, with(address, "default_query_exec_mode=exec", "pool_max_conns=1"), func(c *pgxpool.Config, _ *postgres.Options) {
				c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
					if !late && armed.Load() {
						evict()
					}
					return nil
				}
				dial := c.ConnConfig.DialFunc
				c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := dial(ctx, network, address)
					return sentTo{conn, func(b []byte) {
						if late && bytes.Contains(b, []byte("settle(")) && armed.Swap(false) {
							evict()
						}
					}}, err
				}
			}, w.through)
			lease = hold(t, s, "run")
			armed.Store(true)
			w.lose(loseReply, "")
			b := runstore.NewBatch("run", lease.Fence(), runstore.AtVersion("mine", 0))
			b.Put("mine", []byte("value"))
			_, err := s.Commit(t.Context(), b)
			if armed.Swap(false) == late {
				t.Error("the store did not ask for the trace")
			}
			recs, _ := other.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"mine"}})
			if runstore.OutcomeOf(err) != runstore.Unknown || len(recs) != 1 {
				t.Errorf("error %v, which means %v, and %d records; want an unknown outcome and one", err, runstore.OutcomeOf(err), len(recs))
			}
		})
	}
}

// A lost append is found though the clock leapt, as it does when a host was suspended.
func TestSettledThoughTheClockLeapt(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	w := &wire{}
	s := open(t, with(address, "default_query_exec_mode=exec"), w.through)
	lease := hold(t, s, "run")
	// the machine sleeps for two hours between the commit and its settlement
	exec(t, conn, `CREATE FUNCTION public.old() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.time := NEW.time - interval '2 hours'; RETURN NEW; END $$`)
	exec(t, conn, `CREATE TRIGGER old BEFORE INSERT ON tapestore.events FOR EACH ROW EXECUTE FUNCTION public.old()`)
	w.lose(loseReply, "")
	_, err := s.Commit(t.Context(), appending(lease, "once"))
	if n := get[int](t, conn, `SELECT count(*)::int FROM tapestore.events`); n != 1 {
		t.Errorf("%d events (%v), want 1", n, err)
	}
}

// A write that was refused wakes no caller.
func TestRefusalsWakeNobody(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	hold(t, s, "run")
	ch, err := s.Wakeups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const refusals = 100
	woken := 0
	for range refusals {
		_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "o", TTL: time.Second}})
		if !errors.Is(err, runstore.ErrLeaseHeld) {
			t.Fatalf("acquire: %v, want ErrLeaseHeld", err)
		}
		select { // a write of this handle wakes before it returns
		case <-ch:
			woken++
		default:
		}
	}
	if woken > 5 { // hints of the creation and of the start of LISTEN may come late
		t.Errorf("%d wake-ups in %d refusals", woken, refusals)
	}
	hold(t, s, "another")
	<-ch
}

// A retry whose own reply was lost returns Replayed.
func TestRepeatWhoseReplyWasLostIsAReplay(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s := open(t, with(address, "default_query_exec_mode=exec"), w.through)
	lease := hold(t, s, "run")
	b := appending(lease, "x")
	b.ID = "id"
	commit(t, s, b)
	w.lose(loseReply, "")
	if done := commit(t, s, b); !done.Replayed {
		t.Errorf("a repeat whose reply was lost: %+v, want Replayed", done)
	}
}

// A purge whose reply was lost returns its own time, not that of the creation.
func TestSettledPurgeHasItsTime(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s := open(t, with(address, "default_query_exec_mode=exec"), w.through)
	lease := hold(t, s, "run")
	b := runstore.NewBatch("run", lease.Fence())
	b.Purge = true
	now, _ := s.Now(t.Context())
	w.lose(loseReply, "")
	if done := commit(t, s, b); done.Time.Before(now) {
		t.Errorf("committed %v before it was sent", now.Sub(done.Time))
	}
}

// An error at the commit of a shared round trip is returned, and nothing is stored.
func TestErrorAtTheCommitOfAGroup(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		address := database(t)
		conn := connect(t, address)
		exec(t, conn, `CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.data = 'poison' THEN RAISE EXCEPTION 'late'; END IF; RETURN NEW; END $$`)
		exec(t, conn, `CREATE CONSTRAINT TRIGGER late AFTER INSERT ON tapestore.events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.late()`)
		s := open(t, with(address, "default_query_exec_mode="+mode))
		lease := hold(t, s, "run")
		errs := grouped(t, s, address, 4, func(i int) error {
			p := "x"
			if i == 2 {
				p = "poison"
			}
			b := appending(lease, p)
			if i%2 == 0 {
				b.Put(runstore.RecordKey(fmt.Sprint(i)), nil)
			}
			_, err := s.Commit(t.Context(), b)
			return err
		}, func() {})
		n := get[int](t, conn, `SELECT count(*)::int FROM tapestore.events`)
		if n != 4 || errs[2] == nil {
			t.Errorf("%s: %d events, errors %v", mode, n, errs)
		}
	}
}

// Two recoveries, the second to a time before the first, never assign the same epoch.
func TestTwoRestoresShareNoEpoch(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	exec(t, conn, "BEGIN")
	raised := func(timeline int) (epoch, base int64) {
		exec(t, conn, "SAVEPOINT backup")
		epoch = get[int64](t, conn, "SELECT tapestore.raise_epoch('x', cluster, timeline + $1, true) FROM tapestore.store", timeline)
		base = get[int64](t, conn, "SELECT position_base FROM tapestore.store")
		exec(t, conn, "ROLLBACK TO backup")
		return
	}
	e1, b1 := raised(1) // a promotion
	e2, b2 := raised(2) // then a recovery to a point in time before it
	if e1 == e2 || b1 >= b2 {
		t.Errorf("timelines 2 and 3 have epochs %d and %d, bases %d and %d", e1, e2, b1, b2)
	}
}

// The caller may change the status that it pointed to once the call has returned.
func TestStatusIsTheCallersAgain(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	other := connect(t, address)
	exec(t, other, "BEGIN")
	exec(t, other, "SELECT FROM tapestore.runs FOR NO KEY UPDATE")
	go func() { _, _ = s.Commit(context.Background(), appending(lease, "x")) }()
	awaitLocked(t, address, 1)
	ctx, cancel := context.WithCancel(context.Background())
	status := runstore.Status(1)
	b := runstore.NewBatch("run", lease.Fence())
	b.Status = &status
	errc := make(chan error, 1)
	go func() { _, err := s.Commit(ctx, b); errc <- err }()
	go func() { _, _ = s.Commit(context.Background(), appending(lease, "y")) }()
	await(t, "two wait", func() bool { return postgres.Waiting(s, "run") == 2 })
	exec(t, other, "ROLLBACK")
	cancel()
	err := <-errc
	status = 99
	t.Log(err)
}
