package protocol

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

const (
	taskPending = tapepb.TaskStatus_TASK_STATUS_PENDING
	taskClaimed = tapepb.TaskStatus_TASK_STATUS_CLAIMED
	taskDone    = tapepb.TaskStatus_TASK_STATUS_DONE
	taskDLQ     = tapepb.TaskStatus_TASK_STATUS_DLQ
)

func claimedCases() []Case {
	needs := []Need{NeedReactions, NeedValues}
	return []Case{
		{Group: "tasks", Check: 69, Name: "claimed-and-completed", Needs: needs, Run: taskClaimedAndCompleted,
			Doc: "A claimed task is CLAIMED by its owner only, and the owner completes it once."},
		{Group: "tasks", Check: 71, Name: "stale-claim", Needs: needs, Run: taskStaleClaim,
			Doc: "A report of an owner whose claim has expired and was followed by another owner's claim changes nothing."},
		{Group: "tasks", Check: 72, Name: "dead-letters", Needs: needs, Run: taskDeadLetters,
			Doc: "A task that fails dlq_after_n times, or for good, becomes DLQ."},
		{Group: "tasks", Check: 73, Name: "debounce", Needs: needs, Run: taskDebounce,
			Doc: "Matches of one subject within debounce_ms are one task, while it is PENDING."},
	}
}

// claimTasks claims tasks from every shard of a reaction.
func (p *Process) claimTasks(t T, reaction, owner string, lease time.Duration) []*tapepb.Task {
	t.Helper()
	r, _ := p.Client.ClaimTasks(t.Context(), &tapepb.ClaimTasksRequest{ReactionId: reaction, Shard: -1, Owner: owner, LeaseMs: lease.Milliseconds()})
	return r.GetTasks()
}

// awaitClaim waits for the one task of a reaction and claims it.
func (p *Process) awaitClaim(t T, reaction, owner string, lease time.Duration) *tapepb.Task {
	t.Helper()
	var tasks []*tapepb.Task
	until(t, "a task of "+reaction+" is claimed by "+owner, func() bool {
		tasks = p.claimTasks(t, reaction, owner, lease)
		return len(tasks) > 0
	})
	require(t, len(tasks) == 1, "%s claims %v, want one task", owner, tasks)
	return tasks[0]
}

// oneTask returns the only task of a reaction.
func (p *Process) oneTask(t T, reaction string) *tapepb.Task {
	t.Helper()
	tasks := p.tasks(t, reaction)
	require(t, len(tasks) == 1, "the tasks are %v, want one", tasks)
	return tasks[0]
}

func taskClaimedAndCompleted(t T, e *Env) {
	ns := e.Name("ns")
	id := e.react(t, e.onValues("r", ns))
	e.change(t, ns, "k", 1)
	task := e.awaitClaim(t, id, "a", time.Hour)
	expect(t, task.GetStatus() == taskClaimed && task.GetAttempts() == 1 && task.GetLeaseOwner() == "a" && task.GetLeaseExpiresAtMs() > 0,
		"the claimed task is %v, want CLAIMED by a with 1 attempt", task)
	expect(t, len(e.claimTasks(t, id, "b", time.Hour)) == 0, "a second claimer gets the task")
	done, _ := e.Client.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: task.GetTaskId(), Owner: "a"})
	expect(t, done.GetTask().GetStatus() == taskDone && done.GetTask().GetLeaseOwner() == "" && done.GetTask().GetLeaseExpiresAtMs() == 0,
		"the completed task is %v, want DONE without a lease", done.GetTask())
	_, err := e.Try.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: task.GetTaskId(), Owner: "a"})
	expectStatus(t, "completing the task again", err, codes.NotFound, "")
	expect(t, e.oneTask(t, id).GetStatus() == taskDone, "the task is listed as %v", e.oneTask(t, id))
}

func taskStaleClaim(t T, e *Env) {
	ns := e.Name("ns")
	id := e.react(t, e.onValues("r", ns))
	e.change(t, ns, "k", 1)
	e.awaitClaim(t, id, "a", time.Millisecond)
	task := e.awaitClaim(t, id, "b", time.Hour)
	_, err := e.Try.NackTask(t.Context(), &tapepb.NackTaskRequest{TaskId: task.GetTaskId(), Owner: "a", Error: "late", Permanent: true})
	expectStatus(t, "the former owner's nack", err, codes.NotFound, "")
	_, err = e.Try.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: task.GetTaskId(), Owner: "a"})
	expectStatus(t, "the former owner's completion", err, codes.NotFound, "")
	now := e.oneTask(t, id)
	expect(t, now.GetStatus() == taskClaimed && now.GetLeaseOwner() == "b" && now.GetAttempts() == task.GetAttempts() && now.GetLastError() == "",
		"after the former owner's calls the task is %v, want b's claim as it was", now)
	done, _ := e.Client.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: task.GetTaskId(), Owner: "b"})
	expect(t, done.GetTask().GetStatus() == taskDone, "the completed task is %v", done.GetTask())
}

