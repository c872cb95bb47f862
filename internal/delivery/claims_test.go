package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// hooked is a store whose commits of claims a test decides; nil commits.
type hooked struct {
	runstore.RunStore
	commit func(run runstore.RunID, keys []string) error
}

func (s *hooked) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	if s.commit != nil {
		var keys []string
		for _, w := range b.Records {
			keys = append(keys, string(w.Key))
		}
		if err := s.commit(b.Run(), keys); err != nil {
			return runstore.Committed{}, err
		}
	}
	return s.RunStore.Commit(ctx, b)
}

// queue returns claims of an index with n entries in each of two runs, a and b. An entry and its
// claim are the key of the entry's record; the record's value is the number of attempts.
func queue(t *testing.T, n, most int) (*delivery.Claims[string, string], *hooked) {
	t.Helper()
	s := &hooked{RunStore: memory.New(nil).Open()}
	for _, run := range []runstore.RunID{"a", "b"} {
		spec := runstore.RunSpec{ID: run}
		for i := range n {
			spec.Writes.Put(runstore.RecordKey(fmt.Sprint(run, i)), nil, runstore.Place{Index: "due", At: runstore.After(0)})
		}
		if _, err := s.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	return &delivery.Claims[string, string]{
		Store: s, Query: runstore.IndexQuery{Index: "due"}, Max: most, Ends: runstore.After(time.Minute),
		Turns: &optimistic.Turns[runstore.IndexName]{}, Log: slog.New(slog.DiscardHandler), Rules: delivery.Rules{CountClaims: true},
		Decode: func(e runstore.IndexEntry) (string, delivery.State, error) {
			return string(e.Record.Key), delivery.State{Phase: delivery.Waiting, Due: runstore.At(e.At), Attempts: len(e.Record.Value)}, nil
		},
		Write: func(w *runstore.Writes, key string, next delivery.State) {
			if next.Phase == delivery.Dead {
				w.Delete(runstore.RecordKey(key))
				return
			}
			w.Put(runstore.RecordKey(key), make([]byte, next.Attempts), runstore.Place{Index: "due", At: next.Ends})
		},
		Claimed: func(key string, _ delivery.State, _ runstore.Version, _ time.Time) string { return key },
	}, s
}

func wantClaims(t *testing.T, c *delivery.Claims[string, string], want ...string) {
	t.Helper()
	claimed, err := c.Claim(t.Context())
	if slices.Sort(claimed); err != nil || !slices.Equal(claimed, want) {
		t.Errorf("claimed %v, %v; want %v", claimed, err, want)
	}
}

// Some commits fail: the claims of the others are returned, and a fault is logged. A lost race is
// none. If all fail, the fault is returned.
func TestClaimsOfWhichSomeFail(t *testing.T) {
	for _, fault := range []error{runstore.ErrConflict, runstore.ErrNotFound, runstore.ErrUnavailable, runstore.ErrUnknownOutcome} {
		lost := fault == runstore.ErrConflict || fault == runstore.ErrNotFound
		c, s := queue(t, 2, 10)
		var log strings.Builder
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		s.commit = func(run runstore.RunID, _ []string) error {
			if run == "a" {
				return fault
			}
			return nil
		}
		wantClaims(t, c, "b0", "b1")
		if (log.Len() == 0) != lost {
			t.Errorf("%v: logged %q", fault, log.String())
		}
		if claimed, err := c.Claim(t.Context()); len(claimed) > 0 || lost != (err == nil) || !lost && !errors.Is(err, fault) {
			t.Errorf("%v: claimed %v, %v", fault, claimed, err)
		}
		s.commit = nil
		wantClaims(t, c, "a0", "a1")
	}
}

// A fault is reported rather than a lost race.
func TestFaultAndLostRace(t *testing.T) {
	for _, lost := range []error{runstore.ErrConflict, runstore.ErrNotFound} {
		c, s := queue(t, 1, 10)
		s.commit = func(run runstore.RunID, _ []string) error {
			return map[runstore.RunID]error{"a": lost, "b": runstore.ErrUnavailable}[run]
		}
		if claimed, err := c.Claim(t.Context()); len(claimed) > 0 || !errors.Is(err, runstore.ErrUnavailable) {
			t.Errorf("claimed %v, %v; want %v", claimed, err, runstore.ErrUnavailable)
		}
	}
}

// An unknown outcome is reported rather than a commit that was surely not applied, whichever comes
// first: after the latter alone a caller may ask again as if nothing had been claimed.
func TestUnknownOutcomeAndFault(t *testing.T) {
	for _, first := range []runstore.RunID{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			c, s := queue(t, 1, 10)
			s.commit = func(run runstore.RunID, _ []string) error {
				if run != first {
					time.Sleep(time.Hour) // until the other has failed, with all its repeats
				}
				return map[runstore.RunID]error{"a": runstore.ErrUnavailable, "b": runstore.ErrUnknownOutcome}[run]
			}
			if claimed, err := c.Claim(t.Context()); len(claimed) > 0 || !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Errorf("%s fails first: claimed %v, %v; want %v", first, claimed, err, runstore.ErrUnknownOutcome)
			}
		})
	}
}

