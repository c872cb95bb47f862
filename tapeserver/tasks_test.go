package tapeserver_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func register(t *testing.T, c tapepb.TapeClient, r *tapepb.Reaction) *tapepb.Reaction {
	t.Helper()
	stored, err := c.RegisterReaction(t.Context(), r)
	if err != nil {
		t.Fatalf("RegisterReaction: %v", err)
	}
	return stored
}

// advance gives the only shard of a reaction matches, as a matcher does.
func advance(t *testing.T, s runstore.RunStore, id string, matches ...tape.Entry) {
	t.Helper()
	tp, ctx := tape.New(s, nil), t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for r, err := range tp.Reactions(ctx) {
		must(err)
		if r.ID != id {
			continue
		}
		run, err := tp.OpenShard(ctx, r, 0)
		must(err)
		g, err := s.AcquireLease(ctx, runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{Owner: "m", TTL: time.Minute}, Preempt: "a test"})
		must(err)
		at, err := tp.ShardCursor(ctx, run)
		must(err)
		for to := matches[len(matches)-1].Position; at.Position < to; must(err) {
			at, err = tp.Advance(ctx, g.Fence(), r, at, matches, to)
		}
	}
}

func TestReactions(t *testing.T) { // 66, 67, 68
	t.Parallel()
	c := client(t)
	begin(t, c, "i")
	req := &tapepb.Reaction{
		ReactionId: "r", Name: "n", SubjectPattern: "/a/**", PredicateCel: "(", HandlerKind: 9, AgentApp: "app", PublishTarget: "topic",
		MaxConcurrency: 2, RateLimitPerS: -3, DebounceMs: -4, RetryMax: 5, RetryBackoffMs: 6, DlqAfterN: 7, NumShards: 8,
		CreatedAtMs: 9, Deleted: true, BootstrapFromHead: true,
	}
	want := proto.CloneOf(req)
	want.Deleted, want.BootstrapFromHead = false, false
	if got := register(t, c, req); !proto.Equal(got, want) {
		t.Errorf("RegisterReaction = %v, want %v", got, want)
	}
	req.CreatedAtMs = 0
	if got := register(t, c, req); !proto.Equal(got, want) {
		t.Errorf("RegisterReaction again = %v, want %v", got, want)
	}
	listed, err := c.ListReactions(t.Context(), &tapepb.ListReactionsRequest{SubjectPattern: "/a/**"})
	if err != nil || len(listed.GetReactions()) != 1 || !proto.Equal(listed.GetReactions()[0], want) {
		t.Errorf("ListReactions = %v, %v, want %v", listed, err, want)
	}
	if got := register(t, c, &tapepb.Reaction{}); len(got.GetReactionId()) != 36 || !fromNow(got.GetCreatedAtMs(), 0) || got.GetNumShards() != 1 {
		t.Errorf("a reaction without anything is %v", got)
	}
	req.NumShards = 3
	_, err = c.RegisterReaction(t.Context(), req)
	wantStatus(t, "another number of shards", err, codes.InvalidArgument, "num_shards: is 3, and the reaction was registered with 8")
	_, err = c.RegisterReaction(t.Context(), &tapepb.Reaction{PredicateCel: strings.Repeat("x", 5000)})
	wantTooLarge(t, "RegisterReaction", err, "predicate_cel", "4096")
	for id, want := range map[string]bool{"r": true, "never": false} {
		if got, err := c.DeregisterReaction(t.Context(), &tapepb.DeregisterReactionRequest{ReactionId: id}); err != nil || got.GetDeregistered() != want {
			t.Errorf("DeregisterReaction(%s) = %v, %v", id, got, err)
		}
	}
}

