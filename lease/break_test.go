package lease_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// heldRun makes a run that an agent holds, and returns its lease.
func heldRun(t *testing.T, s runstore.RunStore) runstore.Lease {
	t.Helper()
	spec := runstore.RunSpec{ID: "run", Runnable: runstore.After(0), Lease: &runstore.LeaseSpec{Owner: "agent-a", Reactor: "agent", TTL: time.Minute}}
	spec.Writes.Append("began", nil)
	created, err := s.CreateRun(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return created.Lease
}

func journalOf(t *testing.T, s runstore.RunStore) (all []runstore.Event) {
	t.Helper()
	for e, err := range runstore.Journal(t.Context(), s, "run", 1) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func headOf(t *testing.T, s runstore.RunStore) runstore.Run {
	t.Helper()
	head, err := s.GetRun(t.Context(), "run")
	if err != nil {
		t.Fatal(err)
	}
	return head
}

func breaking(token runstore.Token) lease.BreakRequest {
	return lease.BreakRequest{Run: "run", Token: token, Operator: "ops@example", Reason: "agent-a loops"}
}

// L8: a break raises the token and is journaled in the same step, the old holder's next write is
// refused, the lease is free, and the successor learns that it was not released.
func TestBreak(t *testing.T) {
	t.Parallel()
	for engine, open := range map[string]func(t *testing.T) runstore.RunStore{
		"memory": func(*testing.T) runstore.RunStore { return memory.New(nil).Open() },
		"sqlite": func(t *testing.T) runstore.RunStore {
			s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "tape.db"), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
	} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			old := heldRun(t, s)
			const breaks = 8
			var won []lease.Broken
			var mu sync.Mutex
			var all sync.WaitGroup
			for range breaks {
				all.Go(func() {
					broken, err := lease.Break(t.Context(), s, breaking(old.Token))
					mu.Lock()
					defer mu.Unlock()
					var conflict *runstore.ConflictError
					switch {
					case err == nil:
						won = append(won, broken)
					case !errors.As(err, &conflict) || conflict.Guard != "token" || conflict.Token != old.Token+1:
						t.Errorf("a break that lost: got %v, want a conflict that names token %v", err, old.Token+1)
					}
				})
			}
			all.Wait()
			if len(won) != 1 {
				t.Fatalf("%d of %d breaks won, want 1", len(won), breaks)
			}
			if b := won[0]; b.Token != old.Token+1 || b.Former.Owner != "agent-a" || !b.Live || b.Seq != 2 || b.Time.IsZero() {
				t.Errorf("got %+v", b)
			}
			late := runstore.NewBatch("run", old.Fence())
			late.Append("late", nil)
			_, err := s.Commit(t.Context(), late)
			var fenced *runstore.FencedError
			if !errors.As(err, &fenced) || fenced.Current != old.Token+1 {
				t.Errorf("a late write: got %v, want ErrFenced that names token %v", err, old.Token+1)
			}
			journal := journalOf(t, s)
			if len(journal) != 2 || journal[1].Kind != lease.BreakKind || journal[1].Token != old.Token+1 || journal[1].Owner != "ops@example" ||
				!journal[1].Time.Equal(won[0].Time) {
				t.Errorf("the journal is %+v", journal)
			}
			entry, ok := lease.ParseBreak(journal[1].Data)
			if want := (lease.BreakEntry{Broken: old.Token, From: "agent-a", Reactor: "agent", Operator: "ops@example", Reason: "agent-a loops"}); !ok || entry != want {
				t.Errorf("got the entry %+v of %s, want %+v", entry, journal[1].Data, want)
			}
			if head := headOf(t, s); head.Token != old.Token+1 || head.Holder != (runstore.Holder{}) {
				t.Errorf("the head is %+v", head)
			}
			granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute}})
			if err != nil || granted.Token != old.Token+2 || granted.Former != runstore.EndRevoked {
				t.Errorf("the successor: got %+v, %v", granted, err)
			}
		})
	}
}

// hooked is a store whose requests for a lease, commits and readings of a head a test replaces.
type hooked struct {
	runstore.RunStore
	acquire func(n int, next func() (runstore.Granted, error)) (runstore.Granted, error)
	commit  func(next func() (runstore.Committed, error)) (runstore.Committed, error)
	got     func(n int)

	acquires, gets int
}

