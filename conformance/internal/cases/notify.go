package cases

import (
	"context"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// Notify returns the cases that prove what a Notifier promises: hints that let a reader of the feed
// poll rarely. No case requires that no wake-up is lost.
func Notify() []harness.Case {
	needs := []harness.Need{harness.NeedNotify}
	return []harness.Case{
		{Guarantee: "I10", Name: "a-commit-wakes-who-waits", Needs: needs, Run: wakes, Doc: `
			Two handles wait for wake-ups, and one of them commits until both have had one. The waiter in the writing
			handle and the one in the other handle both wake up; since a wake-up may be lost, the case commits again.
			A store that never wakes another handle leaves readers of the feed to their slow polls.`},
		{Guarantee: "I10", Name: "wake-ups-are-coalesced", Needs: needs, Run: coalesced, Doc: `
			Fifty commits pass while a waiter receives nothing. No commit waits for the waiter, fewer wake-ups than
			commits are left for it, and the feed then holds every event. A store that queues one wake-up for each
			commit fills memory, or blocks the writer.`},
		{Guarantee: "I10", Name: "wake-ups-end-with-their-context", Needs: needs, Run: wakeupsEnd, Doc: `
			Of two waiters on one handle, one ends its context, and commits continue. Soon only the other waiter wakes
			up, several times in a row. A store that keeps the ended waiter leaks it, and keeps signalling a channel
			that nothing reads.`},
	}
}

func wakeups(t harness.T, ctx context.Context, s runstore.RunStore) <-chan struct{} {
	t.Helper()
	ch, err := kit.Capability[runstore.Notifier](s).Wakeups(ctx)
	if err != nil {
		t.Fatalf("wake-ups: %v", err)
	}
	return ch
}

func signal(t harness.T, s runstore.RunStore) {
	t.Helper()
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Append("signal", nil)
	kit.MustCommit(t, s, b)
}

func wakes(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	own, other := wakeups(t, t.Context(), e.Store), wakeups(t, t.Context(), e.Reopen(t))
	var ownWoken, otherWoken bool
	e.Await(t, harness.CaseTimeout, func() bool {
		signal(t, e.Store) // repeatedly, because one wake-up may be lost
		ownWoken = ownWoken || wakeup.Take(own)
		otherWoken = otherWoken || wakeup.Take(other)
		return ownWoken && otherWoken
	})
}

func coalesced(t harness.T, e *harness.Env) {
	const signals = 50
	e.Create(t, "run")
	waiting := e.Reopen(t)
	ch := wakeups(t, t.Context(), waiting)
	for range signals { // no goroutine receives, and no commit blocks because of that
		signal(t, e.Store)
	}
	n := 0
	e.Await(t, harness.CaseTimeout, func() bool {
		if wakeup.Take(ch) {
			n++
			return true
		}
		signal(t, e.Store)
		return false
	})
	for wakeup.Take(ch) {
		n++
	}
	if n >= signals {
		t.Errorf("%d wake-ups for %d commits that nobody waited for, want them coalesced", n, signals)
	}
	// The feed holds every event that one wake-up stands for.
	e.Await(t, harness.CaseTimeout, func() bool {
		return len(kit.MustCollect(t, "feed", kit.FeedAfter(t.Context(), waiting, 0, runstore.MaxPage))) >= signals
	})
}

func wakeupsEnd(t harness.T, e *harness.Env) {
	e.Create(t, "run")
	ctx, cancel := context.WithCancel(t.Context())
	ended, living := wakeups(t, ctx, e.Store), wakeups(t, t.Context(), e.Store)
	cancel()
	// Soon, commits wake only the waiter whose context has not ended.
	quiet := 0
	e.Await(t, harness.CaseTimeout, func() bool {
		signal(t, e.Store)
		switch awake := wakeup.Take(living); {
		case wakeup.Take(ended):
			quiet = 0
		case awake:
			quiet++
		}
		return quiet >= 5
	})
}
