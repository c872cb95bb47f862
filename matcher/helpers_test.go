package matcher_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/internal/intercept"
	"github.com/tapestore/tapestore/matcher"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tail"
	"github.com/tapestore/tapestore/tape"
)

// ttl is that of the leases in tests, on a clock that only waiting moves.
const ttl = 10 * time.Second

// world is a store with replicas on it, and a client of its own.
type world struct {
	t     *testing.T
	store *memory.Store
	tape  *tape.Tape // of the client
	runs  []runstore.RunID

	listInterval, heartbeat time.Duration // the replicas'; 0 for the default
}

func newWorld(t *testing.T) *world {
	t.Helper()
	store := memory.New(nil)
	return &world{t: t, store: store, tape: tape.New(store.Open(), &tape.Options{Logger: slog.New(slog.DiscardHandler)})}
}

// replica is a matcher with a tail and a handle of its own.
type replica struct {
	*matcher.Matcher
	log  *log
	tail *tail.Tail
	stop func() // ends Run, and waits for it
}

// start starts a replica whose calls to the store around makes; nil makes them all.
func (w *world) start(name string, around intercept.Around) *replica {
	w.t.Helper()
	if around == nil {
		return w.startOn(name, w.store.Open())
	}
	return w.startOn(name, intercept.Store(w.store.Open(), around))
}

// startOn starts a replica on a handle of the store.
func (w *world) startOn(name string, handle runstore.RunStore) *replica {
	w.t.Helper()
	r := &replica{log: &log{}}
	logger := slog.New(slog.NewTextHandler(r.log, nil))
	r.tail = tail.New(handle, &tail.Options{Logger: logger})
	tp := tape.New(r.tail.Store(), &tape.Options{Logger: logger})
	m, err := matcher.New(tp, r.tail, &matcher.Options{Owner: name, TTL: ttl, Heartbeat: w.heartbeat, ListInterval: w.listInterval, Logger: logger})
	if err != nil {
		w.t.Fatal(err)
	}
	r.Matcher = m
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		r.tail.Close(context.Background())
	})
	return r
}

// reaction returns a TASK reaction on the beginnings of runs of an app.
func reaction(id, app string, shards int32) tape.Reaction {
	return tape.Reaction{ID: id, Pattern: "/tape/run/running/" + app + "/**", Handler: tape.HandlerTask, Shards: shards}
}

func (w *world) register(r tape.Reaction) tape.Reaction {
	w.t.Helper()
	stored, err := w.tape.RegisterReaction(context.Background(), r, false)
	if err != nil {
		w.t.Fatal(err)
	}
	return stored
}

func (w *world) deregister(id string) {
	w.t.Helper()
	if _, err := w.tape.DeregisterReaction(context.Background(), id); err != nil {
		w.t.Fatal(err)
	}
}

// enter begins n runs of an app: n entries.
func (w *world) enter(app string, n int) {
	w.t.Helper()
	for range n {
		begun, err := w.tape.BeginRun(context.Background(), tape.BeginRunRequest{Key: tape.RunKey{App: app, Invocation: fmt.Sprint(len(w.runs))}})
		if err != nil {
			w.t.Fatal(err)
		}
		w.runs = append(w.runs, begun.ID)
	}
}

func (w *world) tasks(id string) []tape.Task {
	w.t.Helper()
	tasks, err := w.tape.ListTasks(context.Background(), id, tape.TaskUnspecified, 10_000)
	if err != nil {
		w.t.Fatal(err)
	}
	return tasks
}

// await waits until a reaction has n tasks, for up to ten leases on the clock of the test.
func (w *world) await(id string, n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d tasks of %s", n, id), func() bool { return len(w.tasks(id)) >= n })
}

func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	for range 500 {
		if done() {
			return
		}
		time.Sleep(ttl / 50)
	}
	w.t.Fatalf("not after ten leases: %s", what)
}

// expectOnce checks that a reaction has one task for each run.
func (w *world) expectOnce(id string, runs []runstore.RunID) {
	w.t.Helper()
	found := map[runstore.RunID]int{}
	tasks := w.tasks(id)
	for _, task := range tasks {
		found[task.SourceRun]++
	}
	for i, run := range runs {
		if found[run] != 1 {
			w.t.Errorf("entry %d has %d tasks of %s, want 1", i, found[run], id)
		}
	}
	if len(tasks) != len(runs) {
		w.t.Errorf("%s has %d tasks, want %d", id, len(tasks), len(runs))
	}
}

// holders returns how many of a reaction's shards each owner holds.
func (w *world) holders(r tape.Reaction) map[string]int {
	w.t.Helper()
	held := map[string]int{}
	now, _ := w.tape.Store().Now(context.Background())
	for shard := range r.Shards {
		id, err := w.tape.OpenShard(context.Background(), r, shard)
		if err != nil {
			w.t.Fatal(err)
		}
		run, err := w.tape.Store().GetRun(context.Background(), id)
		if err != nil {
			w.t.Fatal(err)
		}
		if run.Holder.Owner != "" && run.Holder.ExpiresAt.After(now) {
			held[string(run.Holder.Owner)]++
		}
	}
	return held
}

func (w *world) awaitHeld(r tape.Reaction, by string, n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s holds %d shards of %s", by, n, r.ID), func() bool { return w.holders(r)[by] >= n })
}

// log is what a replica has logged.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