// A caller that loses every race gives up without an error, and meanwhile it chooses among more
// entries than the first ones.
func TestClaimsThatAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := queue(t, 4, 2)
		var mu sync.Mutex
		calls, tried := 0, map[string]bool{}
		s.commit = func(_ runstore.RunID, keys []string) error {
			mu.Lock()
			defer mu.Unlock()
			calls++
			if len(keys) > 2 {
				t.Errorf("%d entries in a commit, want at most 2", len(keys))
			}
			for _, key := range keys {
				tried[key] = true
			}
			return runstore.ErrConflict
		}
		wantClaims(t, c)
		if calls != optimistic.MaxAttempts || len(tried) < 4 { // the draws are random: once in 10^9 runs all are of the first entries
			t.Errorf("%d commits for %v", calls, tried)
		}
	})
}

// Each entry of a commit is guarded: if one was changed since it was read, none is claimed.
func TestEveryEntryIsGuarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, changed := range []runstore.RecordKey{"a0", "a1", "a2"} {
			c, s := queue(t, 3, 3)
			once := true
			s.commit = func(run runstore.RunID, keys []string) error {
				if once && run == "a" && slices.Contains(keys, string(changed)) {
					once = false
					b := runstore.NewBatch(run, runstore.Unguarded("test"))
					b.Delete(changed)
					_, err := s.RunStore.Commit(t.Context(), b)
					return err
				}
				return nil
			}
			var all []string
			for {
				claimed, err := c.Claim(t.Context())
				if all = append(all, claimed...); err != nil || len(claimed) == 0 {
					break
				}
			}
			if len(all) != 5 || slices.Contains(all, string(changed)) {
				t.Errorf("claimed %v, and %s was deleted meanwhile", all, changed)
			}
		}
	})
}

// Claims are limited by their number and their size, and entries that cannot be read or claimed are
// passed over, on further pages, too.
func TestClaimsThatFit(t *testing.T) {
	c, _ := queue(t, 10, 3)
	decode := c.Decode
	c.Decode = func(e runstore.IndexEntry) (string, delivery.State, error) {
		key, s, err := decode(e)
		switch {
		case e.Run == "a":
			s.Phase = delivery.Done
		case key < "b5":
			err = errors.New("damaged")
		}
		return key, s, err
	}
	wantClaims(t, c, "b5", "b6", "b7")
	wantClaims(t, c, "b8", "b9")
	for size, want := range map[int]int{1: 3, 40: 2, 100: 1, 1000: 1} {
		c, _ := queue(t, 3, 3)
		c.Size, c.MaxSize = func(string) int { return size }, 100
		if claimed, err := c.Claim(t.Context()); len(claimed) != want || err != nil {
			t.Errorf("size %d: claimed %v, %v; want %d", size, claimed, err, want)
		}
	}
}

// Entries that have had their last attempt become dead letters, and further ones are read.
func TestClaimsBehindLastAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := queue(t, 3, 2)
		c.Rules.MaxAttempts = 1
		wantClaims(t, c, "a0", "a1")
		wantClaims(t, c, "a2", "b0")
		time.Sleep(time.Minute)
		spec := runstore.RunSpec{ID: "c"}
		spec.Writes.Put("c0", nil, runstore.Place{Index: "due", At: runstore.After(0)})
		if _, err := s.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		wantClaims(t, c, "b1", "b2")
		wantClaims(t, c, "c0")
		wantClaims(t, c)
	})
}

// By a bound of the query an entry's own state decides. Without one the store clock has decided.
func TestWhoseClockDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := queue(t, 1, 2)
		decode := c.Decode
		c.Decode = func(e runstore.IndexEntry) (string, delivery.State, error) {
			key, s, err := decode(e)
			s.Due = runstore.At(e.At.Add(time.Hour))
			return key, s, err
		}
		c.Query.Until = time.Now().Add(time.Minute)
		wantClaims(t, c)
		c.Query.Until = time.Time{}
		wantClaims(t, c, "a0", "b0")
	})
}

// Callers of one turn wait for each other, until their context ends.
func TestClaimsTakeTurns(t *testing.T) {
	c, _ := queue(t, 1, 1)
	end, err := c.Turns.Take(t.Context(), c.Query.Index, "a test")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if claimed, err := c.Claim(ctx); len(claimed) > 0 || !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("claimed %v, %v", claimed, err)
	}
	end()
	wantClaims(t, c, "a0")
}
