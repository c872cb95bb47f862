package postgres_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// grouped lets one commit wait for the run's row and n more queue behind it, so that these share a
// round trip once it ends. It returns each commit's error, the first one's first. It calls
// meanwhile before they go on.
func grouped(t *testing.T, s *postgres.Store, address string, n int, do func(i int) error, meanwhile func()) []error {
	t.Helper()
	other := connect(t, address)
	exec(t, other, "BEGIN")
	exec(t, other, "SELECT FROM tapestore.runs FOR NO KEY UPDATE")
	errs := make([]error, n+1)
	var wg sync.WaitGroup
	wg.Go(func() { errs[0] = do(0) })
	awaitLocked(t, address, 1)
	for i := range n {
		wg.Go(func() { errs[i+1] = do(i + 1) })
		await(t, "the others wait for the first", func() bool { return postgres.Waiting(s, "run") == i+1 })
	}
	meanwhile()
	exec(t, other, "ROLLBACK")
	wg.Wait()
	return errs
}

// Writes of one run that arrive while another is in flight share a round trip, and each has its own
// result.
func TestGroup(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			w := &wire{}
			s := open(t, with(address, "default_query_exec_mode="+mode), w.through)
			lease := hold(t, s, "run")
			stale := lease
			stale.Grant = "another"
			done := make([]runstore.Committed, 20)
			errs := grouped(t, s, address, 19, func(i int) (err error) {
				b := appending(lease, "event", "event")
				switch i % 5 { // 0 and 1 share a statement
				case 2:
					b = appending(stale, "zombie")
				case 3:
					b.Require(runstore.AtVersion("key", 99))
				case 4:
					b.Put(runstore.RecordKey(fmt.Sprint("key ", i)), nil)
				}
				done[i], err = s.Commit(t.Context(), b)
				return err
			}, func() {})
			next := runstore.Seq(1)
			for i, err := range errs {
				want := [...]error{nil, nil, runstore.ErrFenced, runstore.ErrConflict, nil}[i%5]
				if !errors.Is(err, want) || (want == nil) != (err == nil) {
					t.Errorf("commit %d: got %v, want %v", i, err, want)
				}
				if want != nil {
					continue
				}
				if done[i].FirstSeq != next || done[i].LastSeq != next+1 {
					t.Errorf("commit %d: got seqs %d to %d, want %d and %d", i, done[i].FirstSeq, done[i].LastSeq, next, next+1)
				}
				next += 2
			}
		})
	}
}

// A group of one run under two fences shares no statement with groups of other runs: such a
// statement has one fence for each run, so it would apply the zombie's append under the holder's
// fence.
func TestGroupUnderTwoFencesIsSentAlone(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease, other := hold(t, s, "run"), hold(t, s, "other")
	stale := lease
	stale.Grant = "another"
	var results atomic.Int32
	var beside error
	var wg sync.WaitGroup
	errs := grouped(t, s, address, 2, func(i int) error {
		defer results.Add(1)
		_, err := s.Commit(t.Context(), appending([]runstore.Lease{lease, lease, stale}[i], fmt.Sprint(i)))
		return err
	}, func() {
		await(t, "the first append gives up its slot", func() bool { _, free := postgres.Coalescer(s); return free == postgres.MaxInFlight })
		releaseSlot := postgres.FillSlots(s)
		wg.Go(func() { _, beside = s.Commit(t.Context(), appending(other, "event")) })
		await(t, "the other run's append waits for a slot", func() bool { waiting, _ := postgres.Coalescer(s); return waiting == 1 })
		wg.Go(func() {
			await(t, "the group has its results or waits for a slot", func() bool {
				waiting, _ := postgres.Coalescer(s)
				return results.Load() == 3 || waiting == 2
			})
			for range postgres.MaxInFlight {
				releaseSlot()
			}
		})
	})
	wg.Wait()
	if !errors.Is(errs[2], runstore.ErrFenced) {
		t.Errorf("the zombie's append: got %v, want ErrFenced", errs[2])
	}
	if err := errors.Join(errs[0], errs[1], beside); err != nil {
		t.Error(err)
	}
	wantJournal(t, s, "run", "0", "1")
	wantJournal(t, s, "other", "event")
}

// When the messages of a shared round trip are lost, each of its writes is settled on its own, and
// applied once.
func TestLostMessagesOfAGroup(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exec", "simple_protocol"} {
		for _, harm := range []harm{loseRequest, loseReply} {
			for _, kind := range []string{"appends", "mixed"} {
				t.Run(fmt.Sprint(mode, "/", harm, "/", kind), func(t *testing.T) {
					t.Parallel()
					address := database(t)
					w := &wire{}
					s := open(t, with(address, "default_query_exec_mode="+mode), w.through)
					lease := hold(t, s, "run")
					const n = 8
					seqs := make([]runstore.Seq, n+1)
					errs := grouped(t, s, address, n, func(i int) error {
						b := appending(lease, fmt.Sprint(i))
						if kind == "mixed" && i%2 == 1 {
							b.Put("key", []byte(fmt.Sprint(i)))
						}
						done, err := s.Commit(t.Context(), b)
						seqs[i] = done.FirstSeq
						return err
					}, func() { w.lose(harm, "") })
					events, err := s.ReadJournal(t.Context(), "run", 1, runstore.MaxPage)
					if err != nil || len(events) != n+1 {
						t.Fatalf("got %d events, %v, want %d", len(events), err, n+1)
					}
					for i, err := range errs {
						if err != nil {
							t.Errorf("commit %d: %v", i, err)
						} else if got := string(events[seqs[i]-1].Data); got != fmt.Sprint(i) {
							t.Errorf("commit %d was told seq %d, where %q is", i, seqs[i], got)
						}
					}
					if len(w.sent()) == 0 {
						t.Error("nothing was lost")
					}
				})
			}
		}
	}
}

