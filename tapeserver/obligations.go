package tapeserver

import (
	"context"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func (s *service) RegisterCompensation(ctx context.Context, req *tapepb.RegisterCompensationRequest) (*tapepb.ObligationRecord, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := s.fence(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	o, err := s.tape.RegisterCompensation(ctx, tape.Compensation{
		Run: id, EffectKey: req.GetEffectKey(), Kind: req.GetKind(), Payload: req.GetPayloadJson(),
		Compensator: req.GetCompensatorRef(), MaxAttempts: req.GetMaxAttempts(), Fence: fence,
	})
	if err != nil {
		return nil, statusOf(s.refused(ctx, fence, err))
	}
	s.wrote(fence)
	return obligationRecord(o), nil
}

func (s *service) ListObligations(ctx context.Context, req *tapepb.ListObligationsRequest) (*tapepb.ListObligationsResponse, error) {
	obligations, err := s.tape.ListObligations(ctx, tape.ObligationQuery{
		Run: runstore.RunID(req.GetRunId()), Unresolved: req.GetOnlyUnresolved(),
		Status: tape.ObligationStatus(req.GetStatusFilter()),
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.ListObligationsResponse{Obligations: obligationRecords(obligations)}, nil
}

func (s *service) ListUnresolvedObligations(ctx context.Context, req *tapepb.ListUnresolvedObligationsRequest) (*tapepb.ListUnresolvedObligationsResponse, error) {
	q := tape.UnresolvedQuery{
		Now: clockOf(req.GetNowMs()), Limit: limitOf(int64(req.GetLimit())),
		Pending: req.GetIncludePending(), Stuck: req.GetIncludeStuck(), CommittedExpired: req.GetIncludeCommittedExpired(),
	}
	list := fmt.Sprint("obligations ", q.Pending, q.Stuck, q.CommittedExpired)
	obligations, next, err := listed(ctx, s, req.GetPageToken(), list,
		func() ([]tape.Obligation, error) { return s.tape.ListUnresolvedObligations(ctx, q) },
		func(p tape.Part) ([]tape.Obligation, string, error) { return p.ListUnresolvedObligations(ctx, q) })
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.ListUnresolvedObligationsResponse{Obligations: obligationRecords(obligations), NextPageToken: next}, nil
}

func (s *service) ClaimObligation(ctx context.Context, req *tapepb.ClaimObligationRequest) (*tapepb.ClaimObligationResponse, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	claim, err := s.tape.ClaimObligation(ctx, tape.ObligationClaimRequest{
		Run: id, Seq: runstore.Seq(req.GetObligationSeq()), Claimer: req.GetClaimer(),
		TTL: s.leaseTTL(req.GetLeaseTtlMs(), "compensation"), Fence: fence,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.ClaimObligationResponse{Acquired: claim.Acquired}
	if claim.Found {
		response.Obligation = obligationRecord(claim.Obligation)
	}
	if claim.Acquired {
		response.Generation = claim.Obligation.Claims
	}
	return response, nil
}

func (s *service) RecordObligationAttempt(ctx context.Context, req *tapepb.RecordObligationAttemptRequest) (*tapepb.ObligationRecord, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	attempt := tape.ObligationAttempt{
		Run: id, Seq: runstore.Seq(req.GetObligationSeq()), Error: req.GetError(),
		Generation: req.GetClaimGeneration(), Fence: fence,
	}
	if ms := req.GetNextAttemptAtMs(); ms > 0 {
		attempt.Next = time.UnixMilli(ms)
	}
	o, err := s.tape.RecordObligationAttempt(ctx, attempt)
	if err != nil {
		return nil, statusOf(err)
	}
	return obligationRecord(o), nil
}

func (s *service) ResolveObligation(ctx context.Context, req *tapepb.ResolveObligationRequest) (*tapepb.ObligationRecord, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	o, err := s.tape.ResolveObligation(ctx, tape.ObligationResult{
		Run: id, Seq: runstore.Seq(req.GetObligationSeq()), Status: tape.ObligationStatus(req.GetStatus()),
		Result: req.GetResultJson(), Generation: req.GetClaimGeneration(), Fence: fence,
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return obligationRecord(o), nil
}

func obligationRecord(o tape.Obligation) *tapepb.ObligationRecord {
	return &tapepb.ObligationRecord{
		RunId: string(o.Run), Seq: int64(o.Seq), EffectKey: o.EffectKey, Kind: o.Kind, PayloadJson: o.Payload,
		Status: tapepb.ObligationStatus(o.Status), TsMs: millis(o.Time), CompensatorRef: o.Compensator,
		Attempts: o.Attempts, MaxAttempts: o.MaxAttempts, NextAttemptAtMs: millis(o.NextAttempt),
		LastError: o.LastError, ClaimedBy: o.ClaimedBy, ClaimExpiresAtMs: millis(o.ClaimExpires),
		ResultJson: o.Result, ClaimGeneration: o.Claims,
	}
}

func obligationRecords(obligations []tape.Obligation) []*tapepb.ObligationRecord {
	records := make([]*tapepb.ObligationRecord, 0, len(obligations))
	for _, o := range obligations {
		records = append(records, obligationRecord(o))
	}
	return records
}
