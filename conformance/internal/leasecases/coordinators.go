package leasecases

import (
	"bufio"
	"context"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/runstore"
)

const scheduler = runstore.RunID("scheduler")

// coordinator is a replica whose work ignores the loss of its lease, and ends when the store refuses
// a write: so the store's check is tested, and not the replica's care. It reports each term, its
// first write, and how the term ended.
func coordinator(ctx context.Context, s runstore.RunStore, round int, in *bufio.Scanner, out *kit.Report) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c, err := election.New(s, scheduler, &election.Options{
		Replica: runstore.Owner(fmt.Sprint("replica-", round)), TTL: ttl, AcquireInterval: ttl / 4, Logger: quiet,
	})
	if err != nil {
		return err
	}
	go awaitEnd(in, stop)
	err = c.Run(ctx, func(work context.Context, held *lease.Held) error {
		token := held.Fence().Token()
		for first := true; ; first = false {
			b := runstore.NewBatch(scheduler, held.Fence())
			b.Append("tick", nil)
			_, err := s.Commit(context.WithoutCancel(work), b)
			switch {
			case err != nil && runstore.KindOf(err) != runstore.ErrUnavailable && runstore.KindOf(err) != runstore.ErrUnknownOutcome:
				_ = out.Line("ended %d %s", token, refusal(err))
				return err
			case first:
				_ = out.Line("active %d", token)
			}
			select {
			case <-ctx.Done(): // the parent ends the process
				return context.Cause(ctx)
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	if ctx.Err() == nil {
		return err
	}
	return nil
}

func coordinators(t harness.T, e *harness.Env) {
	openURL(t, e)
	all := newChildren(t, e)
	for range 3 {
		all.start("coordinator")
	}
	active := all.awaitTerm(-1, 0)
	t.Logf("replica %d is active under token %d", active.child, active.token)
	all.kill(active.child)
	killed := time.Now()
	second := all.awaitTerm(active.child, active.token)
	t.Logf("failover after a kill: %v with a TTL of %v and an interval of %v", time.Since(killed).Round(time.Millisecond), ttl, ttl/4)
	if kit.CanPause {
		process := all.all[second.child].Cmd.Process
		if err := pauseBetweenWrites(t, e, process); err != nil {
			t.Fatalf("stop the replica: %v", err)
		}
		third := all.awaitTerm(second.child, second.token)
		if err := kit.ResumeProcess(process); err != nil {
			t.Fatalf("let the replica go on: %v", err)
		}
		for all.ends[second] == "" { // a slow replica may have lost its term before it was stopped
			if l := all.nextTerm("the refusal of the replica that was stopped"); l.text == "gone" && l.child == second.child {
				t.Fatalf("the replica that was stopped is gone")
			}
		}
		if how := all.ends[second]; how != "fenced" {
			t.Errorf("the last write of term %d was %s, want fenced", second.token, how)
		}
		t.Logf("term %d follows term %d, whose late write was refused", third.token, second.token)
	}
	all.end()
	checkTerms(t, e, scheduler, 1)
}

// term is a term of a child.
type term struct {
	child int
	token int64
}

// awaitTerm waits until a replica other than the given one is active under a higher token. On a busy
// machine further terms may come and go.
func (c *children) awaitTerm(other int, above int64) term {
	c.t.Helper()
	for {
		l := c.nextTerm("a coordinator")
		var token int64
		if n, _ := fmt.Sscanf(l.text, "active %d", &token); n == 1 && l.child != other && token > above {
			return term{l.child, token}
		}
		if l.text == "gone" && l.child != other && !c.dead[l.child] {
			c.t.Fatalf("replica %d is gone", l.child)
		}
	}
}

// nextTerm is next for coordinators: it records the ends of terms.
func (c *children) nextTerm(what string) line {
	c.t.Helper()
	l := c.next(what)
	var token int64
	var how string
	if n, _ := fmt.Sscanf(l.text, "ended %d %s", &token, &how); n == 2 {
		c.ends[term{l.child, token}] = how
	}
	return l
}
