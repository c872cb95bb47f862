package tapeserver

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func (s *service) SetBudget(ctx context.Context, req *tapepb.SetBudgetRequest) (*tapepb.BudgetState, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := fenceOf(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	b, err := s.tape.SetBudget(ctx, tape.BudgetCaps{Run: id, USD: req.GetUsdCap(), Tokens: req.GetTokenCap(), Fence: fence})
	if err != nil {
		return nil, statusOf(err)
	}
	return budgetState(b), nil
}

func (s *service) AdmitBudget(ctx context.Context, req *tapepb.AdmitBudgetRequest) (*tapepb.AdmitBudgetResponse, error) {
	a, err := s.tape.AdmitBudget(ctx, runstore.RunID(req.GetRunId()), req.GetUsdEstimate(), req.GetTokenEstimate())
	if err != nil {
		return nil, statusOf(err)
	}
	return &tapepb.AdmitBudgetResponse{Admitted: a.Admitted, Reason: a.Reason, Budget: budgetState(a.Budget)}, nil
}

func (s *service) ChargeBudget(ctx context.Context, req *tapepb.ChargeBudgetRequest) (*tapepb.BudgetState, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := s.fence(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	b, err := s.tape.ChargeBudget(ctx, tape.BudgetCharge{Run: id, USD: req.GetUsd(), Tokens: req.GetTokens(), Fence: fence})
	if err != nil {
		return nil, statusOf(s.refused(ctx, fence, err))
	}
	s.wrote(fence)
	return budgetState(b), nil
}

func budgetState(b tape.Budget) *tapepb.BudgetState {
	return &tapepb.BudgetState{
		RunId: string(b.Run), UsdCap: b.USDCap, TokenCap: b.TokenCap, UsdSpent: b.USDSpent, TokensSpent: b.TokensSpent,
	}
}
