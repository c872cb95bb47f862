package protocol

import (
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func reactionCases() []Case {
	needs := []Need{NeedReactions}
	return []Case{
		{Group: "reactions", Check: 67, Name: "registered-twice-is-one", Needs: needs, Run: reactionUpsert,
			Doc: "A reaction that is registered twice is listed once, with the later fields and the first creation time; replies never contain bootstrap_from_head."},
		{Group: "reactions", Check: 68, Name: "listed-until-deregistered", Needs: needs, Run: reactionList,
			Doc: "ListReactions lists the live reactions, all or those of exactly one pattern; a deregistered reaction is not listed until it is registered again."},
	}
}

func taskCases() []Case {
	return []Case{
		{Group: "tasks", Check: 70, Name: "owner-required", Needs: []Need{NeedReactions, NeedValues}, Run: taskOwner,
			Doc: "ClaimTasks, CompleteTask and NackTask without an owner are refused, and a report on a task that its owner has not claimed is NOT_FOUND."},
	}
}

// reaction returns a reaction of the case whose subjects no entry has.
func (e *Env) reaction(id, pattern string) *tapepb.Reaction {
	return &tapepb.Reaction{
		ReactionId: e.Name(id), SubjectPattern: "/" + e.Name(pattern) + "/**", HandlerKind: tapepb.HandlerKind_HANDLER_KIND_TASK, BootstrapFromHead: true,
	}
}

// register registers a reaction until the end of the case, because a live reaction costs its server
// work.
func (e *Env) register(t T, r *tapepb.Reaction) *tapepb.Reaction {
	t.Helper()
	stored, _ := e.Client.RegisterReaction(t.Context(), r)
	t.Cleanup(func() { e.deregister(stored.GetReactionId()) })
	return stored
}

// reactions returns those of the case's reactions that ListReactions returns for a pattern.
func (e *Env) reactions(t T, pattern string, ids ...string) (listed []*tapepb.Reaction) {
	t.Helper()
	r, _ := e.Client.ListReactions(t.Context(), &tapepb.ListReactionsRequest{SubjectPattern: pattern})
	for _, r := range r.GetReactions() {
		if slices.ContainsFunc(ids, func(id string) bool { return e.Name(id) == r.GetReactionId() }) {
			listed = append(listed, r)
		}
	}
	return listed
}

func reactionUpsert(t T, e *Env) {
	first := e.register(t, e.reaction("r", "a"))
	expect(t, first.GetReactionId() == e.Name("r") && !first.GetBootstrapFromHead() && !first.GetDeleted() && first.GetCreatedAtMs() > 0, "RegisterReaction = %v", first)
	expect(t, first.GetMaxConcurrency() == 1 && first.GetRetryMax() == 5 && first.GetRetryBackoffMs() == 1000 && first.GetDlqAfterN() == 5 && first.GetNumShards() == 1,
		"RegisterReaction = %v, want the defaults", first)
	changed := e.reaction("r", "b")
	changed.Name, changed.PredicateCel, changed.PublishTarget, changed.AgentApp = "new", "no predicate (", "topic", "app"
	changed.HandlerKind, changed.MaxConcurrency, changed.RateLimitPerS, changed.DebounceMs = tapepb.HandlerKind_HANDLER_KIND_PUBLISH, 2, 3, 4
	changed.RetryMax, changed.RetryBackoffMs, changed.DlqAfterN, changed.NumShards, changed.Deleted = 5, 6, 7, 1, true
	second := e.register(t, changed)
	want := proto.CloneOf(changed)
	want.CreatedAtMs, want.Deleted, want.BootstrapFromHead = first.GetCreatedAtMs(), false, false
	expect(t, proto.Equal(second, want), "RegisterReaction again = %v, want %v", second, want)
	listed := e.reactions(t, "", "r")
	expect(t, len(listed) == 1 && proto.Equal(listed[0], want), "ListReactions = %v, want %v once", listed, want)
	made := e.reaction("", "a")
	made.ReactionId = ""
	got := e.register(t, made)
	expect(t, got.GetReactionId() != "", "a reaction without an id is registered as %v", got)
}

func reactionList(t T, e *Env) {
	for _, r := range [][2]string{{"1", "a"}, {"2", "b"}, {"3", "a"}} {
		e.register(t, e.reaction(r[0], r[1]))
	}
	ids := func(pattern string) (all []string) {
		t.Helper()
		for _, r := range e.reactions(t, pattern, "1", "2", "3") {
			all = append(all, r.GetReactionId())
		}
		slices.Sort(all) // reactions of the same millisecond have no defined order
		return all
	}
	wantIDs := func(pattern string, want ...string) {
		t.Helper()
		for i := range want {
			want[i] = e.Name(want[i])
		}
		got := ids(pattern)
		expect(t, slices.Equal(got, want), "ListReactions(%q) = %q, want %q", pattern, got, want)
	}
	deregister := func(id string, want bool) {
		t.Helper()
		r, _ := e.Client.DeregisterReaction(t.Context(), &tapepb.DeregisterReactionRequest{ReactionId: e.Name(id)})
		expect(t, r.GetDeregistered() == want, "DeregisterReaction(%s) = %v, want %t", id, r, want)
	}
	a := e.reaction("1", "a").GetSubjectPattern()
	wantIDs("", "1", "2", "3")
	wantIDs(a, "1", "3")
	wantIDs("/" + e.Name("a") + "/x") // equality only, not a pattern match
	deregister("1", true)
	deregister("never", false)
	wantIDs("", "2", "3")
	wantIDs(a, "3")
	e.register(t, e.reaction("1", "a"))
	wantIDs(a, "1", "3")
}

func taskOwner(t T, e *Env) {
	e.register(t, e.reaction("r", "a"))
	_, err := e.Bare.ClaimTasks(t.Context(), &tapepb.ClaimTasksRequest{ReactionId: e.Name("r"), Shard: -1})
	expectStatus(t, "ClaimTasks without an owner", err, codes.Internal, "claim_tasks: owner is required")
	_, err = e.Bare.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: "none"})
	expectStatus(t, "CompleteTask without an owner", err, codes.Internal, "complete_task: owner is required")
	_, err = e.Bare.NackTask(t.Context(), &tapepb.NackTaskRequest{TaskId: "none"})
	expectStatus(t, "NackTask without an owner", err, codes.Internal, "nack_task: owner is required")
	_, err = e.Bare.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: "none", Owner: "w"})
	expectStatus(t, "CompleteTask of no task", err, codes.NotFound, "no such task or lease mismatch")
	_, err = e.Bare.NackTask(t.Context(), &tapepb.NackTaskRequest{TaskId: "none", Owner: "w"})
	expectStatus(t, "NackTask of no task", err, codes.NotFound, "no such task or lease mismatch")
	e.pendingTaskStays(t)
	claimed, _ := e.Client.ClaimTasks(t.Context(), &tapepb.ClaimTasksRequest{ReactionId: e.Name("r"), Shard: -1, Owner: "w"})
	listed, _ := e.Client.ListTasks(t.Context(), &tapepb.ListTasksRequest{ReactionId: e.Name("r")})
	expect(t, len(claimed.GetTasks()) == 0 && len(listed.GetTasks()) == 0, "a reaction without matches has the tasks %v and %v", claimed, listed)
}
