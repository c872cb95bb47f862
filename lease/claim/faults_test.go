package claim_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease/claim"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// scripted is a store whose next commits fail as a test wants, and that counts calls.
type scripted struct {
	runstore.RunStore

	mu sync.Mutex
	// requests and replies are how many of the next commits lose their request or their reply.
	requests, replies int
	// before, if set, runs before the next commit.
	before func()
	calls  []string
}

var errCut = errors.New("cut by the test")

func (s *scripted) count(op string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, op)
}

// take returns the calls since the last take.
func (s *scripted) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := strings.Join(s.calls, " ")
	s.calls = nil
	return calls
}

func (s *scripted) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	s.count("commit")
	unknown := &runstore.OpError{Op: "commit", Err: runstore.ErrUnknownOutcome, Cause: errCut}
	s.mu.Lock()
	before := s.before
	s.before = nil
	request, reply := s.requests > 0, s.replies > 0
	s.requests, s.replies = max(s.requests-1, 0), max(s.replies-1, 0)
	s.mu.Unlock()
	if before != nil {
		before()
	}
	if request {
		return runstore.Committed{}, unknown
	}
	done, err := s.RunStore.Commit(ctx, b)
	if reply {
		return runstore.Committed{}, unknown
	}
	return done, err
}

func (s *scripted) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	s.count("create")
	return s.RunStore.CreateRun(ctx, spec)
}

func (s *scripted) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	s.count("read")
	return s.RunStore.ReadRecords(ctx, id, q)
}

func (s *scripted) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	s.count("scan")
	return s.RunStore.ScanIndex(ctx, q)
}

// all is more commits than a call repeats.
const all = 100

// A lost request or reply of any call is repeated, and each call is applied once.
func TestLostRepliesAreResolved(t *testing.T) {
	for _, lose := range []func(s *scripted){func(s *scripted) { s.requests = 2 }, func(s *scripted) { s.replies = 2 }} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{RunStore: memory.New(nil).Open()}
			q := open(t, s, claim.QueueOptions{Shards: 1})
			lose(s)
			put(t, q, "m", true)
			next := func() claim.Receipt {
				t.Helper()
				lose(s)
				return claimOne(t, q, "a", time.Minute)
			}
			r := next()
			lose(s)
			must(t, q.Release(t.Context(), r))
			r = next()
			lose(s)
			must(t, q.Nack(t.Context(), r, 0, "x"))
			r = next()
			if r.Attempts != 2 {
				t.Errorf("attempt %d, want 2", r.Attempts)
			}
			lose(s)
			must(t, q.Bury(t.Context(), r, "x"))
			lose(s)
			must(t, q.Redrive(t.Context(), "m"))
			r = next()
			lose(s)
			r, err := q.Extend(t.Context(), r, time.Minute)
			must(t, err)
			lose(s)
			must(t, q.Ack(t.Context(), r))
			wantNone(t, q)

			c := capacity(t, s, 10)
			lose(s)
			a := hold(t, c, "", 6, time.Minute)
			lose(s)
			must(t, c.Commit(t.Context(), a))
			lose(s)
			must(t, c.Cancel(t.Context(), hold(t, c, "", 4, time.Minute)))
			wantUsage(t, c, claim.Usage{Capacity: 10, Committed: 6})
			lose(s)
			must(t, c.Return(t.Context(), a))
			lose(s)
			must(t, c.Set(t.Context(), 5))
			wantUsage(t, c, claim.Usage{Capacity: 5})
		})
	}
}

func wantUnknown(t *testing.T, err error) {
	t.Helper()
	if runstore.KindOf(err) != runstore.ErrUnknownOutcome {
		t.Fatalf("got %v, want an unknown outcome", err)
	}
}

