package optimistic_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// queue returns claims of an index with n entries in each of two runs, a and b.
func queue(t *testing.T, n, most int) *optimistic.Claims[string, string] {
	t.Helper()
	s := memory.New(nil).Open()
	for _, run := range []runstore.RunID{"a", "b"} {
		spec := runstore.RunSpec{ID: run}
		for i := range n {
			key := fmt.Sprint(run, i)
			spec.Writes.Put(runstore.RecordKey(key), nil, runstore.Place{Index: "due", At: runstore.After(0)})
		}
		if _, err := s.CreateRun(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	return &optimistic.Claims[string, string]{
		Store: s, Query: runstore.IndexQuery{Index: "due"}, Max: most,
		Decode: func(e runstore.IndexEntry) (string, bool) { return string(e.Record.Key), true },
		Commit: func(_ context.Context, _ runstore.RunID, entries []string) ([]string, error) { return entries, nil },
		Lost:   func(err error) bool { return errors.Is(err, runstore.ErrConflict) },
	}
}

// Some commits fail: a lost race is no error, and the error of a fault is returned with the claims.
func TestClaimsOfWhichSomeFail(t *testing.T) {
	for _, fault := range []error{runstore.ErrConflict, runstore.ErrUnavailable, runstore.ErrUnknownOutcome} {
		c := queue(t, 2, 10)
		c.Commit = func(_ context.Context, run runstore.RunID, entries []string) ([]string, error) {
			if run == "a" {
				return nil, fault
			}
			return entries, nil
		}
		want := fault
		if fault == runstore.ErrConflict {
			want = nil
		}
		claimed, err := c.Claim(t.Context())
		if slices.Sort(claimed); !slices.Equal(claimed, []string{"b0", "b1"}) || err != want {
			t.Errorf("%v: claimed %v, %v", fault, claimed, err)
		}
	}
}

// A caller that loses every race gives up without an error, and meanwhile it chooses among more
// entries than the first ones.
func TestClaimsThatAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := queue(t, 4, 2)
		var mu sync.Mutex
		calls, tried := 0, map[string]bool{}
		c.Commit = func(_ context.Context, _ runstore.RunID, entries []string) ([]string, error) {
			mu.Lock()
			defer mu.Unlock()
			calls++
			if len(entries) > 2 {
				t.Errorf("%d entries in a commit, want at most 2", len(entries))
			}
			for _, e := range entries {
				tried[e] = true
			}
			return nil, runstore.ErrConflict
		}
		claimed, err := c.Claim(t.Context())
		if len(claimed) > 0 || err != nil || calls != optimistic.MaxAttempts || len(tried) < 6 {
			t.Errorf("claimed %v, %v after %d commits for %v", claimed, err, calls, tried)
		}
	})
}

// Claims are limited by their number and their size, and entries that cannot be claimed are passed
// over, on further pages, too.
func TestClaimsThatFit(t *testing.T) {
	c := queue(t, 10, 3)
	c.Decode = func(e runstore.IndexEntry) (string, bool) { return string(e.Record.Key), e.Run == "b" }
	claimed, err := c.Claim(t.Context())
	if slices.Sort(claimed); err != nil || len(claimed) == 0 || len(claimed) > 3 || claimed[0] < "b" {
		t.Errorf("claimed %v, %v; want up to 3 of run b", claimed, err)
	}
	for size, want := range map[int]int{1: 3, 40: 2, 100: 1, 1000: 1} {
		c := queue(t, 3, 3)
		c.Size, c.MaxSize = func(string) int { return size }, 100
		if claimed, err := c.Claim(t.Context()); len(claimed) != want || err != nil {
			t.Errorf("size %d: claimed %v, %v; want %d", size, claimed, err, want)
		}
	}
}

// Where the commits decide against claims, and their entries leave the queue, further ones are
// read.
func TestClaimsAfterOthersThatEnd(t *testing.T) {
	c := queue(t, 3, 2)
	c.Commit = func(ctx context.Context, run runstore.RunID, entries []string) ([]string, error) {
		b := runstore.NewBatch(run, runstore.Unguarded("test"))
		var kept []string
		for _, e := range entries {
			b.Delete(runstore.RecordKey(e))
			if e == "b2" {
				kept = append(kept, e)
			}
		}
		_, err := c.Store.Commit(ctx, b)
		return kept, err
	}
	if claimed, err := c.Claim(t.Context()); !slices.Equal(claimed, []string{"b2"}) || err != nil {
		t.Errorf("claimed %v, %v; want b2", claimed, err)
	}
	if claimed, err := c.Claim(t.Context()); len(claimed) > 0 || err != nil {
		t.Errorf("claimed %v, %v from an empty queue", claimed, err)
	}
}
