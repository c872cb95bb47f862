package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// replicating is a server whose commits wait for a synchronous standby that may be away.
type replicating struct {
	address      string
	admin, probe *pgx.Conn
}

func newReplicating(t *testing.T) *replicating {
	t.Helper()
	db, err := ownServer(t, nil).NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	r := &replicating{address: db.URL, admin: connect(t, db.URL), probe: connect(t, with(db.URL, "application_name=probe"))}
	exec(t, r.admin, `CREATE TABLE public.probe AS SELECT 1 AS n`)
	return r
}

// standbyLeaves makes commits wait, but for those of [notReplicated] sessions.
func (r *replicating) standbyLeaves(t *testing.T) {
	t.Helper()
	exec(t, r.admin, `ALTER SYSTEM SET synchronous_standby_names = 'away'`)
	exec(t, r.admin, `SELECT pg_reload_conf()`)
	for waited := false; !waited; { // until the server has taken the setting over
		r.during(t, "probe", func() {
			if _, err := r.probe.Exec(context.WithoutCancel(t.Context()), `UPDATE public.probe SET n = n + 1`); err != nil {
				t.Error(err)
			}
		}, func() {
			waited = true
			r.endWaits(t, "probe", "pg_cancel_backend")
		})
	}
}

// standbyReturns acknowledges what waits, and all commits from now on.
func (r *replicating) standbyReturns(t *testing.T) {
	t.Helper()
	exec(t, r.admin, `ALTER SYSTEM RESET synchronous_standby_names`)
	exec(t, r.admin, `SELECT pg_reload_conf()`)
	// This returns when the server has taken the setting over. Otherwise it might do so after
	// standbyLeaves has seen a commit wait.
	exec(t, r.probe, `UPDATE public.probe SET n = n + 1`)
}

