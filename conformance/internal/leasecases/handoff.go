package leasecases

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

const handedRun = runstore.RunID("run")

// longTTL is the TTL in cases that wait for no expiry. Its heartbeats are as frequent as those of a
// shorter lease, and a request may take ten of them: a busy machine may miss many.
const (
	longTTL        = 2 * time.Minute
	heartbeat      = time.Second
	requestTimeout = 10 * heartbeat
)

func gapHolder(ctx context.Context, s runstore.RunStore, _ int, _ *bufio.Scanner, out *kit.Report) error {
	return handOff(ctx, s, lease.Gap, out)
}

func overlapHolder(ctx context.Context, s runstore.RunStore, _ int, _ *bufio.Scanner, out *kit.Report) error {
	return handOff(ctx, s, lease.Overlap, out)
}

// handOff holds the lease and writes until its context ends or, with an overlap, until the store
// refuses a write. It reports its token, how the work ended and how the lease did.
func handOff(ctx context.Context, s runstore.RunStore, mode lease.HandoffMode, out *kit.Report) error {
	keeper, err := lease.New(s, &lease.Options{TTL: longTTL, Heartbeat: heartbeat, RequestTimeout: requestTimeout, Handoff: mode})
	if err != nil {
		return err
	}
	req := runstore.AcquireRequest{Run: handedRun, LeaseSpec: runstore.LeaseSpec{Owner: "old"}}
	err = keeper.Do(ctx, req, func(ctx context.Context, held *lease.Held) error {
		_ = out.Line("held %d", held.Fence().Token())
		for mode == lease.Overlap || ctx.Err() == nil {
			b := runstore.NewBatch(handedRun, held.Fence())
			b.Append("old", nil)
			_, err := s.Commit(context.WithoutCancel(ctx), b)
			if err != nil && runstore.KindOf(err) != runstore.ErrUnavailable && runstore.KindOf(err) != runstore.ErrUnknownOutcome {
				_ = out.Line("refused %s", refusal(err))
				return err
			}
			time.Sleep(20 * time.Millisecond)
		}
		return context.Cause(ctx)
	})
	var handed *lease.HandedOffError
	if !errors.As(err, &handed) {
		return out.Line("not handed off: %v", err)
	}
	return out.Line("handed off to %d mode %s drain %d gap %d overlap %d",
		handed.Next, handed.Mode, handed.Drain.Milliseconds(), handed.Gap.Milliseconds(), handed.Overlap.Milliseconds())
}

func handoffWithGap(t harness.T, e *harness.Env)     { handoff(t, e, lease.Gap) }
func handoffWithOverlap(t harness.T, e *harness.Env) { handoff(t, e, lease.Overlap) }

func handoff(t harness.T, e *harness.Env, mode lease.HandoffMode) {
	openURL(t, e)
	e.Create(t, handedRun)
	all := newChildren(t, e)
	all.start(mode.String())
	old := all.next("the holder")
	if !strings.HasPrefix(old.text, "held ") {
		t.Fatalf("the child said %q", old.text)
	}
	keeper, err := lease.New(e.Store, &lease.Options{TTL: longTTL, Heartbeat: heartbeat, RequestTimeout: requestTimeout, MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Second})
	if err != nil {
		t.Fatalf("%v", err)
	}
	asked := time.Now()
	granted, err := keeper.RequestHandoff(t.Context(), runstore.AcquireRequest{Run: handedRun, LeaseSpec: runstore.LeaseSpec{Owner: "new"}})
	if err != nil {
		t.Fatalf("request the handoff: %v", err)
	}
	took := time.Since(asked)
	if head := e.Get(t, handedRun); head.Holder.Former != runstore.EndHandedOff && head.Token == granted.Lease.Token {
		t.Errorf("the former grant was %v, want handed off", head.Holder.Former)
	}
	err = keeper.Hold(t.Context(), granted, func(ctx context.Context, held *lease.Held) error {
		var refused bool
		var handed string
		for handed == "" {
			l := all.next("the end of the holder")
			refused = refused || l.text == "refused fenced"
			switch {
			case strings.HasPrefix(l.text, "handed off"):
				handed = l.text
			case l.text == "gone", strings.HasPrefix(l.text, "not "), strings.HasPrefix(l.text, "refused failed"):
				t.Fatalf("the holder said %q", l.text)
			}
		}
		if want := fmt.Sprintf("handed off to %d mode %v ", held.Fence().Token(), mode); !strings.HasPrefix(handed, want) || refused != (mode == lease.Overlap) {
			t.Errorf("the holder was refused a write: %v, and said %q; want %q…", refused, handed, want)
		}
		t.Logf("granted %v after the request; the holder %s ms", took.Round(time.Millisecond), handed)
		b := runstore.NewBatch(handedRun, held.Fence())
		b.Append("new", nil)
		_, err := e.Store.Commit(ctx, b)
		return err
	})
	if err != nil {
		t.Errorf("the successor: %v", err)
	}
	checkTerms(t, e, handedRun, 1)
}