func TestTasks(t *testing.T) { // 69 to 72
	t.Parallel()
	s := memory.New(nil).Open()
	c, _ := start(t, s, nil)
	register(t, c, &tapepb.Reaction{ReactionId: "r", HandlerKind: tapepb.HandlerKind_HANDLER_KIND_PUBLISH, DlqAfterN: 2, RetryBackoffMs: 1})
	advance(t, s, "r", tape.Entry{Run: "i", Position: 4, Subject: "/a", Payload: "{}"})
	list := func(status tapepb.TaskStatus) []*tapepb.Task {
		t.Helper()
		l, err := c.ListTasks(t.Context(), &tapepb.ListTasksRequest{ReactionId: "r", Status: status})
		if err != nil {
			t.Fatal(err)
		}
		return l.GetTasks()
	}
	claim := func(req *tapepb.ClaimTasksRequest) []*tapepb.Task {
		t.Helper()
		req.ReactionId = "r"
		l, err := c.ClaimTasks(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return l.GetTasks()
	}
	pending := list(0)
	want := &tapepb.Task{
		TaskId: pending[0].GetTaskId(), ReactionId: "r", SourceRunId: "i", SourceGlobalSeq: 4, Subject: "/a", PayloadJson: "{}",
		Status: tapepb.TaskStatus_TASK_STATUS_PENDING, CreatedAtMs: pending[0].GetCreatedAtMs(),
	}
	if len(pending) != 1 || !proto.Equal(pending[0], want) || !fromNow(want.GetCreatedAtMs(), 0) {
		t.Errorf("listed %v, want %v", pending, want)
	}
	claimed := claim(&tapepb.ClaimTasksRequest{Owner: "w", LeaseMs: 3_600_000})
	want.Status, want.Attempts, want.LeaseOwner = tapepb.TaskStatus_TASK_STATUS_CLAIMED, 1, "w"
	want.LeaseExpiresAtMs = claimed[0].GetLeaseExpiresAtMs()
	if !proto.Equal(claimed[0], want) || !fromNow(want.GetLeaseExpiresAtMs(), time.Hour) {
		t.Errorf("claimed %v, want %v", claimed, want)
	}
	if other := claim(&tapepb.ClaimTasksRequest{Owner: "v", Shard: -1}); len(other) != 0 {
		t.Errorf("a second claimer gets %v", other)
	}
	failed, err := c.NackTask(t.Context(), &tapepb.NackTaskRequest{TaskId: want.GetTaskId(), Owner: "w", Error: "no"})
	want.Status, want.LeaseOwner, want.LeaseExpiresAtMs, want.LastError = tapepb.TaskStatus_TASK_STATUS_PENDING, "", 0, "no"
	want.NextAttemptAtMs = failed.GetTask().GetNextAttemptAtMs()
	if err != nil || !proto.Equal(failed.GetTask(), want) || want.GetNextAttemptAtMs() == 0 {
		t.Errorf("NackTask = %v, %v, want %v", failed, err, want)
	}
	if again := claim(&tapepb.ClaimTasksRequest{Owner: "w", NowMs: future}); len(again) != 1 || again[0].GetLeaseExpiresAtMs() != future+60_000 {
		t.Errorf("claimed in the future: %v", again)
	}
	failed, err = c.NackTask(t.Context(), &tapepb.NackTaskRequest{TaskId: want.GetTaskId(), Owner: "w"})
	if err != nil || failed.GetTask().GetStatus() != tapepb.TaskStatus_TASK_STATUS_DLQ {
		t.Errorf("the second NackTask = %v, %v", failed, err)
	}
	if dlq := list(tapepb.TaskStatus_TASK_STATUS_DLQ); len(dlq) != 1 || !proto.Equal(dlq[0], failed.GetTask()) {
		t.Errorf("listed %v, want %v", dlq, failed)
	}
	_, err = c.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: want.GetTaskId(), Owner: "w"})
	wantStatus(t, "CompleteTask", err, codes.NotFound, "no such task or lease mismatch")
	if got := infoOf(t, err).GetReason(); got != "NO_SUCH_TASK" {
		t.Errorf("the reason is %s", got)
	}
	_, err = c.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: want.GetTaskId()})
	wantStatus(t, "CompleteTask", err, codes.Internal, "tape store: complete_task: owner is required")
	_, err = c.ClaimTasks(t.Context(), &tapepb.ClaimTasksRequest{Owner: "w", LeaseMs: 1 << 62})
	wantStatus(t, "ClaimTasks", err, codes.InvalidArgument, "lease_ms")
	advance(t, s, "r", tape.Entry{Run: "i", Position: 5})
	k := claim(&tapepb.ClaimTasksRequest{Owner: "w"})[0]
	done, err := c.CompleteTask(t.Context(), &tapepb.CompleteTaskRequest{TaskId: k.GetTaskId(), Owner: "w"})
	if err != nil || done.GetTask().GetStatus() != tapepb.TaskStatus_TASK_STATUS_DONE {
		t.Errorf("CompleteTask = %v, %v", done, err)
	}
}