func (s *hooked) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	s.acquires++
	next := func() (runstore.Granted, error) { return s.RunStore.AcquireLease(ctx, req) }
	if s.acquire == nil {
		return next()
	}
	return s.acquire(s.acquires, next)
}

func (s *hooked) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	next := func() (runstore.Committed, error) { return s.RunStore.Commit(ctx, b) }
	if s.commit == nil {
		return next()
	}
	return s.commit(next)
}

func (s *hooked) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	run, err := s.RunStore.GetRun(ctx, id)
	if s.gets++; s.got != nil {
		s.got(s.gets)
	}
	return run, err
}

// Each reply and each request of a break is lost in turn.
func TestBreakFaults(t *testing.T) {
	t.Parallel()
	lost := &runstore.OpError{Op: "acquire lease", Err: runstore.ErrUnknownOutcome}
	away := &runstore.OpError{Op: "acquire lease", Err: runstore.ErrUnavailable}
	type next = func() (runstore.Granted, error)
	takeover := func(t *testing.T, s runstore.RunStore) {
		t.Helper()
		time.Sleep(runstore.MinTTL) // on the clock of the test, which is the store's
		_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute}})
		if err != nil {
			t.Error(err)
		}
	}
	purge := func(t *testing.T, s runstore.RunStore) {
		t.Helper()
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Purge = true
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		acquire func(t *testing.T, s runstore.RunStore, n int, next next) (runstore.Granted, error)
		commit  func(next func() (runstore.Committed, error)) (runstore.Committed, error)
		want    error
		token   runstore.Token // at the end
		holder  runstore.Owner
		events  int
	}{
		"the reply of the grant is lost": {
			acquire: func(_ *testing.T, _ runstore.RunStore, n int, next next) (runstore.Granted, error) {
				granted, err := next()
				if n == 1 {
					return runstore.Granted{}, lost
				}
				return granted, err
			},
			token: 2, events: 2,
		},
		"the request for the grant is lost": {
			acquire: func(_ *testing.T, _ runstore.RunStore, n int, next next) (runstore.Granted, error) {
				if n == 1 {
					return runstore.Granted{}, lost
				}
				return next()
			},
			token: 2, events: 2,
		},
		"the store is away at first": {
			acquire: func(_ *testing.T, _ runstore.RunStore, n int, next next) (runstore.Granted, error) {
				if n == 1 {
					return runstore.Granted{}, away
				}
				return next()
			},
			token: 2, events: 2,
		},
		"the store stays away": {
			acquire: func(*testing.T, runstore.RunStore, int, next) (runstore.Granted, error) {
				return runstore.Granted{}, away
			},
			want: runstore.ErrUnavailable, token: 1, holder: "agent-a", events: 1,
		},
		"every reply is lost": {
			acquire: func(_ *testing.T, _ runstore.RunStore, _ int, next next) (runstore.Granted, error) {
				_, _ = next()
				return runstore.Granted{}, lost
			},
			want: runstore.ErrUnknownOutcome, token: 2, holder: "ops@example", events: 2,
		},
		"the reply is lost, and a successor is faster than the repeat": {
			acquire: func(t *testing.T, s runstore.RunStore, n int, next next) (runstore.Granted, error) {
				granted, err := next()
				if n == 1 {
					takeover(t, s)
					return runstore.Granted{}, lost
				}
				if !granted.Ended {
					t.Error("the repeat did not find that the grant has ended")
				}
				return granted, err
			},
			token: 3, holder: "agent-b", events: 2,
		},
		"the request is lost, and another break is faster": {
			acquire: func(t *testing.T, s runstore.RunStore, n int, next next) (runstore.Granted, error) {
				if n == 1 {
					if _, err := lease.Break(t.Context(), s, breaking(1)); err != nil {
						t.Error(err)
					}
					return runstore.Granted{}, lost
				}
				return next()
			},
			want: runstore.ErrConflict, token: 2, events: 2,
		},
		"the reply is lost, and the run is purged": {
			acquire: func(t *testing.T, s runstore.RunStore, n int, next next) (runstore.Granted, error) {
				granted, err := next()
				if n == 1 {
					purge(t, s)
					return runstore.Granted{}, lost
				}
				return granted, err
			},
			want: runstore.ErrUnknownOutcome,
		},
		"the process ends between the two steps": {
			commit: func(func() (runstore.Committed, error)) (runstore.Committed, error) {
				return runstore.Committed{}, away
			},
			token: 2, holder: "ops@example", events: 2,
		},
		"the reply of the second step is lost": {
			commit: func(next func() (runstore.Committed, error)) (runstore.Committed, error) {
				_, _ = next()
				return runstore.Committed{}, lost
			},
			token: 2, events: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New(nil).Open()
				old := heldRun(t, inner)
				s := &hooked{RunStore: inner, commit: c.commit}
				if c.acquire != nil {
					s.acquire = func(n int, next next) (runstore.Granted, error) { return c.acquire(t, inner, n, next) }
				}
				broken, err := lease.Break(t.Context(), s, breaking(old.Token))
				if runstore.KindOf(err) != c.want || err == nil && (broken.Token != 2 || broken.Seq != 2 || !broken.Live) {
					t.Errorf("got %+v, %v, want %v", broken, err, c.want)
				}
				if c.token == 0 {
					return
				}
				if head := headOf(t, inner); head.Token != c.token || head.Holder.Owner != c.holder {
					t.Errorf("the head is %+v", head)
				}
				if journal := journalOf(t, inner); len(journal) != c.events {
					t.Errorf("the journal is %+v", journal)
				}
				if c.holder != "ops@example" && c.holder != "" {
					return
				}
				// Whatever was lost, a successor is granted the lease, and has to recover.
				time.Sleep(runstore.MinTTL)
				granted, err := inner.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute}})
				if err != nil || granted.Former != runstore.EndExpired && granted.Former != runstore.EndRevoked {
					t.Errorf("the successor: got %+v, %v", granted, err)
				}
			})
		})
	}
}