// Contenders for a lease on one handle share a statement, and each has its own result.
func TestContendersShareAStatement(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s := open(t, address, w.through)
	lease := hold(t, s, "run")
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	leases := make([]runstore.Granted, 17)
	errs := grouped(t, s, address, 16, func(i int) (err error) {
		if i == 0 { // no contender
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Append("test", nil)
			_, err := s.Commit(t.Context(), b)
			return err
		}
		grant := runstore.GrantID(fmt.Sprint("grant ", i))
		switch i {
		case 5:
			grant = "grant 1" // the same request again
		case 9:
			grant = lease.Grant // that was ended
		}
		leases[i], err = s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(fmt.Sprint(i)), TTL: time.Minute, Grant: grant},
		})
		return err
	}, func() { w.lose(none, "") })
	for i, err := range errs {
		var held *runstore.LeaseHeldError
		var fenced *runstore.FencedError
		switch i {
		case 0, 1, 5:
			if err != nil {
				t.Errorf("%d: got %v", i, err)
			}
		case 9:
			if !errors.As(err, &fenced) || fenced.Current != 2 || fenced.Holder.Owner != "1" {
				t.Errorf("contender 9, whose grant was ended: got %v, want ErrFenced by token 2 of 1", err)
			}
		default:
			if !errors.As(err, &held) || held.Holder.Token != 2 || held.Holder.Owner != "1" || held.Remaining <= 0 {
				t.Errorf("contender %d: got %v, want ErrLeaseHeld by 1 under token 2", i, err)
			}
		}
	}
	if leases[1].Token != 2 || leases[5].Token != 2 || leases[5].Grant != "grant 1" {
		t.Errorf("got %+v and, for the same request again, %+v, want token 2 for both", leases[1], leases[5])
	}
	if n := len(w.sent()); n != 1 {
		t.Errorf("%d statements were sent for 16 contenders, want 1", n)
	}
}

// Acquires that meet on one handle are judged by their own guards, one after another: a handoff
// among contenders is granted, and those behind it find its grant.
func TestGuardedRequestsAmongContenders(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, address)
	lease := hold(t, s, "run")
	leases := make([]runstore.Granted, 7)
	errs := grouped(t, s, address, 6, func(i int) (err error) {
		req := runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(fmt.Sprint(i)), TTL: time.Minute}}
		switch i {
		case 0: // no contender: it waits for the row
			_, err := s.Commit(t.Context(), appending(lease, "event"))
			return err
		case 2, 3: // a handoff, and another that finds the first
			req.Guards = []runstore.Guard{lease.Fence()}
		case 4:
			req.Guards, req.Preempt = []runstore.Guard{runstore.AtToken(lease.Token)}, "test"
		case 5:
			req.Guards = []runstore.Guard{runstore.AtToken(lease.Token + 1)}
		case 6:
			req.Guards, req.Preempt = []runstore.Guard{runstore.AtToken(lease.Token + 1)}, "test"
		}
		leases[i], err = s.AcquireLease(t.Context(), req)
		return err
	}, func() {})
	for i, err := range errs {
		var held *runstore.LeaseHeldError
		var fenced *runstore.FencedError
		var conflict *runstore.ConflictError
		switch i {
		case 0:
			if err != nil {
				t.Errorf("the commit: %v", err)
			}
		case 1:
			if !errors.As(err, &held) || held.Holder.Token != lease.Token {
				t.Errorf("contender %d: got %v, want ErrLeaseHeld under token %d", i, err, lease.Token)
			}
		case 2, 6:
			if want := lease.Token + 1 + runstore.Token(i/6); err != nil || leases[i].Token != want {
				t.Errorf("request %d: got %+v, %v, want token %d", i, leases[i], err, want)
			}
		case 3:
			if !errors.As(err, &fenced) || fenced.Current != lease.Token+1 || fenced.Holder.Owner != "2" {
				t.Errorf("the second handoff: got %v, want ErrFenced by 2 under token %d", err, lease.Token+1)
			}
		case 4:
			if !errors.As(err, &conflict) || conflict.Guard != "token" || conflict.Token != lease.Token+1 {
				t.Errorf("a preempt at the former token: got %v, want ErrConflict at token %d", err, lease.Token+1)
			}
		case 5:
			if !errors.As(err, &held) || held.Holder.Owner != "2" {
				t.Errorf("an acquire at the last token: got %v, want ErrLeaseHeld by 2", err)
			}
		}
	}
}
