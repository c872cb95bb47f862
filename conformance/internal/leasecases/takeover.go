package leasecases

import (
	"bufio"
	"context"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/takeover"
	"github.com/tapestore/tapestore/runstore"
)

// worker drives runs that have no driver: three events for each, and then the run's end.
func worker(ctx context.Context, s runstore.RunStore, round int, in *bufio.Scanner, out *kit.Report) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w, err := takeover.New(s, runstore.Owner(fmt.Sprint("worker-", round)), &takeover.Options{
		MaxInFlight: 4, MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Second,
		Lease: &lease.Options{TTL: ttl}, Logger: quiet,
	})
	if err != nil {
		return err
	}
	go awaitEnd(in, stop)
	err = w.Run(ctx, func(ctx context.Context, held *lease.Held, run runstore.Run) error {
		_ = out.Line("drives %d %s", held.Fence().Token(), run.ID)
		for range 3 {
			b := runstore.NewBatch(run.ID, held.Fence())
			b.Append("step", nil)
			if _, err := s.Commit(ctx, b); err != nil {
				return err
			}
		}
		held.ReleaseWith(runstore.Writes{Runnable: runstore.Never()})
		return nil
	})
	status := w.Status()
	_ = out.Line("attempts %d takeovers %d", status.Attempts, status.Takeovers)
	if ctx.Err() == nil {
		return err
	}
	return nil
}

func workersShare(t harness.T, e *harness.Env) {
	openURL(t, e)
	runs := e.Scaled(t, "runs that are taken over", 12, 60)
	id := func(i int) runstore.RunID { return runstore.RunID(fmt.Sprint("run-", i)) }
	for i := range runs {
		spec := kit.WithLease(id(i), "dead")
		spec.Lease.TTL = time.Second
		spec.Runnable = runstore.After(0)
		if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
			t.Fatalf("create: %v", err)
		}
	}
	all := newChildren(t, e)
	for range 3 {
		all.start("worker")
	}
	// The process that drives first is killed in the middle of its work.
	for {
		l := all.next("a worker")
		var token int64
		var run string
		if n, _ := fmt.Sscanf(l.text, "drives %d %s", &token, &run); n == 2 {
			all.kill(l.child)
			break
		}
		if l.text == "gone" {
			t.Fatalf("worker %d is gone", l.child)
		}
	}
	began := time.Now()
	undone := func() (n int) {
		for i := range runs {
			if run := e.Get(t, id(i)); !run.RunnableAt.IsZero() || run.Holder.Token != 0 {
				n++
			}
		}
		return n
	}
	e.AwaitState(t, harness.CaseTimeout, func() bool { return undone() == 0 }, func() string {
		return fmt.Sprintf("%d runs are not driven to their end", undone())
	})
	t.Logf("%d runs driven to their end within %v of a worker's death", runs, time.Since(began).Round(time.Millisecond))
	all.end()
	var attempts, takeovers int
	for gone := 0; gone < 3; {
		l := all.next("the end of the workers")
		var a, n int
		if _, err := fmt.Sscanf(l.text, "attempts %d takeovers %d", &a, &n); err == nil {
			attempts, takeovers = attempts+a, takeovers+n
		}
		if l.text == "gone" {
			gone++
		}
	}
	t.Logf("the workers that lived made %d takeovers with %d attempts", takeovers, attempts)
	for i := range runs {
		checkTerms(t, e, id(i), 3)
	}
}

// checkTerms checks that the tokens along a run's journal rise, that each has one writer, and that the
// last one wrote at least so many events.
func checkTerms(t harness.T, e *harness.Env, id runstore.RunID, least int) {
	t.Helper()
	last, events := runstore.Event{}, 0
	for _, event := range kit.Journal(t, e.Store, id) {
		if event.Token != last.Token {
			events = 0
		} else if event.Owner != last.Owner {
			t.Errorf("%q: term %d has writes of %q and %q", string(id), event.Token, last.Owner, event.Owner)
		}
		if event.Token < last.Token {
			t.Errorf("%q: event %d of term %d comes after one of term %d", string(id), event.Seq, event.Token, last.Token)
		}
		last = event
		events++
	}
	if events < least {
		t.Errorf("%q: the last term has %d events, want at least %d", string(id), events, least)
	}
}
