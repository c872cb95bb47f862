package cuts_test

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// taskEntries are about the reaction "r" and its task e.task.
var taskEntries = []entry{
	{rpc: "RegisterReaction", what: "new", do: registerReaction("r", false), rival: unfenced(registerReaction("r", false))},
	{rpc: "RegisterReaction", what: "changed", setup: reaction, do: registerReaction("r", false), rival: unfenced(registerReaction("r", false))},
	{rpc: "RegisterReaction", what: "from the end of the feed", setup: begin, do: registerReaction("r", true), rival: unfenced(registerReaction("r", false))},
	{rpc: "RegisterReaction", what: "no id", do: registerReaction("", false), rival: unfenced(registerReaction("", false)),
		again: "the server makes up an id for each request"},
	{rpc: "DeregisterReaction", setup: reaction, do: deregisterReaction, rival: unfenced(registerReaction("r", false))},
	{rpc: "ClaimTasks", setup: task, do: claimTasks, rival: unfenced(claimTasks), answers: tasksGone},
	{rpc: "ClaimTasks", what: "lapsed lease", setup: func(e *env) { claimedTask(e); e.advance(time.Hour) },
		do: claimTasks, rival: unfenced(claimTasks), answers: tasksGone},
	{rpc: "CompleteTask", setup: claimedTask, do: completeTask, answers: noSuchTask,
		rival: func(e *env) (proto.Message, error) { return completeTask(e, reclaimTask(e)) }},
	{rpc: "NackTask", setup: claimedTask, do: nackTask(false), answers: noSuchTask,
		rival: func(e *env) (proto.Message, error) { return nackTask(false)(e, reclaimTask(e)) }},
	{rpc: "NackTask", what: "permanent", setup: claimedTask, do: nackTask(true), answers: noSuchTask,
		rival: func(e *env) (proto.Message, error) { return completeTask(e, reclaimTask(e)) }},
}

const (
	tasksGone  = "without the tasks that the first has claimed, until the lease is over"
	noSuchTask = "NO_SUCH_TASK: the first has ended the claim"
)

func registerReaction(id string, fromHead bool) func(*env, caller) (proto.Message, error) {
	return func(_ *env, by caller) (proto.Message, error) {
		return by.RegisterReaction(by, &tapepb.Reaction{
			ReactionId: id, Name: by.name, SubjectPattern: "/tape/**", HandlerKind: tapepb.HandlerKind_HANDLER_KIND_TASK, BootstrapFromHead: fromHead})
	}
}

func reaction(e *env) {
	must[proto.Message](e)(registerReaction("r", false)(e, caller{e.t.Context(), e.clean, "before", nil}))
}

func deregisterReaction(_ *env, by caller) (proto.Message, error) {
	return by.DeregisterReaction(by, &tapepb.DeregisterReactionRequest{ReactionId: "r"})
}

// task creates the task, as a matcher does.
func task(e *env) {
	reaction(e)
	ctx := e.t.Context()
	var r tape.Reaction
	for listed, err := range e.tape.Reactions(ctx) {
		r = must[tape.Reaction](e)(listed, err)
	}
	run := must[runstore.RunID](e)(e.tape.OpenShard(ctx, r, 0))
	g := must[runstore.Granted](e)(e.store.AcquireLease(ctx, runstore.AcquireRequest{
		Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "matcher", TTL: time.Minute, Grant: runstore.NewGrantID()}}))
	match := tape.Entry{Run: "i", Position: 7, Subject: "/tape/run", Payload: "{}"}
	must[tape.Cursor](e)(e.tape.Advance(ctx, g.Fence(), r, must[tape.Cursor](e)(e.tape.ShardCursor(ctx, run)), []tape.Entry{match}, 9))
	listed := must[[]tape.Task](e)(e.tape.ListTasks(ctx, "r", tape.TaskUnspecified, 0))
	e.task = listed[0].ID
}

func claimedTask(e *env) {
	task(e)
	must[proto.Message](e)(claimTasks(e, e.first(e.clean)))
}

// reclaimTask returns a worker that has claimed the task after the lease is over.
func reclaimTask(e *env) caller {
	e.advance(time.Hour)
	must[proto.Message](e)(claimTasks(e, e.second()))
	return e.second()
}

func claimTasks(_ *env, by caller) (proto.Message, error) {
	return by.ClaimTasks(by, &tapepb.ClaimTasksRequest{ReactionId: "r", Shard: -1, Owner: by.name})
}

func completeTask(e *env, by caller) (proto.Message, error) {
	return by.CompleteTask(by, &tapepb.CompleteTaskRequest{TaskId: e.task, Owner: by.name})
}

func nackTask(permanent bool) func(*env, caller) (proto.Message, error) {
	return func(e *env, by caller) (proto.Message, error) {
		return by.NackTask(by, &tapepb.NackTaskRequest{TaskId: e.task, Owner: by.name, Error: by.name, Permanent: permanent})
	}
}
