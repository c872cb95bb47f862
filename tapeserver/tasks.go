package tapeserver

import (
	"context"

	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func (s *service) ClaimTasks(ctx context.Context, req *tapepb.ClaimTasksRequest) (*tapepb.ClaimTasksResponse, error) {
	if err := refuseFence(ctx); err != nil {
		return nil, statusOf(err)
	}
	claimed, err := s.tape.ClaimTasks(ctx, tape.TaskClaim{
		Reaction: req.GetReactionId(), Shard: req.GetShard(), Owner: req.GetOwner(), Lease: durationOf(req.GetLeaseMs()),
		Max: limitOf(int64(req.GetMax())), Now: clockOf(req.GetNowMs()),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.ClaimTasksResponse{Tasks: taskList(claimed)}, nil
}

func (s *service) CompleteTask(ctx context.Context, req *tapepb.CompleteTaskRequest) (*tapepb.CompleteTaskResponse, error) {
	if err := refuseFence(ctx); err != nil {
		return nil, statusOf(err)
	}
	k, err := s.tape.CompleteTask(ctx, req.GetTaskId(), req.GetOwner())
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.CompleteTaskResponse{Task: task(k)}, nil
}

func (s *service) NackTask(ctx context.Context, req *tapepb.NackTaskRequest) (*tapepb.NackTaskResponse, error) {
	if err := refuseFence(ctx); err != nil {
		return nil, statusOf(err)
	}
	k, err := s.tape.NackTask(ctx, req.GetTaskId(), req.GetOwner(), req.GetError(), req.GetPermanent())
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.NackTaskResponse{Task: task(k)}, nil
}

func (s *service) ListTasks(ctx context.Context, req *tapepb.ListTasksRequest) (*tapepb.ListTasksResponse, error) {
	listed, err := s.tape.ListTasks(ctx, req.GetReactionId(), tape.TaskStatus(req.GetStatus()), limitOf(int64(req.GetLimit())))
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.ListTasksResponse{Tasks: taskList(listed)}, nil
}

func taskList(all []tape.Task) []*tapepb.Task {
	list := make([]*tapepb.Task, len(all))
	for i, k := range all {
		list[i] = task(k)
	}
	return list
}

func task(k tape.Task) *tapepb.Task {
	return &tapepb.Task{
		TaskId: k.ID, ReactionId: k.Reaction, Shard: k.Shard, SourceRunId: string(k.SourceRun), SourceGlobalSeq: int64(k.Source),
		Subject: k.Subject, PayloadJson: k.Payload, Status: tapepb.TaskStatus(k.Status), Attempts: k.Attempts,
		NextAttemptAtMs: millis(k.NextAttempt), LeaseOwner: k.LeaseOwner, LeaseExpiresAtMs: millis(k.LeaseExpires),
		LastError: k.LastError, CreatedAtMs: millis(k.CreatedAt),
	}
}
