package protocol

import "github.com/tapestore/tapestore/tapeserver/tapepb"

func chargeCases() []Case {
	return []Case{
		{Group: "T12", Name: "charges-add-up", Run: chargesAddUp,
			Doc: "64 concurrent charges of one run all succeed, and the totals are their sums."},
		{Group: "T12", Name: "caps-and-charges", Run: capsAndCharges,
			Doc: "Setting caps during charges loses no charge."},
	}
}

func (e *Env) charge(t T, run string) {
	if _, err := e.Try.ChargeBudget(t.Context(), &tapepb.ChargeBudgetRequest{RunId: run, Usd: 0.25, Tokens: 3}); err != nil {
		t.Errorf("ChargeBudget: %v", err)
	}
}

// expectSpent checks the budget's totals after n charges.
func (e *Env) expectSpent(t T, run string, n int) {
	t.Helper()
	b := e.admit(t, run, 0, 0).GetBudget()
	expect(t, b.GetUsdSpent() == 0.25*float64(n) && b.GetTokensSpent() == int64(3*n), "after %d charges of $0.25 and 3 tokens the sums are %v", n, b)
}

func chargesAddUp(t T, e *Env) {
	id, n := e.begin(t), e.Count(64, "charges")
	together(n, func(int) { e.charge(t, id) })
	e.expectSpent(t, id, n)
}

func capsAndCharges(t T, e *Env) {
	id, n := e.begin(t), e.Count(16, "charges")
	together(2*n, func(i int) {
		if i%2 == 0 {
			e.charge(t, id)
		} else if _, err := e.Try.SetBudget(t.Context(), &tapepb.SetBudgetRequest{RunId: id, UsdCap: 100}); err != nil {
			t.Errorf("SetBudget: %v", err)
		}
	})
	e.expectSpent(t, id, n)
	b := e.admit(t, id, 0, 0).GetBudget()
	expect(t, b.GetUsdCap() == 100, "the cap is %v, want 100", b.GetUsdCap())
}
