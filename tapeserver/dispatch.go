package tapeserver

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func (s *service) ListEffectsToDispatch(ctx context.Context, req *tapepb.ListEffectsToDispatchRequest) (*tapepb.ListEffectsToDispatchResponse, error) {
	q := tape.DispatchQuery{Now: clockOf(req.GetNowMs()), Limit: limitOf(req.GetLimit()), Connector: req.GetConnector()}
	effects, next, err := listed(ctx, s, req.GetPageToken(), "effects to dispatch by "+q.Connector,
		func() ([]tape.Effect, error) { return s.tape.ListEffectsToDispatch(ctx, q) },
		func(p tape.Part) ([]tape.Effect, string, error) { return p.ListEffectsToDispatch(ctx, q) })
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.ListEffectsToDispatchResponse{NextPageToken: next}
	for _, e := range effects {
		response.Effects = append(response.Effects, effectRecord(e))
	}
	return response, nil
}

func (s *service) ClaimEffectDispatch(ctx context.Context, req *tapepb.ClaimEffectDispatchRequest) (*tapepb.ClaimEffectDispatchResponse, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	e, acquired, found, err := s.tape.ClaimEffectDispatch(ctx, id, req.GetIdempotencyKey(), tape.ClaimRequest{
		Claimer: req.GetClaimer(), TTL: s.leaseTTL(req.GetLeaseTtlMs(), "outbox"), Fence: fence,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.ClaimEffectDispatchResponse{Acquired: acquired}
	if found {
		response.Effect = effectRecord(e)
	}
	if acquired {
		response.Generation = e.Claims
	}
	return response, nil
}

func (s *service) RecordDispatchAttempt(ctx context.Context, req *tapepb.RecordDispatchAttemptRequest) (*tapepb.EffectRecord, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	e, err := s.tape.RecordDispatchAttempt(ctx, tape.DispatchReport{
		Run: id, Key: req.GetIdempotencyKey(), Claim: req.GetClaimGeneration(),
		Error: req.GetError(), Next: clockOf(req.GetNextDispatchAtMs()), Fence: fence,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return effectRecord(e), nil
}

func (s *service) RecordExternalObservation(ctx context.Context, req *tapepb.RecordExternalObservationRequest) (*tapepb.EffectRecord, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	e, err := s.tape.RecordExternalObservation(ctx, tape.Observation{
		Run: id, Key: req.GetIdempotencyKey(), Resolution: tape.Resolution(req.GetResolution()),
		ExternalRef: req.GetExternalRef(), Response: req.GetResponseJson(), Error: req.GetErrorJson(),
		CompensateKind: req.GetCompensateOnDuplicateKind(), Fence: fence,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return effectRecord(e), nil
}
