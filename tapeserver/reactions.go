package tapeserver

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func (s *service) RegisterReaction(ctx context.Context, req *tapepb.Reaction) (*tapepb.Reaction, error) {
	if err := refuseFence(ctx); err != nil {
		return nil, statusOf(err)
	}
	r, err := s.tape.RegisterReaction(ctx, tape.Reaction{
		ID: req.GetReactionId(), Name: req.GetName(), Pattern: req.GetSubjectPattern(), Predicate: req.GetPredicateCel(),
		Handler: tape.HandlerKind(req.GetHandlerKind()), AgentApp: req.GetAgentApp(), PublishTarget: req.GetPublishTarget(),
		MaxConcurrency: req.GetMaxConcurrency(), RateLimit: req.GetRateLimitPerS(), DebounceMS: req.GetDebounceMs(),
		RetryMax: req.GetRetryMax(), RetryBackoffMS: req.GetRetryBackoffMs(), DLQAfter: req.GetDlqAfterN(),
		Shards: req.GetNumShards(), CreatedAtMS: req.GetCreatedAtMs(),
	}, req.GetBootstrapFromHead())
	if runstore.OutcomeOf(err) != runstore.NotApplied {
		s.reactionsChanged()
	}
	if err != nil {
		return nil, statusOf(err)
	}
	return reaction(r), nil
}

func (s *service) DeregisterReaction(ctx context.Context, req *tapepb.DeregisterReactionRequest) (*tapepb.DeregisterReactionResponse, error) {
	if err := refuseFence(ctx); err != nil {
		return nil, statusOf(err)
	}
	existed, err := s.tape.DeregisterReaction(ctx, req.GetReactionId())
	if runstore.OutcomeOf(err) != runstore.NotApplied {
		s.reactionsChanged()
	}
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.DeregisterReactionResponse{Deregistered: existed}, nil
}

func (s *service) ListReactions(ctx context.Context, req *tapepb.ListReactionsRequest) (*tapepb.ListReactionsResponse, error) {
	listed, err := s.tape.ListReactions(ctx, req.GetSubjectPattern())
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.ListReactionsResponse{}
	for _, r := range listed {
		response.Reactions = append(response.Reactions, reaction(r))
	}
	return response, nil
}

func reaction(r tape.Reaction) *tapepb.Reaction {
	return &tapepb.Reaction{
		ReactionId: r.ID, Name: r.Name, SubjectPattern: r.Pattern, PredicateCel: r.Predicate,
		HandlerKind: tapepb.HandlerKind(r.Handler), AgentApp: r.AgentApp, PublishTarget: r.PublishTarget,
		MaxConcurrency: r.MaxConcurrency, RateLimitPerS: r.RateLimit, DebounceMs: r.DebounceMS,
		RetryMax: r.RetryMax, RetryBackoffMs: r.RetryBackoffMS, DlqAfterN: r.DLQAfter,
		NumShards: r.Shards, CreatedAtMs: r.CreatedAtMS,
	}
}