// The end of a claim whose outcome stayed unknown is repeated by the caller and returns the first
// result: also after the message was claimed again, and an ack also once the store has forgotten the
// batch. Every other end of that claim is refused.
func TestRepeatedEnds(t *testing.T) {
	ends := map[string]func(q *claim.Queue, r claim.Receipt) error{
		"ack":     func(q *claim.Queue, r claim.Receipt) error { return q.Ack(context.Background(), r) },
		"nack":    func(q *claim.Queue, r claim.Receipt) error { return q.Nack(context.Background(), r, 0, "x") },
		"bury":    func(q *claim.Queue, r claim.Receipt) error { return q.Bury(context.Background(), r, "x") },
		"release": func(q *claim.Queue, r claim.Receipt) error { return q.Release(context.Background(), r) },
	}
	for op, end := range ends {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{RunStore: memory.New(nil).Open()}
			q := open(t, s, claim.QueueOptions{Shards: 1})
			put(t, q, "m", true)
			r := claimOne(t, q, "a", time.Minute)
			s.replies = all
			wantUnknown(t, end(q, r))
			s.replies = 0
			must(t, end(q, r))
			if op == "nack" || op == "release" {
				claimOne(t, q, "b", time.Minute)
				must(t, end(q, r))
			}
			for other, end := range ends {
				if other != op {
					if err := end(q, r); !errors.Is(err, claim.ErrLost) {
						t.Errorf("%s after %s: %v, want that the claim is lost", other, op, err)
					}
				}
			}
			wantNone(t, q)
		})
	}
}

// forgetful is a store that forgets all batches.
type forgetful struct{ runstore.RunStore }

func (s forgetful) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	b.ID = ""
	return s.RunStore.Commit(ctx, b)
}

// An ack is repeated with success while the message's id is remembered, whatever the store
// remembers.
func TestForgottenAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t, forgetful{memory.New(nil).Open()}, claim.QueueOptions{MaxAttempts: 1})
		put(t, q, "m", true)
		r := claimOne(t, q, "a", time.Minute)
		must(t, q.Ack(t.Context(), r))
		must(t, q.Ack(t.Context(), r))
		wantLost(t, q.Nack(t.Context(), r, 0, ""), "acknowledged")
		wantLost(t, q.Bury(t.Context(), r, ""), "acknowledged")
		time.Sleep(claim.DefaultRemember)
		put(t, q, "m", true)
		wantLost(t, q.Ack(t.Context(), r), "given back")
		must(t, q.Bury(t.Context(), claimOne(t, q, "b", time.Minute), ""))
		wantLost(t, q.Ack(t.Context(), r), "a dead letter")
	})
}

// After an extension of unknown outcome the receipt is valid, whether or not it was applied.
func TestUnknownExtension(t *testing.T) {
	for _, lose := range []func(s *scripted){func(s *scripted) { s.requests = all }, func(s *scripted) { s.replies = all }} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{RunStore: memory.New(nil).Open()}
			q := open(t, s, claim.QueueOptions{})
			put(t, q, "m", true)
			r := claimOne(t, q, "a", time.Minute)
			lose(s)
			_, err := q.Extend(t.Context(), r, time.Minute)
			wantUnknown(t, err)
			s.requests, s.replies = 0, 0
			_, err = q.Extend(t.Context(), r, time.Minute)
			must(t, err)
			must(t, q.Nack(t.Context(), r, 0, ""))
			r = claimOne(t, q, "b", time.Minute)
			lose(s)
			_, err = q.Extend(t.Context(), r, time.Minute)
			wantUnknown(t, err)
			s.requests, s.replies = 0, 0
			must(t, q.Ack(t.Context(), r))
		})
	}
}

// A claim whose reply is lost for good counts as an attempt, and its message is claimed again after
// the expiry.
func TestUnknownClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{RunStore: memory.New(nil).Open()}
		q := open(t, s, claim.QueueOptions{})
		put(t, q, "m", true)
		s.replies = all
		_, err := q.Claim(t.Context(), "a", 1, time.Minute)
		wantUnknown(t, err)
		s.replies = 0
		wantNone(t, q)
		time.Sleep(time.Minute)
		if r := claimOne(t, q, "b", time.Minute); r.Attempts != 2 {
			t.Errorf("attempt %d, want 2", r.Attempts)
		}
	})
}

