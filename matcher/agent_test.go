package matcher_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/internal/intercept"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// handled returns how often each entry of a reaction was handled, by its position: by a task, or by a run of any app.
func (w *world) handled(id string) map[runstore.Position]int {
	w.t.Helper()
	found := map[runstore.Position]int{}
	for _, k := range w.tasks(id) {
		found[k.Source]++
	}
	all, err := w.tape.ListRunsToRecover(context.Background(), time.Time{}, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, run := range all {
		if text, is := strings.CutPrefix(run.Invocation, "react-"+id+"-"); is {
			var at runstore.Position
			if _, err := fmt.Sscan(text, &at); err != nil {
				w.t.Fatal(err)
			}
			found[at]++
		}
	}
	return found
}

// While a replica works that is killed at any of its calls, the definition of its reaction changes from runs to tasks, or
// back, or to runs of another app. Each entry has one task or one run.
func TestHandlerThatChanges(t *testing.T) {
	t.Parallel()
	const last = 30 // by its call 30 a replica has handled all
	agent := func(app string) tape.Reaction {
		r := reaction("r", "a", 1)
		r.Handler, r.AgentApp = tape.HandlerAgent, app
		return r
	}
	task := reaction("r", "a", 1)
	for name, c := range map[string]struct{ before, after tape.Reaction }{
		"runs, then tasks":               {agent("agents"), task},
		"tasks, then runs":               {task, agent("agents")},
		"runs, then runs of another app": {agent("agents"), agent("others")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			step := 3 // a quick run tries a third
			if effort.Full() {
				step = 1
			}
			for first, made := range []bool{false, true} {
				for call := 1 + first; call <= last && !t.Failed(); call += step {
					synctest.Test(t, func(t *testing.T) {
						const entries = 10
						w := newWorld(t)
						w.enter("a", entries)
						w.register(c.before)
						p := &process{fate: fate{call, made, 0}}
						first := w.start("first", p.around)
						defer first.stop()
						time.Sleep(ttl)
						w.register(c.after)
						second := w.start("second", nil)
						defer second.stop()
						w.until("each entry is handled", func() bool { return len(w.handled("r")) >= entries })
						time.Sleep(2 * ttl)
						for at, n := range w.handled("r") {
							if n != 1 {
								t.Errorf("%v: the entry at %d was handled %d times", p.fate, at, n)
							}
						}
					})
				}
			}
		})
	}
}

// slowCreations is a store on which each run of an app takes a while to be created.
type slowCreations struct {
	runstore.RunStore
	app     string
	takes   time.Duration
	created *atomic.Int64
}

func (s slowCreations) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	for _, e := range spec.Writes.Events {
		if strings.Contains(string(e.Data), s.app) {
			s.created.Add(1)
			time.Sleep(s.takes)
		}
	}
	return s.RunStore.CreateRun(ctx, spec)
}

// A shard of an AGENT reaction has hundreds of matches in one page, on a store that takes a second for each run. Another
// shard has its runs meanwhile, a new definition is followed, and a replica that takes over begins few runs again.
func TestManyRunsOnASlowStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const entries = 300
		w := newWorld(t)
		r := reaction("r", "", 2)
		r.Pattern, r.Handler, r.AgentApp = "/tape/decision/recorded/**", tape.HandlerAgent, "agents"
		r = w.register(r)
		decide := [2]func(n int){w.decider(r, 0), w.decider(r, 1)}
		start := func(name string, p *process) (m *replica, created *atomic.Int64) {
			created = &atomic.Int64{}
			return w.startOn(name, intercept.Store(slowCreations{w.store.Open(), "agents", time.Second, created}, p.around)), created
		}
		p := &process{}
		m, _ := start("first", p)
		defer m.stop()
		w.awaitHeld(r, "first", 2)
		decide[0](entries)
		time.Sleep(10 * time.Second)
		for range 10 {
			before := len(w.handled("r"))
			decide[1](1)
			began := time.Now()
			last := w.last()
			w.until("a run for the entry of the other shard", func() bool { return w.handled("r")[last] == 1 })
			if took := time.Since(began); took > 5*time.Second {
				t.Fatalf("while one shard begins its runs, %d by now, another one has its run after %v", before, took)
			}
			time.Sleep(5 * time.Second)
		}
		p.meet()
		begun := len(w.handled("r"))
		next, created := start("next", &process{})
		defer next.stop()
		time.Sleep(2 * entries * time.Second)
		for at, n := range w.handled("r") {
			if n != 1 {
				t.Errorf("the entry at %d has %d runs", at, n)
			}
		}
		if n := len(w.handled("r")); n != entries+10 {
			t.Errorf("%d entries have runs, want %d", n, entries+10)
		}
		if again := int(created.Load()) - (entries + 10 - begun); again > 100 {
			t.Errorf("of %d runs that a replica had begun, the next one began %d again, want at most 100", begun, again)
		}
	})
}

// decider returns a function that records decisions in a run of a shard: an entry each.
func (w *world) decider(r tape.Reaction, shard int32) func(n int) {
	w.t.Helper()
	for i := 0; ; i++ {
		key := tape.RunKey{App: "deciding", Invocation: fmt.Sprint(i)}
		if r.ShardOf(key.ID()) != shard {
			continue
		}
		begun, err := w.tape.BeginRun(context.Background(), tape.BeginRunRequest{Key: key, TTL: runstore.MaxTTL})
		if err != nil {
			w.t.Fatal(err)
		}
		recorded := 0
		return func(n int) {
			w.t.Helper()
			for range n {
				recorded++
				d := tape.Decision{Index: int64(recorded), Model: "m"}
				if _, err := w.tape.RecordDecision(context.Background(), begun.ID, d, begun.Lease.Fence()); err != nil {
					w.t.Fatal(err)
				}
			}
		}
	}
}

// last returns the position of the last event.
func (w *world) last() runstore.Position {
	w.t.Helper()
	last, err := w.tape.Store().ReadFeed(context.Background(), runstore.FeedQuery{Newest: true, Limit: 1})
	if err != nil {
		w.t.Fatal(err)
	}
	return last[0].Position
}
