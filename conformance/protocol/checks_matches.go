package protocol

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func matchCases() []Case {
	needs := []Need{NeedReactions, NeedValues}
	return []Case{
		{Group: "reactions", Check: 63, Name: "match-is-one-task", Needs: needs, Run: matchIsOneTask,
			Doc: "An entry whose subject matches a TASK reaction's pattern gets exactly one task; other entries get none."},
		{Group: "reactions", Check: 64, Name: "predicate", Needs: needs, Run: matchPredicate,
			Doc: "Of the entries that match the pattern, only those that satisfy the predicate get tasks."},
		{Group: "reactions", Check: 65, Name: "malformed-predicate", Needs: needs, Run: malformedPredicate,
			Doc: "A predicate with a syntax error matches nothing, and is no error."},
		{Group: "reactions", Check: 66, Name: "bootstrap", Needs: needs, Run: bootstrap,
			Doc: "A reaction registered from the head has no tasks for earlier entries, and a reaction registered from the start has them; registering again moves no cursor."},
		{Group: "reactions", Check: 74, Name: "agent", Needs: needs, Run: agentReaction,
			Doc: "A match of an AGENT reaction is a run of its app, which needs a driver, and no task."},
	}
}

// onValues returns a TASK reaction with an id of its own that matches the changes of values in a
// namespace. It starts at the end of the feed.
func (e *Env) onValues(name, namespace string) *tapepb.Reaction {
	return &tapepb.Reaction{
		ReactionId: e.Name(name), Name: name, SubjectPattern: "/tape/value/changed/" + namespace + "/**",
		HandlerKind: tapepb.HandlerKind_HANDLER_KIND_TASK, BootstrapFromHead: true,
	}
}

// react registers a reaction until the end of the case, and returns its id.
func (e *Env) react(t T, r *tapepb.Reaction) string {
	t.Helper()
	return e.register(t, r).GetReactionId()
}

// change writes a new version of a value.
func (e *Env) change(t T, namespace, key string, n int) {
	t.Helper()
	_, _ = e.Client.WriteValue(t.Context(), &tapepb.WriteValueRequest{Namespace: namespace, Key: key, ValueJson: fmt.Sprint(n), IfVersion: -1})
}

// tasks returns the tasks of a reaction, in the order of their entries.
func (p *Process) tasks(t T, reaction string) []*tapepb.Task {
	t.Helper()
	r, _ := p.Client.ListTasks(t.Context(), &tapepb.ListTasksRequest{ReactionId: reaction, Limit: 1000})
	tasks := r.GetTasks()
	slices.SortFunc(tasks, func(a, b *tapepb.Task) int { return cmp.Compare(a.GetSourceGlobalSeq(), b.GetSourceGlobalSeq()) })
	return tasks
}

// awaitTasks waits until a reaction has at least n tasks, and returns them.
func (p *Process) awaitTasks(t T, reaction string, n int) (tasks []*tapepb.Task) {
	t.Helper()
	until(t, fmt.Sprintf("reaction %s has %d tasks", reaction, n), func() bool {
		tasks = p.tasks(t, reaction)
		return len(tasks) >= n
	})
	return tasks
}

// subjects returns the subjects of tasks as one text.
func subjects(tasks []*tapepb.Task) string {
	var all []string
	for _, task := range tasks {
		all = append(all, task.GetSubject())
	}
	return strings.Join(all, " ")
}

func matchIsOneTask(t T, e *Env) {
	mine, other := e.Name("treasury"), e.Name("other")
	id := e.react(t, e.onValues("r", mine))
	e.change(t, other, "k", 1) // first, so that the matcher has passed this entry once the others have tasks
	e.change(t, mine, "k", 1)
	tasks := e.awaitTasks(t, id, 1)
	subject := "/tape/value/changed/" + mine + "/k"
	require(t, len(tasks) == 1, "the tasks are %v, want one", tasks)
	task := tasks[0]
	expect(t, task.GetSubject() == subject && task.GetStatus() == tapepb.TaskStatus_TASK_STATUS_PENDING && task.GetReactionId() == id &&
		task.GetAttempts() == 0 && task.GetLeaseOwner() == "" && task.GetSourceGlobalSeq() > 0 && task.GetTaskId() != "" && task.GetCreatedAtMs() > 0,
		"the task is %v, want a PENDING one of %s", task, subject)
	expect(t, object(t, task.GetPayloadJson())["key"] == "k", "the task has the payload %q, want the entry's", task.GetPayloadJson())
	e.change(t, mine, "k2", 2)
	tasks = e.awaitTasks(t, id, 2)
	expect(t, subjects(tasks) == subject+" "+subject+"2", "the tasks are %v, want one for each entry", tasks)
}

