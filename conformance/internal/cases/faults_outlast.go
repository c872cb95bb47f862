package cases

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

// outlast calls every method while the server does not answer. Each call must return soon after its
// context has ended, and its result must be true once the store answers again. harm stops the
// answers, heal restores them.
func outlast(t harness.T, e *harness.Env, s runstore.RunStore, open func(ctx context.Context) (runstore.RunStore, error), harm, heal func() error) {
	const wait = 300 * time.Millisecond
	type writing struct {
		*attempt
		referenceRun
		id runstore.RunID
	}
	lease := kit.SeedFixture(t, e, "run")
	awaitWorking(t, e, s)
	var calling []func(ctx context.Context) // every call to make
	var writes []*writing
	for _, w := range harness.Sampled(t, e, "kinds of writes", sendings()) {
		written := &writing{referenceRun: w.reference(t, e, e.Store), id: runstore.RunID(w.name + "-late")}
		held := w.seedRun(t, e, written.id)
		writes = append(writes, written)
		calling = append(calling, func(ctx context.Context) {
			written.attempt = w.send(ctx, s, written.id, held)
			<-written.done
			if err := written.err; err == nil || !errors.Is(err, ctx.Err()) || runstore.KindOf(err) != runstore.ErrUnavailable && runstore.KindOf(err) != runstore.ErrUnknownOutcome {
				t.Errorf("%s: got error %v, want ErrUnavailable or ErrUnknownOutcome that matches the context's", w.name, err)
			}
		})
	}
	for _, c := range calls(lease) {
		if !c.write {
			calling = append(calling, func(ctx context.Context) {
				if err := c.do(ctx, s); !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, ctx.Err()) {
					t.Errorf("%s: got error %v, want ErrUnavailable that matches the context's", c.op, err)
				}
			})
		}
	}
	calling = append(calling, func(ctx context.Context) {
		another, err := open(ctx)
		if err == nil {
			_ = another.Close() // an adapter may open without a request
		} else if !errors.Is(err, ctx.Err()) {
			t.Errorf("open: got error %v, want one that matches the context's", err)
		}
	})

	// The bound is measured, because this machine may be slow and shared.
	began := time.Now()
	kit.RunConcurrently(t, len(calling), func(int) error {
		_, err := s.GetRun(t.Context(), "run")
		return err
	})
	bound := 30*time.Second + 50*time.Since(began)

	if err := harm(); err != nil {
		t.Fatalf("stop whoever answers: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	returned := make(chan struct{})
	var waiting sync.WaitGroup
	for _, call := range calling {
		waiting.Go(panics.Guarded(t, func() { call(ctx) }))
	}
	go func() {
		defer close(returned)
		waiting.Wait()
	}()
	kit.WaitAtMost(t, returned, wait+bound)
	select {
	case <-returned:
	default:
		t.Errorf("a call has not returned %v after its context ended", bound)
	}
	if err := heal(); err != nil {
		t.Fatalf("let it answer again: %v", err)
	}
	<-returned
	awaitWorking(t, e, s)
	for i := range 5 { // requests that were in flight arrive meanwhile
		e.Append(t, s, lease, fmt.Sprint("it works again ", i))
	}
	for _, w := range writes {
		w.check(t, e, w.id, w.attempt)
	}
}