// A hold of unknown outcome is found by its id, and leaves nothing if nobody looks.
func TestUnknownHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{RunStore: memory.New(nil).Open()}
		c := capacity(t, s, 10)
		s.replies = all
		r, err := c.Hold(t.Context(), claim.HoldRequest{Owner: "a", Amount: 7, TTL: time.Minute})
		wantUnknown(t, err)
		s.replies = 0
		if again := hold(t, c, r.ID, 7, time.Minute); again.ID != r.ID || again.Amount != 7 {
			t.Errorf("repeated hold %+v, want %q", again, r.ID)
		}
		for _, other := range []claim.HoldRequest{{Owner: "b", Amount: 7}, {Owner: "a", Amount: 8}} {
			other.ID, other.TTL = r.ID, time.Minute
			if _, err := c.Hold(t.Context(), other); runstore.KindOf(err) != runstore.ErrInvalid {
				t.Errorf("hold of %d by %q under the id of a hold of 7 by a: %v, want ErrInvalid", other.Amount, other.Owner, err)
			}
		}
		wantUsage(t, c, claim.Usage{Capacity: 10, Held: 7})
		time.Sleep(time.Minute)
		hold(t, c, "", 10, time.Minute)
	})
}

// A refusal is never caused by an expired hold that ended between two reads.
func TestHoldWhileExpiredOneEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil).Open()
		c := capacity(t, inner, 10)
		r := hold(t, c, "a", 10, time.Minute)
		time.Sleep(time.Minute)
		s := &ahead{RunStore: inner, scan: func() { must(t, c.Cancel(t.Context(), r)) }}
		other, err := claim.NewCapacity(s, "seats")
		must(t, err)
		hold(t, other, "b", 10, time.Minute)
	})
}

// A hold of the same id that another caller made, and that expired, between two reads is no obstacle.
func TestHoldWhileSameIDExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil).Open()
		c := capacity(t, inner, 10)
		a := hold(t, c, "a", 8, time.Minute)
		time.Sleep(time.Minute)
		s := &ahead{RunStore: inner, scan: func() {
			must(t, c.Cancel(t.Context(), a))
			hold(t, c, "b", 9, time.Minute)
			time.Sleep(time.Minute)
		}}
		other, err := claim.NewCapacity(s, "seats")
		must(t, err)
		if r := hold(t, other, "b", 9, time.Hour); r.Expires.After(time.Now()) {
			t.Errorf("%+v, want the reservation that exists", r)
		}
	})
}

// A commit that was refused because its shard did not exist may still arrive once it does. A put
// that fails afterwards is of unknown outcome.
func TestLatePut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil).Open()
		q := open(t, &unavailableAfter{RunStore: inner, n: 1}, claim.QueueOptions{Shards: 64})
		for i := range 3 { // one of the ids is not of the shard that exists
			if _, err := q.Put(t.Context(), fmt.Sprint(i), nil, nil); runstore.KindOf(err) == runstore.ErrUnknownOutcome {
				return
			}
			q = open(t, &unavailableAfter{RunStore: inner, n: 1}, claim.QueueOptions{})
		}
		t.Error("no put was of unknown outcome")
	})
}

// unavailableAfter is a store that answers n commits.
type unavailableAfter struct {
	runstore.RunStore
	n int
}

func (s *unavailableAfter) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.n--; s.n < 0 {
		return runstore.Committed{}, &runstore.OpError{Op: "commit", Err: runstore.ErrUnavailable, Cause: errCut}
	}
	return s.RunStore.Commit(ctx, b)
}

// ahead is a store that calls scan before its first scan.
type ahead struct {
	runstore.RunStore
	scan func()
}

func (s *ahead) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	if scan := s.scan; scan != nil {
		s.scan = nil
		scan()
	}
	return s.RunStore.ScanIndex(ctx, q)
}

// The number of requests that each call makes.
func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{RunStore: memory.New(nil).Open()}
		q := open(t, s, claim.QueueOptions{Shards: 1, MaxAttempts: 9})
		want := func(op, calls string) {
			t.Helper()
			if got := s.take(); got != calls {
				t.Errorf("%s made the calls %q, want %q", op, got, calls)
			}
		}
		want("OpenQueue", "create")
		put(t, q, "m", true)
		want("Put", "commit")
		put(t, q, "m", false)
		want("Put, repeated", "commit read")
		r := claimOne(t, q, "a", time.Minute)
		want("Claim", "scan commit")
		wantNone(t, q)
		want("Claim of nothing", "scan")
		_, err := q.Extend(t.Context(), r, time.Minute)
		must(t, err)
		want("Extend", "commit")
		must(t, q.Nack(t.Context(), r, 0, ""))
		want("Nack with the receipt before the extension", "commit read commit")
		r = claimOne(t, q, "a", time.Minute)
		s.take()
		must(t, q.Release(t.Context(), r))
		want("Release", "commit")
		r = claimOne(t, q, "a", time.Minute)
		s.take()
		must(t, q.Bury(t.Context(), r, ""))
		want("Bury", "commit")
		must(t, q.Redrive(t.Context(), "m"))
		want("Redrive", "read commit")

		c := capacity(t, s, 10)
		want("Set, new", "create")
		must(t, c.Set(t.Context(), 10))
		want("Set", "create read commit")
		h := hold(t, c, "", 10, time.Minute)
		want("Hold", "read commit")
		wantFull(t, holdErr(t, c, 1), 0, 10)
		want("Hold of too much", "read scan read")
		must(t, c.Commit(t.Context(), h))
		want("Commit", "read commit")
		must(t, c.Commit(t.Context(), h))
		want("Commit, repeated", "read")
	})
}