// A break whose context ends right after its grant leaves the lease free all the same.
func TestBreakIsCancelled(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil).Open()
	old := heldRun(t, inner)
	ctx, cancel := context.WithCancel(t.Context())
	s := &hooked{RunStore: inner, acquire: func(_ int, next func() (runstore.Granted, error)) (runstore.Granted, error) {
		defer cancel()
		return next()
	}}
	if broken, err := lease.Break(ctx, s, breaking(old.Token)); err != nil || broken.Token != 2 {
		t.Errorf("got %+v, %v; want token 2", broken, err)
	}
	if head := headOf(t, inner); head.Token != 2 || head.Holder != (runstore.Holder{}) {
		t.Errorf("the head is %+v, want a free lease", head)
	}
}

// A break of whatever grant is current follows a token that moves, and ends the grant that it has
// read.
func TestBreakWhoever(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil).Open()
	heldRun(t, inner)
	preempt := func() {
		_, err := inner.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute}, Preempt: "test",
		})
		if err != nil {
			t.Error(err)
		}
	}
	s := &hooked{RunStore: inner, got: func(n int) {
		if n == 1 {
			preempt()
		}
	}}
	req := breaking(0)
	req.Whoever = true
	broken, err := lease.Break(t.Context(), s, req)
	if err != nil || broken.Former.Owner != "agent-b" || broken.Former.Token != 2 || broken.Token != 3 {
		t.Errorf("got %+v, %v", broken, err)
	}
	heldAgain := func() { // the lease changes hands at every reading
		s.gets = 0
		preempt()
		s.got = func(int) { preempt() }
	}
	heldAgain()
	if _, err := lease.Break(t.Context(), s, req); !errors.Is(err, runstore.ErrConflict) || s.gets != 10 {
		t.Errorf("got %v after %d readings, want a conflict after 10", err, s.gets)
	}
}

func TestBreakQuiet(t *testing.T) {
	t.Parallel()
	s := memory.New(nil).Open()
	old := heldRun(t, s)
	req := breaking(old.Token)
	req.Quiet = true
	broken, err := lease.Break(t.Context(), s, req)
	if err != nil || broken.Seq != 0 || broken.Token != 2 {
		t.Fatalf("got %+v, %v", broken, err)
	}
	records, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{lease.BreakKey}})
	if err != nil || len(records) != 1 || records[0].Updated.Token != 2 || !records[0].Updated.Time.Equal(broken.Time) {
		t.Fatalf("got the records %+v, %v", records, err)
	}
	if entry, ok := lease.ParseBreak(records[0].Value); !ok || entry.Broken != 1 || entry.Operator != "ops@example" {
		t.Errorf("got %+v", entry)
	}
	if journal := journalOf(t, s); len(journal) != 1 {
		t.Errorf("the journal is %+v", journal)
	}
}