// A fence is refused where it would not be checked.
func TestReactionsTakeNoFence(t *testing.T) {
	t.Parallel()
	c := client(t)
	ctx := fenceHeaders(t.Context(), begin(t, c, "i").GetGrant())
	for name, do := range map[string]func() error{
		"RegisterReaction": func() error { _, err := c.RegisterReaction(ctx, &tapepb.Reaction{}); return err },
		"DeregisterReaction": func() error {
			_, err := c.DeregisterReaction(ctx, &tapepb.DeregisterReactionRequest{})
			return err
		},
		"ClaimTasks":   func() error { _, err := c.ClaimTasks(ctx, &tapepb.ClaimTasksRequest{Owner: "w"}); return err },
		"CompleteTask": func() error { _, err := c.CompleteTask(ctx, &tapepb.CompleteTaskRequest{Owner: "w"}); return err },
		"NackTask":     func() error { _, err := c.NackTask(ctx, &tapepb.NackTaskRequest{Owner: "w"}); return err },
	} {
		wantStatus(t, name, do(), codes.InvalidArgument, "take no fence")
	}
}

// The largest tasks and reactions reach a client of gRPC's default limits.
func TestListsOfTasksReachADefaultClient(t *testing.T) {
	t.Parallel()
	s := memory.New(nil).Open()
	c, _ := start(t, s, nil)
	register(t, c, &tapepb.Reaction{ReactionId: "r", HandlerKind: tapepb.HandlerKind_HANDLER_KIND_TASK})
	var all []tape.Entry
	for p := range runstore.Position(9) {
		all = append(all, tape.Entry{Run: "i", Position: p + 1, Payload: strings.Repeat("x", []int{tape.MaxTask, 1 << 20}[p%2])})
	}
	for p := range runstore.Position(600) {
		all = append(all, tape.Entry{Run: "i", Position: p + 10})
	}
	advance(t, s, "r", all...)
	claimed := 0
	for {
		l, err := c.ClaimTasks(t.Context(), &tapepb.ClaimTasksRequest{ReactionId: "r", Owner: strings.Repeat("\x01", tape.MaxClaimer), Max: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if len(l.GetTasks()) == 0 {
			break
		}
		claimed += len(l.GetTasks())
	}
	if claimed != len(all) {
		t.Errorf("%d of %d tasks were claimed", claimed, len(all))
	}
	for _, limit := range []int32{1 << 30, 3} {
		if l, err := c.ListTasks(t.Context(), &tapepb.ListTasksRequest{ReactionId: "r", Limit: limit}); err != nil || len(l.GetTasks()) < 3 {
			t.Errorf("ListTasks = %d tasks, %v", len(l.GetTasks()), err)
		}
	}
	for p := range 300 {
		register(t, c, &tapepb.Reaction{Name: strings.Repeat("x", 16_000), CreatedAtMs: int64(p + 1)})
	}
	if l, err := c.ListReactions(t.Context(), &tapepb.ListReactionsRequest{}); err != nil || len(l.GetReactions()) < 250 {
		t.Errorf("ListReactions = %d reactions, %v", len(l.GetReactions()), err)
	}
}
