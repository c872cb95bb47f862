package fence_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

func newMemory(t testing.TB, opts *fence.MemoryOptions) *fence.Memory {
	t.Helper()
	m, err := fence.NewMemory(opts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// wantStale fails the test unless err refuses a token in favour of another.
func wantStale(t testing.TB, err error, resource string, presented, current runstore.Token) {
	t.Helper()
	var stale *fence.StaleError
	var fenced *runstore.FencedError
	if !errors.Is(err, runstore.ErrFenced) || !errors.As(err, &stale) || !errors.As(err, &fenced) {
		t.Fatalf("got %v, want a StaleError and a FencedError", err)
	}
	if want := (fence.StaleError{Resource: resource, Presented: presented, Current: current}); *stale != want {
		t.Errorf("got %+v, want %+v", *stale, want)
	}
	if fenced.Presented != presented || fenced.Current != current || runstore.KindOf(err) != runstore.ErrFenced {
		t.Errorf("got %+v of kind %v, want %v and %v", fenced, runstore.KindOf(err), presented, current)
	}
}

// checkOrder checks what holds for every checker, across epochs.
func checkOrder(t *testing.T, c fence.Checker) {
	t.Helper()
	first := runstore.Token(0).Next(0)
	last := runstore.Epoch(1).Floor() - 1 // the last token of epoch 0
	raised := first.Next(1)               // the first token of epoch 1: its counter is 1 again
	for _, step := range []struct {
		resource         string
		token, staleFrom runstore.Token // staleFrom is 0 where the token is accepted
	}{
		{"a", 7, 0},
		{"a", 7, 0}, // the same holder again
		{"a", 6, 7},
		{"a", first, 7},
		{"b", first, 0}, // the tokens of another resource do not count
		{"a", 8, 0},
		{"a", 7, 8},
		{"a", last, 0},
		{"a", raised, 0},
		{"a", last, raised},
		{"a", first, raised},
		{"a", fence.MaxToken, 0},
		{"a", raised, fence.MaxToken},
		{"b", first, 0},
	} {
		err := c.Check(t.Context(), step.resource, step.token)
		if step.staleFrom != 0 {
			wantStale(t, err, step.resource, step.token, step.staleFrom)
		} else if err != nil {
			t.Errorf("token %v of %s: %v", step.token, step.resource, err)
		}
	}
	if got := runstore.MaxEpoch.Floor(); got.Epoch() != fence.MaxToken.Epoch() || (fence.MaxToken+1).Epoch() == fence.MaxToken.Epoch() {
		t.Errorf("MaxToken %v is not the last token of epoch %v", fence.MaxToken, got.Epoch())
	}
}

// checkInput checks that malformed input and an ended context are refused and record nothing.
func checkInput(t *testing.T, c fence.Checker) {
	t.Helper()
	for _, test := range []struct {
		resource string
		token    runstore.Token
		want     error
	}{
		{"", 1, runstore.ErrInvalid},
		{"a\x00b", 1, runstore.ErrInvalid},
		{"\xff", 1, runstore.ErrInvalid},
		{strings.Repeat("a", fence.MaxResource+1), 1, runstore.ErrTooLarge},
		{"input", 0, runstore.ErrInvalid},
		{"input", -1, runstore.ErrInvalid},
		{"input", fence.MaxToken + 1, runstore.ErrInvalid},
	} {
		var input *runstore.InputError
		if err := c.Check(t.Context(), test.resource, test.token); !errors.Is(err, test.want) || !errors.As(err, &input) {
			t.Errorf("%.20q, token %d: got %v, want %v", test.resource, test.token, err, test.want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Check(ended, "input", 9); !errors.Is(err, context.Canceled) || runstore.KindOf(err) != runstore.ErrUnavailable {
		t.Errorf("ended context: got %v, want ErrUnavailable and the context's error", err)
	}
	lost := &lease.LostError{Run: "r", Token: 9, Reason: &runstore.FencedError{Presented: 9, Current: 10}}
	ended, cancelCause := context.WithCancelCause(t.Context())
	cancelCause(lost)
	err := c.Check(ended, "input", 9)
	var fenced *runstore.FencedError
	if runstore.KindOf(err) != runstore.ErrUnavailable || errors.Is(err, runstore.ErrFenced) || errors.As(err, &fenced) {
		t.Errorf("lost lease: got %v of kind %v, want ErrUnavailable only", err, runstore.KindOf(err))
	}
	if !errors.Is(err, lease.ErrLost) || !strings.Contains(err.Error(), lost.Error()) {
		t.Errorf("lost lease: got %v, want the context's cause too", err)
	}
	if err := c.Check(t.Context(), "input", 1); err != nil {
		t.Errorf("refused input was recorded: %v", err)
	}
	if err := c.Check(t.Context(), strings.Repeat("é", fence.MaxResource/2), 1); err != nil {
		t.Errorf("the longest resource: %v", err)
	}
}

// checkRaces presents tokens from several goroutines. No check of a token that began after a check
// of a higher one had returned may succeed.
func checkRaces(t *testing.T, c fence.Checker, rounds int) {
	t.Helper()
	var mu sync.Mutex
	accepted := map[string]runstore.Token{} // the highest token whose check has returned
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range rounds {
				resource := string(rune('a' + random.IntN(2)))
				token := runstore.Token(i + 1 + random.IntN(8))
				mu.Lock()
				before := accepted[resource]
				mu.Unlock()
				err := c.Check(t.Context(), resource, token)
				var stale *fence.StaleError
				switch {
				case err == nil && token < before:
					t.Errorf("token %v of %s was accepted after %v", token, resource, before)
				case err == nil:
					mu.Lock()
					accepted[resource] = max(accepted[resource], token)
					mu.Unlock()
				case !errors.As(err, &stale):
					t.Errorf("token %v of %s: %v", token, resource, err)
				case stale.Current <= token || stale.Current < before:
					t.Errorf("token %v of %s was refused for %v, after %v", token, resource, stale.Current, before)
				}
			}
		})
	}
	wg.Wait()
	for resource, token := range accepted {
		wantStale(t, c.Check(t.Context(), resource, token-1), resource, token-1, token)
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	t.Run("order", func(t *testing.T) { checkOrder(t, newMemory(t, nil)) })
	t.Run("input", func(t *testing.T) { checkInput(t, newMemory(t, &fence.MemoryOptions{})) })
	t.Run("races", func(t *testing.T) { checkRaces(t, newMemory(t, nil), 2000) })
}

// At its limit a checker forgets nothing and refuses new resources, until one is dropped.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	m := newMemory(t, &fence.MemoryOptions{MaxResources: 2})
	ctx := t.Context()
	if err := errors.Join(m.Check(ctx, "a", 5), m.Check(ctx, "b", 5)); err != nil {
		t.Fatal(err)
	}
	var full *fence.FullError
	err := m.Check(ctx, "c", 5)
	if !errors.As(err, &full) || full.Limit != 2 || full.Resource != "c" || runstore.KindOf(err) != runstore.ErrUnavailable {
		t.Fatalf("got %v, want a FullError of limit 2", err)
	}
	if !strings.Contains(err.Error(), "the limit is 2 resources") {
		t.Errorf("%q does not name the limit", err)
	}
	wantStale(t, m.Check(ctx, "a", 4), "a", 4, 5)
	if err := m.Check(ctx, "a", 6); err != nil {
		t.Errorf("a known resource at the limit: %v", err)
	}
	m.Forget("b")
	m.Forget("never seen")
	if err := m.Check(ctx, "c", 5); err != nil || m.Len() != 2 {
		t.Errorf("got %v and %d resources after one was dropped, want 2", err, m.Len())
	}
	if err := m.Check(ctx, "b", 1); !errors.As(err, &full) {
		t.Errorf("got %v, want a FullError", err)
	}
}

func TestMemoryOptions(t *testing.T) {
	t.Parallel()
	if m, err := fence.NewMemory(&fence.MemoryOptions{MaxResources: -1}); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("got %v, %v; want ErrInvalid", m, err)
	}
}

// Announce tries every checker and reports each that refused.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	behind, ahead, last := newMemory(t, nil), newMemory(t, nil), newMemory(t, nil)
	if err := ahead.Check(ctx, "a", 9); err != nil {
		t.Fatal(err)
	}
	err := fence.Announce(ctx, fence.Presented{Resource: "a", Token: 5}, behind, ahead, last)
	wantStale(t, err, "a", 5, 9)
	for _, c := range []fence.Checker{behind, last} {
		wantStale(t, c.Check(ctx, "a", 4), "a", 4, 5)
	}
	if err := fence.Announce(ctx, fence.Presented{Resource: "a", Token: 9}, behind, ahead, last); err != nil {
		t.Error(err)
	}
}

func TestContext(t *testing.T) {
	t.Parallel()
	if p, ok := fence.FromContext(t.Context()); ok {
		t.Errorf("got %v of a context without a fence", p)
	}
	want := fence.Presented{Resource: "a", Token: 5}
	if p, ok := fence.FromContext(fence.NewContext(t.Context(), want)); !ok || p != want {
		t.Errorf("got %v, %v; want %v", p, ok, want)
	}
}