// Everything ends soon after its context, and a call that ends while it waits is not applied.
func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{RunStore: memory.New(nil).Open()}
		q := open(t, s, claim.QueueOptions{})
		c := capacity(t, s, 10)
		put(t, q, "m", true)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("the test ends")
		cancel(cause)
		_, err := q.Claim(ctx, "a", 1, time.Minute)
		_, err2 := c.Hold(ctx, claim.HoldRequest{Owner: "a", Amount: 10, TTL: time.Minute})
		_, err3 := q.Put(ctx, "n", nil, nil)
		for _, err := range []error{err, err2, err3} {
			if runstore.OutcomeOf(err) != runstore.NotApplied {
				t.Errorf("got %v, want that nothing is applied", err)
			}
		}
		// A claim that waits for another one of the same handle.
		s.before = func() {
			ctx, cancel := context.WithCancelCause(t.Context())
			go cancel(cause)
			if _, err := q.Claim(ctx, "b", 1, time.Minute); runstore.KindOf(err) != runstore.ErrUnavailable || !errors.Is(err, cause) {
				t.Errorf("got %v, want the cause", err)
			}
		}
		claimOne(t, q, "a", time.Minute)
		hold(t, c, "", 10, time.Minute)
	})
}

// A capacity that was not set is an absent run.
func TestCapacityNotSet(t *testing.T) {
	c, err := claim.NewCapacity(memory.New(nil).Open(), "seats")
	must(t, err)
	_, usageErr := c.Usage(t.Context())
	for _, err := range []error{holdErr(t, c, 1), usageErr} {
		if runstore.KindOf(err) != runstore.ErrNotFound {
			t.Errorf("got %v, want ErrNotFound", err)
		}
	}
}

// Records that cannot be read hide neither the others nor their damage.
func TestDamagedRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New(nil).Open()
		q := open(t, s, claim.QueueOptions{Shards: 1})
		c := capacity(t, s, 10)
		for _, w := range []struct {
			run    runstore.RunID
			key    runstore.RecordKey
			places []runstore.Place
		}{
			{"claim/queue/mail/0", "msg/a", []runstore.Place{{Index: "claim.due/mail", At: runstore.After(0)}}},
			{"claim/queue/mail/0", "other", []runstore.Place{{Index: "claim.due/mail", At: runstore.After(0)}}},
			{"claim/queue/mail/0", "dead/a", nil},
			{"claim/capacity/seats", "hold/a", nil},
		} {
			b := runstore.NewBatch(w.run, runstore.Unguarded("damage"))
			b.Put(w.key, []byte(`{"v":2}`), w.places...)
			_, err := s.Commit(t.Context(), b)
			must(t, err)
		}
		put(t, q, "m", true)
		must(t, q.Bury(t.Context(), claimOne(t, q, "a", time.Minute), "x"))
		if got := letters(t, q); len(got) != 1 {
			t.Errorf("dead letters %q, want one", got)
		}
		for name, err := range map[string]error{"discard": q.Discard(t.Context(), "a"), "get": second(c.Get(t.Context(), "a"))} {
			if runstore.KindOf(err) != runstore.ErrCorrupt || !strings.Contains(fmt.Sprint(err), "format 2") {
				t.Errorf("%s: %v, want ErrCorrupt", name, err)
			}
		}
	})
}

func second[R any](_ R, err error) error { return err }
