package protocol

import (
	"math"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func budgetCases() []Case {
	return []Case{
		{Group: "budgets", Check: 49, Name: "cap", Run: budgetCap,
			Doc: "AdmitBudget refuses a charge that would exceed a cap, with the reason; SetBudget keeps the spent totals."},
		{Group: "budgets", Check: 50, Name: "no-budget-no-cap", Run: noBudget,
			Doc: "Without a budget everything is admitted."},
	}
}

func (p *Process) admit(t T, run string, usd float64, tokens int64) *tapepb.AdmitBudgetResponse {
	t.Helper()
	r, _ := p.Client.AdmitBudget(t.Context(), &tapepb.AdmitBudgetRequest{RunId: run, UsdEstimate: usd, TokenEstimate: tokens})
	require(t, r.GetBudget() != nil && r.GetAdmitted() == (r.GetReason() == ""), "AdmitBudget = %v, want a budget, and a reason only with a refusal", r)
	return r
}

func budgetCap(t T, e *Env) {
	id := e.begin(t)
	_, _ = e.Client.SetBudget(t.Context(), &tapepb.SetBudgetRequest{RunId: id, UsdCap: 1, TokenCap: 100})
	expect(t, e.admit(t, id, 0.5, 0).GetAdmitted(), "0.5 of 1 is refused")
	_, _ = e.Client.ChargeBudget(t.Context(), &tapepb.ChargeBudgetRequest{RunId: id, Usd: 0.9, Tokens: 90})
	refused := e.admit(t, id, 0.5, 0)
	expect(t, !refused.GetAdmitted() && refused.GetBudget().GetUsdSpent() == 0.9, "after 0.9 of 1, 0.5 is %v", refused)
	expect(t, !e.admit(t, id, 0, 11).GetAdmitted() && e.admit(t, id, 0, 10).GetAdmitted(), "after 90 of 100 tokens, 11 are admitted or 10 are not")
	b, _ := e.Client.SetBudget(t.Context(), &tapepb.SetBudgetRequest{RunId: id, UsdCap: 2})
	expect(t, b.GetUsdCap() == 2 && b.GetTokenCap() == 0 && b.GetUsdSpent() == 0.9 && b.GetTokensSpent() == 90, "SetBudget = %v, want new caps and the old sums", b)
	expect(t, e.admit(t, id, 0.5, math.MaxInt32).GetAdmitted(), "after a higher cap 0.5 is refused")
}

func noBudget(t T, e *Env) {
	r := e.admit(t, e.begin(t), 1e12, math.MaxInt32)
	b := r.GetBudget()
	expect(t, r.GetAdmitted() && b.GetUsdCap() == 0 && b.GetUsdSpent() == 0 && b.GetTokensSpent() == 0, "AdmitBudget = %v, want it admitted", r)
}
