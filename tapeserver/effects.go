package tapeserver

import (
	"context"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func (s *service) RecordDecision(ctx context.Context, req *tapepb.RecordDecisionRequest) (*tapepb.DecisionRecord, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := s.fence(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	d, err := s.tape.RecordDecision(ctx, id, tape.Decision{
		Index: req.GetDecisionIndex(), Model: req.GetModel(), Request: req.GetRequestJson(),
		Response: req.GetResponseJson(), Rationale: req.GetRationale(), PolicyVersion: req.GetPolicyVersion(),
	}, fence)
	if err != nil {
		return nil, statusOf(s.refused(ctx, fence, err))
	}
	s.wrote(fence)
	return decisionRecord(req.GetRunId(), d), nil
}

func (s *service) GetDecision(ctx context.Context, req *tapepb.GetDecisionRequest) (*tapepb.GetDecisionResponse, error) {
	d, found, err := s.tape.GetDecision(ctx, runstore.RunID(req.GetRunId()), req.GetDecisionIndex())
	if err != nil {
		return nil, statusOf(err)
	}
	if !found {
		return &tapepb.GetDecisionResponse{}, nil
	}
	return &tapepb.GetDecisionResponse{Found: true, Decision: decisionRecord(req.GetRunId(), d)}, nil
}

func (s *service) BeginEffect(ctx context.Context, req *tapepb.BeginEffectRequest) (*tapepb.BeginEffectResponse, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := s.fence(ctx, id, req)
	if err != nil {
		return nil, beginEffectStatus(err)
	}
	e, err := s.tape.BeginEffect(ctx, tape.BeginEffectRequest{
		Run: id, Decision: req.GetDecisionIndex(), Tool: req.GetToolName(), Call: req.GetCallIndex(),
		CustomKey: req.GetCustomKey(), Request: req.GetRequestJson(),
		Semantics: tape.EffectSemantics(req.GetSemantics()), Mode: tape.DispatchMode(req.GetDispatchMode()),
		BusinessKey: req.GetBusinessKey(), Connector: req.GetConnector(), Scope: req.GetScope(), Fence: fence,
	})
	if err == nil && e.Run != id {
		err = s.admitOther(ctx, e)
	}
	if err != nil {
		return nil, beginEffectStatus(s.refused(ctx, fence, err))
	}
	s.wrote(fence)
	return &tapepb.BeginEffectResponse{
		Seq: int64(e.Seq), IdempotencyKey: e.Key, Status: tapepb.EffectStatus(e.Status),
		ResponseJson: e.Response, ErrorJson: e.Error,
		RunId: string(e.Run), DispatchMode: tapepb.EffectDispatchMode(e.Mode),
	}, nil
}

func (s *service) CompleteEffect(ctx context.Context, req *tapepb.CompleteEffectRequest) (*tapepb.EffectRecord, error) {
	id := runstore.RunID(req.GetRunId())
	var e tape.Effect
	err := s.orFree(ctx, id, req, func(fence runstore.Fence) (err error) {
		e, err = s.tape.CompleteEffect(ctx, tape.OutcomeRequest{
			Run: id, Key: req.GetIdempotencyKey(), Status: tape.EffectStatus(req.GetStatus()),
			Response: req.GetResponseJson(), Error: req.GetErrorJson(), Claim: req.GetClaimGeneration(), Fence: fence,
		})
		if err == nil && e.Mode != tape.Outbox { // a dispatcher needs no authority
			s.wrote(fence)
		}
		return err
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return effectRecord(e), nil
}

func (s *service) ReconcileEffect(ctx context.Context, req *tapepb.ReconcileEffectRequest) (*tapepb.EffectRecord, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	e, err := s.tape.ReconcileEffect(ctx, tape.OutcomeRequest{
		Run: id, Key: req.GetIdempotencyKey(), Status: tape.EffectStatus(req.GetResolvedStatus()),
		Response: req.GetResponseJson(), Error: req.GetErrorJson(), Fence: fence,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return effectRecord(e), nil
}

func (s *service) GetEffect(ctx context.Context, req *tapepb.GetEffectRequest) (*tapepb.GetEffectResponse, error) {
	e, found, err := s.tape.GetEffect(ctx, runstore.RunID(req.GetRunId()), req.GetIdempotencyKey())
	if err != nil {
		return nil, statusOf(err)
	}
	if !found {
		return &tapepb.GetEffectResponse{}, nil
	}
	return &tapepb.GetEffectResponse{Found: true, Effect: effectRecord(e)}, nil
}

func (s *service) ListPendingEffects(ctx context.Context, req *tapepb.ListPendingEffectsRequest) (*tapepb.ListPendingEffectsResponse, error) {
	q := tape.PendingQuery{
		Limit: limitOf(req.GetLimit()), Pending: req.GetIncludePending(), Unknown: req.GetIncludeUnknown(),
	}
	if ms := req.GetOlderThanMs(); ms != 0 {
		q.OlderThan = time.UnixMilli(ms)
	}
	effects, next, err := listed(ctx, s, req.GetPageToken(), fmt.Sprint("pending effects ", q.Pending, q.Unknown),
		func() ([]tape.Effect, error) { return s.tape.ListPendingEffects(ctx, q) },
		func(p tape.Part) ([]tape.Effect, string, error) { return p.ListPendingEffects(ctx, q) })
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.ListPendingEffectsResponse{NextPageToken: next}
	for _, e := range effects {
		response.Effects = append(response.Effects, effectRecord(e))
	}
	return response, nil
}