func taskDeadLetters(t T, e *Env) {
	ns := e.Name("ns")
	r := e.onValues("r", ns)
	r.DlqAfterN, r.RetryBackoffMs = 2, 10
	id := e.react(t, r)
	e.change(t, ns, "k", 1)
	for n, want := range []tapepb.TaskStatus{taskPending, taskDLQ} {
		task := e.awaitClaim(t, id, "a", time.Hour)
		nacked, _ := e.Client.NackTask(t.Context(), &tapepb.NackTaskRequest{TaskId: task.GetTaskId(), Owner: "a", Error: fmt.Sprintf("failure %d", n)})
		got := nacked.GetTask()
		expect(t, got.GetStatus() == want && got.GetAttempts() == int32(n+1) && got.GetLastError() == fmt.Sprintf("failure %d", n) && got.GetLeaseOwner() == "",
			"after failure %d the task is %v, want %v", n, got, want)
	}
	expect(t, len(e.claimTasks(t, id, "a", time.Hour)) == 0, "a task in the DLQ is claimed")

	permanent := e.react(t, e.onValues("permanent", ns))
	e.change(t, ns, "k", 2)
	task := e.awaitClaim(t, permanent, "a", time.Hour)
	nacked, _ := e.Client.NackTask(t.Context(), &tapepb.NackTaskRequest{TaskId: task.GetTaskId(), Owner: "a", Permanent: true})
	expect(t, nacked.GetTask().GetStatus() == taskDLQ, "after a failure for good the task is %v", nacked.GetTask())
}

func taskDebounce(t T, e *Env) {
	ns := e.Name("ns")
	debounced := func(name string, d time.Duration) string {
		r := e.onValues(name, ns)
		r.SubjectPattern, r.DebounceMs = "/tape/value/changed/"+ns+"/"+name, int32(d.Milliseconds())
		return e.react(t, r)
	}
	// An hour, because a slow machine can outlast 100 ms.
	long := debounced("long", time.Hour)
	e.change(t, ns, "long", 1)
	first := e.awaitTasks(t, long, 1)[0]
	e.change(t, ns, "long", 2)
	until(t, "the task has the later entry", func() bool { return e.tasks(t, long)[0].GetSourceGlobalSeq() > first.GetSourceGlobalSeq() })
	now := e.oneTask(t, long)
	expect(t, now.GetTaskId() == first.GetTaskId() && now.GetCreatedAtMs() == first.GetCreatedAtMs() && now.GetStatus() == taskPending &&
		now.GetPayloadJson() != first.GetPayloadJson(), "after a second match the task is %v, was %v", now, first)

	// The same reaction while its task is claimed: the next match makes a new task.
	claimed := e.awaitClaim(t, long, "a", time.Hour)
	e.change(t, ns, "long", 3)
	tasks := e.awaitTasks(t, long, 2)
	expect(t, len(tasks) == 2 && tasks[0].GetTaskId() == claimed.GetTaskId() && tasks[0].GetSourceGlobalSeq() == now.GetSourceGlobalSeq() && tasks[1].GetStatus() == taskPending,
		"after a match beside a claimed task the tasks are %v, want it and another one", tasks)

	short := debounced("short", 50*time.Millisecond)
	e.change(t, ns, "short", 1)
	e.awaitTasks(t, short, 1)
	seen := time.Now()
	until(t, "150 ms later", func() bool { return time.Since(seen) > 150*time.Millisecond })
	e.change(t, ns, "short", 2)
	tasks = e.awaitTasks(t, short, 2)
	expect(t, len(tasks) == 2, "matches 150 ms apart with 50 ms of debounce have the tasks %v, want two", tasks)
}

// pendingTaskStays is the part of check 70 that needs a task: a call without an owner changes
// nothing, and an unclaimed task cannot be completed.
func (e *Env) pendingTaskStays(t T) {
	t.Helper()
	ns := e.Name("ns")
	id := e.react(t, e.onValues("owners", ns))
	e.change(t, ns, "k", 1)
	before := e.awaitTasks(t, id, 1)[0]
	_, err := e.Bare.ClaimTasks(t.Context(), &tapepb.ClaimTasksRequest{ReactionId: id, Shard: -1})
	expectStatus(t, "ClaimTasks of a task without an owner", err, codes.Internal, "owner is required")
	_, err = e.Bare.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: before.GetTaskId()})
	expectStatus(t, "CompleteTask of a task without an owner", err, codes.Internal, "owner is required")
	_, err = e.Bare.NackTask(t.Context(), &tapepb.NackTaskRequest{TaskId: before.GetTaskId(), Permanent: true})
	expectStatus(t, "NackTask of a task without an owner", err, codes.Internal, "owner is required")
	_, err = e.Bare.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: before.GetTaskId(), Owner: "w"})
	expectStatus(t, "CompleteTask of a PENDING task", err, codes.NotFound, "")
	expect(t, proto.Equal(e.oneTask(t, id), before), "the task is %v, was %v", e.oneTask(t, id), before)
}
