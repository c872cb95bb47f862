package protocol

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func onceCases() []Case {
	return []Case{
		{Group: "T7", Name: "each-entry-is-one-task", Needs: []Need{NeedReactions}, Run: eachEntryIsOneTask,
			Doc: "Each of many concurrently written entries gets one task, which one of many workers claims, once."},
		{Group: "T7", Name: "matchers-killed-and-paused", Needs: []Need{NeedReactions, NeedValues, NeedReplicas}, Run: matchersKilledAndPaused,
			Doc: "While servers on one store are killed, and paused beyond their leases, each entry is handled once by a TASK, a debounced and an AGENT reaction."},
	}
}

// onRuns returns a TASK reaction with three shards that matches the first entries of an app's runs.
func (e *Env) onRuns(name, app string) *tapepb.Reaction {
	return &tapepb.Reaction{
		ReactionId: e.Name(name), SubjectPattern: "/tape/run/running/" + app + "/**", NumShards: 3,
		HandlerKind: tapepb.HandlerKind_HANDLER_KIND_TASK, BootstrapFromHead: true,
	}
}

// entered returns the request that begins run n of an app. The run's first entry is the entry that
// the reaction matches.
func (e *Env) entered(app string, n int) *tapepb.BeginRunRequest {
	return &tapepb.BeginRunRequest{AppName: app, InvocationId: fmt.Sprint(n), LeaseOwner: "host:1", LeaseTtlMs: 60_000}
}

func eachEntryIsOneTask(t T, e *Env) {
	app, n := e.Name("app"), e.Rounds(24)
	reaction := e.onRuns("r", app)
	w := &workers{Env: e, id: e.react(t, reaction), shards: int(reaction.GetNumShards()), runs: map[string]int{}, tasks: map[string]int{}, passed: map[int32]bool{}}
	runs := make([]string, n)
	together(n, func(i int) {
		r, err := e.Try.BeginRun(t.Context(), e.entered(app, i))
		require(t, err == nil, "BeginRun: %v", err)
		runs[i] = r.GetRunId()
	})
	const few = 4
	together(few+1, func(i int) {
		if i < few {
			for !w.done() && !t.Failed() && t.Context().Err() == nil {
				w.work(t, i)
			}
			return
		}
		// A task for a later entry of its shard proves that all earlier entries had their tasks.
		mark := 0
		until(t, "each shard has a task for an entry behind the others", func() bool {
			r, err := e.Try.BeginRun(t.Context(), e.entered(app, n+mark))
			require(t, err == nil, "BeginRun: %v", err)
			w.mark(r.GetRunId())
			mark++
			return w.done()
		})
	})
	if t.Failed() {
		return
	}
	for range n + len(w.marks) { // a server that repeats tasks would never run out of them
		if w.work(t, 0) == 0 {
			break
		}
	}
	for i, run := range runs {
		expect(t, w.runs[run] == 1, "entry %d, of run %s, has been claimed %d times, want once", i, run, w.runs[run])
	}
	listed := map[string]int{}
	for _, task := range e.tasks(t, w.id) {
		listed[task.GetSourceRunId()]++
		expect(t, !slices.Contains(runs, task.GetSourceRunId()) || task.GetStatus() == taskDone && task.GetAttempts() == 1 && w.tasks[task.GetTaskId()] == 1,
			"task %v was claimed %d times, want once, and DONE", task, w.tasks[task.GetTaskId()])
	}
	for i, run := range runs {
		expect(t, listed[run] == 1, "entry %d, of run %s, has %d tasks, want 1", i, run, listed[run])
	}
}

// workers claim and complete the tasks of a reaction, and count the claims.
type workers struct {
	*Env
	id     string
	shards int

	mu     sync.Mutex
	runs   map[string]int // claims by the run of the entry
	tasks  map[string]int // claims by task
	marks  []string       // runs of marker entries, which follow all others
	passed map[int32]bool // shards in which a marker was claimed
}

// mark adds a marker: the run of an entry that follows all others.
func (w *workers) mark(run string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.marks = append(w.marks, run)
}

// done reports whether a marker was claimed in each shard.
func (w *workers) done() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.passed) == w.shards
}