// stallBound is how long the staller may make no progress.
const stallBound = 4 * time.Second

// staller holds the lease and makes no progress. When its work has ended it waits for a line of its
// parent, and writes.
func staller(ctx context.Context, s runstore.RunStore, _ int, in *bufio.Scanner, out *kit.Report) error {
	keeper, err := lease.New(s, &lease.Options{TTL: 2 * stallBound, Heartbeat: heartbeat, RequestTimeout: 3 * heartbeat})
	if err != nil {
		return err
	}
	req := runstore.AcquireRequest{Run: handedRun, LeaseSpec: runstore.LeaseSpec{Owner: "old", MaxStall: stallBound}}
	var fence runstore.Fence
	err = keeper.Do(ctx, req, func(ctx context.Context, held *lease.Held) error {
		fence = held.Fence()
		_ = out.Line("held %d", fence.Token())
		<-ctx.Done()
		return context.Cause(ctx)
	})
	_ = out.Line("ended %v", errors.Is(err, runstore.ErrNoProgress))
	if !in.Scan() {
		return in.Err()
	}
	b := runstore.NewBatch(handedRun, fence)
	b.Append("late", nil)
	_, err = s.Commit(ctx, b)
	return out.Line("late %s", refusal(err))
}

func stalled(t harness.T, e *harness.Env) {
	openURL(t, e)
	e.Create(t, handedRun)
	all := newChildren(t, e)
	i := all.start("stall")
	if l := all.next("the holder"); !strings.HasPrefix(l.text, "held ") {
		t.Fatalf("the child said %q", l.text)
	}
	old := e.Get(t, handedRun).Token
	keeper, err := lease.New(e.Store, &lease.Options{TTL: longTTL, Heartbeat: heartbeat, RequestTimeout: requestTimeout, MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Second})
	if err != nil {
		t.Fatalf("%v", err)
	}
	err = keeper.Do(t.Context(), runstore.AcquireRequest{Run: handedRun, LeaseSpec: runstore.LeaseSpec{Owner: "new"}}, func(ctx context.Context, held *lease.Held) error {
		if held.Fence().Token() != old+1 {
			t.Errorf("the successor has token %v, want %v", held.Fence().Token(), old+1)
		}
		switch l := all.next("the end of the stalled work"); l.text {
		case "ended true":
		case "ended false":
			t.Logf("the stalled process was so slow that it met the successor's grant before the refusal of its renewal")
		default:
			t.Errorf("the holder said %q, want the end of its work", l.text)
		}
		if _, err := fmt.Fprintln(all.all[i].In, "write"); err != nil {
			t.Fatalf("ask the child to write: %v", err)
		}
		if l := all.next("the late write"); l.text != "late fenced" {
			t.Errorf("the holder said %q, want its late write fenced", l.text)
		}
		b := runstore.NewBatch(handedRun, held.Fence())
		b.Append("new", nil)
		_, err := e.Store.Commit(ctx, b)
		return err
	})
	if err != nil {
		t.Errorf("the successor: %v", err)
	}
	checkTerms(t, e, handedRun, 1)
}