// An expired grant is still current, so it is broken like a live one.
func TestBreakExpired(t *testing.T) {
	t.Parallel()
	engine := memory.New(nil)
	s := engine.Open()
	old := heldRun(t, s)
	engine.Advance(2 * time.Minute)
	if broken, err := lease.Break(t.Context(), s, breaking(old.Token)); err != nil || broken.Live || broken.Token != 2 {
		t.Errorf("got %+v, %v", broken, err)
	}
	late := runstore.NewBatch("run", old.Fence())
	late.Append("late", nil)
	if _, err := s.Commit(t.Context(), late); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a late write: got %v, want ErrFenced", err)
	}
}

func TestBreakRefused(t *testing.T) {
	t.Parallel()
	s := memory.New(nil).Open()
	old := heldRun(t, s)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "unleased"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "released", Lease: &runstore.LeaseSpec{Owner: "a", TTL: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	release := runstore.NewBatch("released", runstore.AtToken(1))
	release.Release = true
	if _, err := s.Commit(t.Context(), release); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*lease.BreakRequest)
		kind   error
		says   string
	}{
		"no token":           {func(r *lease.BreakRequest) { r.Token = 0 }, runstore.ErrInvalid, "token: is missing"},
		"a negative token":   {func(r *lease.BreakRequest) { r.Token = -1 }, runstore.ErrInvalid, "token: -1"},
		"token and whoever":  {func(r *lease.BreakRequest) { r.Whoever = true }, runstore.ErrInvalid, "token: is given"},
		"no operator":        {func(r *lease.BreakRequest) { r.Operator = "" }, runstore.ErrInvalid, "operator: is empty"},
		"no reason":          {func(r *lease.BreakRequest) { r.Reason = "" }, runstore.ErrInvalid, "reason: is empty"},
		"a long reason":      {func(r *lease.BreakRequest) { r.Reason = strings.Repeat("r", 257) }, runstore.ErrTooLarge, "reason: 257 bytes, the limit is 256"},
		"bytes":              {func(r *lease.BreakRequest) { r.Operator = "\xff" }, runstore.ErrInvalid, "operator: is not valid UTF-8"},
		"no run":             {func(r *lease.BreakRequest) { r.Run = "" }, runstore.ErrInvalid, "run id"},
		"another run":        {func(r *lease.BreakRequest) { r.Run = "other" }, runstore.ErrNotFound, `"other"`},
		"a higher token":     {func(r *lease.BreakRequest) { r.Token = 7 }, runstore.ErrStoreBehind, "7 was presented, the highest known is 1"},
		"a run never leased": {func(r *lease.BreakRequest) { r.Run, r.Token, r.Whoever = "unleased", 0, true }, runstore.ErrConflict, "the lease is free, and was never granted"},
		"a released lease":   {func(r *lease.BreakRequest) { r.Run = "released" }, runstore.ErrConflict, "the lease is free, the last token is 1"},
	} {
		req := breaking(old.Token)
		c.change(&req)
		_, err := lease.Break(t.Context(), s, req)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %v that says %q", name, err, c.kind, c.says)
		}
		if free := strings.Contains(c.says, "is free"); errors.Is(err, lease.ErrFree) != free || free && runstore.OutcomeOf(err) != runstore.NotApplied {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if head := headOf(t, s); head.Token != 1 || head.LastSeq != 1 {
		t.Errorf("a refused break changed the run: %+v", head)
	}
}

// A keeper ends the work of a holder whose lease was broken.
func TestBreakEndsWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(nil).Open()
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
			t.Fatal(err)
		}
		keeper, err := lease.New(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = keeper.Do(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "agent-a"}}, func(ctx context.Context, held *lease.Held) error {
			if _, err := lease.Break(ctx, s, breaking(held.Fence().Token())); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, lease.ErrLost) || !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("got %v, want a lease that was lost by a fence", err)
		}
	})
}