// work claims some tasks as worker i, completes them, and returns their number.
func (w *workers) work(t T, i int) int {
	owner := fmt.Sprintf("worker %d", i)
	r, err := w.Try.ClaimTasks(t.Context(), &tapepb.ClaimTasksRequest{ReactionId: w.id, Shard: -1, Owner: owner, LeaseMs: time.Hour.Milliseconds(), Max: 3})
	require(t, err == nil, "ClaimTasks: %v", err)
	for _, task := range r.GetTasks() {
		w.mu.Lock()
		w.runs[task.GetSourceRunId()]++
		w.tasks[task.GetTaskId()]++
		if slices.Contains(w.marks, task.GetSourceRunId()) {
			w.passed[task.GetShard()] = true
		}
		w.mu.Unlock()
		_, err := w.Try.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: task.GetTaskId(), Owner: owner})
		require(t, err == nil, "CompleteTask: %v", err)
	}
	return len(r.GetTasks())
}

// Replica is one of several servers on one store.
type Replica struct {
	Address string
	// Kill ends the server at once. Its leases are not released.
	Kill func()
	// Pause suspends the server, and Resume continues it where it stopped.
	Pause, Resume func()
}

// replicas is how many servers a case starts on one store: one to kill, one to pause, and one to
// take over.
const replicas = 3

func matchersKilledAndPaused(t T, e *Env) {
	servers := e.target.Replicas(t, replicas)
	clients := make([]*Process, len(servers))
	for i, s := range servers {
		clients[i] = e.process(t, s.Address)
	}
	last := clients[replicas-1] // its server is neither killed nor paused
	app, agentApp, ns, n := e.Name("app"), e.Name("agent"), e.Name("ns"), e.Rounds(8)
	once, debounced, agent := e.onRuns("task", app), e.onValues("debounced", ns), e.onRuns("agent", app)
	debounced.DebounceMs = int32(time.Hour.Milliseconds())
	agent.HandlerKind, agent.AgentApp = tapepb.HandlerKind_HANDLER_KIND_AGENT, agentApp
	// The server that registers a reaction is the first to match it.
	_, _ = clients[0].Client.RegisterReaction(t.Context(), once)
	for _, r := range []*tapepb.Reaction{debounced, agent} {
		_, _ = clients[1].Client.RegisterReaction(t.Context(), r)
	}

	var runs []string
	var newest int64 // version of the newest write
	write := func() {
		t.Helper()
		for range n {
			r, _ := last.Client.BeginRun(t.Context(), e.entered(app, len(runs)))
			runs = append(runs, r.GetRunId())
			v, _ := last.Client.WriteValue(t.Context(), &tapepb.WriteValueRequest{Namespace: ns, Key: "k", ValueJson: fmt.Sprint(len(runs)), IfVersion: -1})
			newest = v.GetVersion()
		}
	}
	handled := func(what string) {
		t.Helper()
		until(t, "each entry is handled "+what, func() bool {
			d := last.tasks(t, debounced.GetReactionId())
			return len(last.tasks(t, once.GetReactionId())) >= len(runs) && len(last.reactionRuns(t, agentApp)) >= len(runs) &&
				len(d) > 0 && entryVersion(t, d[len(d)-1]) == newest
		})
	}
	write()
	handled("by all servers")
	write() // while the servers match
	servers[0].Kill()
	servers[1].Pause()
	write()
	handled("with one server killed and one paused")
	servers[1].Resume()
	write()
	handled("after the paused server went on")

	sources := map[string]int{}
	for _, task := range last.tasks(t, once.GetReactionId()) {
		sources[task.GetSourceRunId()]++
	}
	began := last.reactionRuns(t, agentApp)
	for i, run := range runs {
		expect(t, sources[run] == 1, "entry %d, of run %s, has %d tasks, want 1", i, run, sources[run])
	}
	expect(t, len(sources) == len(runs) && len(began) == len(runs), "%d entries have tasks for %d runs, and %d agents' runs", len(runs), len(sources), len(began))
	for _, run := range began {
		expect(t, run.GetSeqCursor() == 1, "run %s, which a match began, has %d entries, want 1: it was begun again", run.GetInvocationId(), run.GetSeqCursor())
	}
	tasks := last.tasks(t, debounced.GetReactionId())
	expect(t, len(tasks) == 1, "all matches of one subject within the time of the debounce have %d tasks, want 1: %v", len(tasks), tasks)
}

// entryVersion returns the version of the value that a task's entry records.
func entryVersion(t T, task *tapepb.Task) int64 {
	t.Helper()
	v, _ := object(t, task.GetPayloadJson())["version"].(float64)
	return int64(v)
}

// deregister ends a reaction if the server still responds.
func (e *Env) deregister(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	_, _ = e.Try.DeregisterReaction(ctx, &tapepb.DeregisterReactionRequest{ReactionId: id})
}