// during runs f, and calls waiting whenever a session of that application is seen to
// wait for the standby.
func (r *replicating) during(t *testing.T, application string, f, waiting func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond): // look again
		}
		if get[bool](t, r.admin, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'SyncRep')`, application) {
			waiting()
		}
	}
}

// endWaits ends the waits of an application's sessions as an operator would, and
// returns how many there were.
func (r *replicating) endWaits(t *testing.T, application, how string) int {
	t.Helper()
	return get[int](t, r.admin, `SELECT count(`+how+`(pid))::int FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'SyncRep'`, application)
}

// notReplicated lets a handle's commits wait for no standby.
func notReplicated(config *pgxpool.Config, _ *postgres.Options) {
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "local"
}

// underContext is a test with another context.
type underContext struct {
	testing.TB
	ctx context.Context
}

// Context overrides that of the test.
func (t underContext) Context() context.Context { return t.ctx }

// replicatedChanges are all writes to a run; in a quick run, one for each statement.
func replicatedChanges() []change {
	all := append([]change{
		{name: "commit of two runs", before: func(t testing.TB, s *postgres.Store) runstore.Lease {
			hold(t, s, "other")
			return holding(t, s)
		}, do: func(t testing.TB, s *postgres.Store, l runstore.Lease) (any, error) {
			other := runstore.NewBatch("other", runstore.Unguarded("test"))
			other.Append("test", []byte("two"))
			return s.CommitMulti(t.Context(), []runstore.Batch{appending(l, "one"), other})
		}},
		{name: "repeat an acquire", before: holding, do: func(t testing.TB, s *postgres.Store, l runstore.Lease) (any, error) {
			return s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: l.Run, LeaseSpec: runstore.LeaseSpec{Owner: l.Owner, TTL: runstore.MaxTTL, Grant: l.Grant},
			})
		}},
	}, changes...)
	if effort.Full() {
		return all
	}
	return slices.DeleteFunc(all, func(c change) bool {
		return !slices.Contains([]string{"commit of two runs", "append one", "create with writes", "acquire", "release", "renew"}, c.name)
	})
}

// TestCommitWithoutItsStandby cuts short the waits of writes for a synchronous standby
// that is away. The server then answers that it has committed, with a warning that no
// standby may have it.
func TestCommitWithoutItsStandby(t *testing.T) {
	t.Parallel()
	r := newReplicating(t)
	modes := [...]string{"cache_statement", "exec", "simple_protocol"}
	type writer struct {
		change
		application string
		store       *postgres.Store
		lease       runstore.Lease
	}
	var writers []writer
	for i, c := range replicatedChanges() {
		w := writer{change: c, application: fmt.Sprint("writer_", i)}
		address := with(r.address, "schema="+w.application)
		w.lease = c.before(t, open(t, address, notReplicated))
		w.store = open(t, with(address, "application_name="+w.application, "default_query_exec_mode="+modes[i%len(modes)]))
		writers = append(writers, w)
	}
	r.standbyLeaves(t)
	if _, err := postgres.New(t.Context(), callersPool(t, r.address), nil); !errors.Is(err, runstore.ErrUnsupported) {
		t.Errorf("a store over a caller's pool: %v, want ErrUnsupported, because it learns of no such warning", err)
	}
	for _, w := range writers {
		t.Run(w.name+"/its caller gives up", func(t *testing.T) { // nobody learns whether a standby has it
			ctx, cancel := context.WithCancel(t.Context())
			r.during(t, w.application, func() {
				result, err := w.do(underContext{t, ctx}, w.store, w.lease)
				if !errors.Is(err, runstore.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
					t.Errorf("got %+v, %v; want ErrUnknownOutcome with the context's error", result, err)
				}
			}, cancel)
			cancel()
		})
	}
	for _, w := range writers {
		if w.name == "purge" || w.name == "commit and release" { // which end what a repeat needs
			continue
		}
		// The caller repeats it and goes on waiting. Whether the standby has the write
		// shows by another write, which waits for it.
		t.Run(w.name+"/an operator ends the waits", func(t *testing.T) {
			ended := 0
			r.during(t, w.application, func() {
				if result, err := w.do(t, w.store, w.lease); err != nil {
					t.Errorf("got %+v, %v; want success", result, err)
				}
			}, func() {
				switch ended {
				case 3:
					r.standbyReturns(t)
				case 1:
					ended += r.endWaits(t, w.application, "pg_terminate_backend")
				default:
					ended += r.endWaits(t, w.application, "pg_cancel_backend")
				}
			})
			if ended < 3 {
				t.Errorf("it was acknowledged after %d waits that were cut short, and no standby has it", ended)
			}
			r.standbyLeaves(t)
		})
	}
	t.Run("appends that share a statement", func(t *testing.T) { sharedAppendsWithoutStandby(t, r) })
	t.Run("raise the epoch", func(t *testing.T) {
		w := writers[0]
		ctx, cancel := context.WithCancel(t.Context())
		r.during(t, w.application, func() {
			if epoch, err := w.store.RaiseEpoch(ctx, "test"); !errors.Is(err, runstore.ErrUnknownOutcome) || epoch != 0 {
				t.Errorf("its caller gave up: got %d, %v; want ErrUnknownOutcome", epoch, err)
			}
		}, cancel)
		cancel()
	})
}

// sharedAppendsWithoutStandby lets appends that share a statement wait for the standby together. A
// caller that leaves does not end the wait of the others.
func sharedAppendsWithoutStandby(t *testing.T, r *replicating) {
	r.standbyReturns(t)
	s := open(t, with(r.address, "application_name=sharing"))
	const n = 3
	leases := holdMany(t, s, n)
	// shared appends to each run, and lets the callers from first to last give up.
	shared := func(first, last int, then func()) []error {
		r.standbyLeaves(t)
		contexts, cancels := make([]context.Context, n), make([]context.CancelFunc, n)
		for i := range n {
			contexts[i], cancels[i] = context.WithCancel(t.Context())
			defer cancels[i]()
		}
		var gaveUp sync.WaitGroup
		gaveUp.Add(last - first + 1)
		var errs []error
		r.during(t, "sharing", func() {
			errs = coalesced(t, s, n, func(i int) error {
				_, err := s.Commit(contexts[i], appending(leases[i], "event"))
				if first <= i && i <= last {
					gaveUp.Done()
				}
				return err
			}, func() {})
		}, func() {
			for i := first; i <= last; i++ {
				cancels[i]()
			}
			gaveUp.Wait()
			then()
		})
		return errs
	}
	errs := shared(1, 1, func() { r.standbyReturns(t) })
	if errs[0] != nil || !errors.Is(errs[1], runstore.ErrUnknownOutcome) || errs[2] != nil {
		t.Errorf("the second caller gave up: got %v, want ErrUnknownOutcome for it alone", errs)
	}
	for i, err := range shared(0, n-1, func() {}) {
		if !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Errorf("all callers gave up: commit %d got %v, want ErrUnknownOutcome", i, err)
		}
	}
}

// A repeated acquire that meets a contender's is answered by the server itself: what the contender
// read may be on no standby.
func TestRepeatedAcquireIsNotAnsweredByAnothers(t *testing.T) {
	t.Parallel()
	address := database(t)
	w := &wire{}
	s := open(t, with(address, "default_query_exec_mode=exec"), w.through)
	lease := hold(t, s, "run")
	acquire := func(grant runstore.GrantID) error {
		_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: lease.Owner, TTL: runstore.MaxTTL, Grant: grant},
		})
		return err
	}
	w.lose(none, "")
	errs := grouped(t, s, address, 2, func(i int) error {
		switch i {
		case 0:
			_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL})
			return err
		case 1:
			return acquire("contender")
		default:
			return acquire(lease.Grant)
		}
	}, func() {})
	if errs[0] != nil || !errors.Is(errs[1], runstore.ErrLeaseHeld) || errs[2] != nil {
		t.Errorf("got %v, want success, ErrLeaseHeld and success", errs)
	}
	if n := len(w.sent()); n != 3 {
		t.Errorf("%d writes were sent, want 3: the renewal, the contender's request and the repeated one", n)
	}
}

// Which notices make the outcome of a write unknown.
func TestUnreplicated(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		notice pgconn.Notice
		want   bool
	}{
		{"a wait that was cancelled", pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "01000", Routine: "SyncRepWaitForLSN"}, true},
		{"a wait that the server's end cut short", pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "57P01", Routine: "SyncRepWaitForLSN"}, true},
		{"another engine's warning", pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "01000", Routine: "WaitForLogs"}, true},
		{"a trigger's warning", pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "01000", Routine: "exec_stmt_raise"}, false},
		{"a notice", pgconn.Notice{SeverityUnlocalized: "NOTICE", Code: "00000", Routine: "DropErrorMsgNonExistent"}, false},
	} {
		if got := postgres.Unreplicated(&tc.notice); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}