func matchPredicate(t T, e *Env) {
	run, tool := e.begin(t), e.Name("execute_sweep")
	id := e.react(t, &tapepb.Reaction{
		ReactionId: e.Name("r"), SubjectPattern: "/tape/effect/confirmed/**", PredicateCel: fmt.Sprintf("payload.tool == %q", tool),
		HandlerKind: tapepb.HandlerKind_HANDLER_KIND_TASK, BootstrapFromHead: true,
	})
	confirm := func(key, tool string) {
		e.beginEffect(t, &tapepb.BeginEffectRequest{RunId: run, CustomKey: key, ToolName: tool})
		e.complete(t, run, key, confirmed, `{}`)
	}
	confirm("a", e.Name("other"))
	confirm("b", tool)
	want := "/tape/effect/confirmed/" + tool + "/" + run
	tasks := e.awaitTasks(t, id, 1)
	expect(t, subjects(tasks) == want && tasks[0].GetSourceRunId() == run, "the tasks are %v, want one for %s", tasks, want)
	confirm("c", tool) // a duplicate task of an entry would have appeared by now
	tasks = e.awaitTasks(t, id, 2)
	expect(t, subjects(tasks) == want+" "+want, "the tasks are %v, want one for each effect of the tool", tasks)
}

func malformedPredicate(t T, e *Env) {
	ns := e.Name("ns")
	malformed := e.onValues("malformed", ns)
	malformed.PredicateCel = `payload.key == `
	bad := e.react(t, malformed)
	good := e.react(t, e.onValues("sound", ns))
	for n := 1; n <= 2; n++ {
		e.change(t, ns, "k", n)
		e.awaitTasks(t, good, n)
	}
	tasks := e.tasks(t, bad)
	expect(t, len(tasks) == 0, "a reaction with the predicate %q has tasks: %v", malformed.PredicateCel, tasks)
}

func bootstrap(t T, e *Env) {
	ns := e.Name("ns")
	e.change(t, ns, "backlog", 1)
	fromHead, fromStart := e.onValues("head", ns), e.onValues("start", ns)
	fromStart.BootstrapFromHead = false
	start := e.react(t, fromStart)
	e.awaitTasks(t, start, 1) // the end of the feed is past the backlog now
	head := e.react(t, fromHead)
	e.change(t, ns, "next", 1)
	at := "/tape/value/changed/" + ns + "/"
	expectTasks := func(id, want string) {
		t.Helper()
		tasks := e.awaitTasks(t, id, len(strings.Fields(want)))
		// Entries of different values may appear in any order in the feed.
		got := strings.Fields(subjects(tasks))
		slices.Sort(got)
		expect(t, strings.Join(got, " ") == want, "reaction %s has the tasks %v, want %s", id, got, want)
	}
	expectTasks(head, at+"next")
	expectTasks(start, at+"backlog "+at+"next")
	fromStart.BootstrapFromHead, fromStart.Name = true, "again"
	e.change(t, ns, "between", 1)
	e.react(t, fromStart)
	e.change(t, ns, "last", 1)
	expectTasks(start, at+"backlog "+at+"between "+at+"last "+at+"next")
}

func agentReaction(t T, e *Env) {
	ns, app := e.Name("ns"), e.Name("agent")
	r := e.onValues("r", ns)
	r.HandlerKind, r.AgentApp = tapepb.HandlerKind_HANDLER_KIND_AGENT, app
	id := e.react(t, r)
	e.change(t, ns, "k", 1)
	var runs []*tapepb.RunState
	until(t, "the run is listed for recovery", func() bool {
		runs = e.reactionRuns(t, app)
		return len(runs) > 0
	})
	require(t, len(runs) == 1, "the runs are %v, want one", runs)
	run := e.run(t, runs[0].GetRunId())
	var seq int64
	_, err := fmt.Sscanf(run.GetInvocationId(), "react-"+id+"-%d", &seq)
	expect(t, err == nil && seq > 0, "the run has the invocation %q, want react-%s- and the entry's global_seq", run.GetInvocationId(), id)
	expect(t, run.GetUserId() == "" && run.GetSessionId() == "" && run.GetStatus() == running && run.GetLeaseOwner() == "matcher" &&
		run.GetLeaseExpiresAtMs() <= time.Now().Add(time.Hour).UnixMilli(),
		"the run is %v, want a RUNNING one without user and session, whose owner is matcher", run)
	expect(t, len(e.tasks(t, id)) == 0, "an AGENT reaction has the tasks %v", e.tasks(t, id))
}

// reactionRuns returns the runs of an app that ListRunsToRecover lists.
func (p *Process) reactionRuns(t T, app string) (runs []*tapepb.RunState) {
	t.Helper()
	listed, _ := p.Client.ListRunsToRecover(t.Context(), &tapepb.ListRunsToRecoverRequest{Limit: 100_000})
	for _, r := range listed.GetRuns() {
		if r.GetAppName() == app {
			runs = append(runs, r)
		}
	}
	return runs
}
