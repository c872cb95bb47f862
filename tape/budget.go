package tape

import (
	"context"
	"fmt"
	"math"

	"github.com/tapestore/tapestore/runstore"
)

// Budget is the limit of a run's spending and the amount spent. A run that has no budget record has
// the zero Budget.
type Budget struct {
	Run runstore.RunID
	// USDCap and TokenCap are the limits that AdmitBudget checks; 0 or less means no limit.
	USDCap   float64
	TokenCap int64
	// USDSpent and TokensSpent are the sums of all charges.
	USDSpent    float64
	TokensSpent int64
}

const budgetKey runstore.RecordKey = "budget"

// budgetHead is the stored form of a budget.
type budgetHead struct {
	USDCap      float64 `json:"usd_cap,omitempty"`
	TokenCap    int64   `json:"token_cap,omitempty"`
	USDSpent    float64 `json:"usd_spent,omitempty"`
	TokensSpent int64   `json:"tokens_spent,omitempty"`
}

var budgets = ledger[Budget]{decode: budgetOf, encode: func(b Budget) ([]byte, []runstore.Place) {
	return encode(budgetHead{b.USDCap, b.TokenCap, b.USDSpent, b.TokensSpent}), nil
}}

func budgetOf(run runstore.RunID, rec runstore.Record) (Budget, error) {
	var head budgetHead
	if err := decode(fmt.Sprintf("the budget of run %q", run), rec.Value, &head); err != nil {
		return Budget{}, err
	}
	return Budget{run, head.USDCap, head.TokenCap, head.USDSpent, head.TokensSpent}, nil
}

// BudgetCaps is the input of SetBudget.
type BudgetCaps struct {
	Run    runstore.RunID
	USD    float64
	Tokens int64
	Fence  runstore.Fence
}

// SetBudget replaces both caps of a run's budget and keeps the amounts spent. It writes no journal
// entry. Two round trips.
//
// Errors: ErrNoSuchRun; runstore.ErrInvalid for a cap that is not a finite number;
// runstore.ErrFenced.
func (t *Tape) SetBudget(ctx context.Context, caps BudgetCaps) (Budget, error) {
	if err := t.admit("SetBudget", caps.Run, caps.Fence); err != nil {
		return Budget{}, err
	}
	if err := checkFinite("usd_cap", caps.USD); err != nil {
		return Budget{}, err
	}
	return budgets.change(ctx, t, caps.Run, caps.Fence, budgetKey, func(b Budget, _ bool) (Budget, *step, error) {
		b.USDCap, b.TokenCap = caps.USD, caps.Tokens
		return b, &step{}, nil
	})
}

// BudgetCharge is the input of ChargeBudget.
type BudgetCharge struct {
	Run runstore.RunID
	// USD and Tokens are added to the sums; negative amounts are refunds.
	USD    float64
	Tokens int64
	Fence  runstore.Fence
}

// ChargeBudget adds to both sums of a run's budget, even beyond its caps. Concurrent charges add
// up. Charges are not deduplicated: a caller that repeats a charge charges twice. It writes no
// journal entry. Two round trips.
//
// Errors: ErrNoSuchRun; runstore.ErrInvalid for a charge or a sum that is not a finite number;
// runstore.ErrTooLarge for a sum of tokens beyond 64 bits; runstore.ErrFenced.
func (t *Tape) ChargeBudget(ctx context.Context, c BudgetCharge) (Budget, error) {
	if err := t.admit("ChargeBudget", c.Run, c.Fence); err != nil {
		return Budget{}, err
	}
	if err := checkFinite("usd", c.USD); err != nil {
		return Budget{}, err
	}
	return budgets.change(ctx, t, c.Run, c.Fence, budgetKey, func(b Budget, _ bool) (Budget, *step, error) {
		usd := b.USDSpent + c.USD
		if math.IsInf(usd, 0) {
			return b, nil, &runstore.InputError{
				Kind: runstore.ErrTooLarge, Field: "usd",
				Problem: fmt.Sprintf("%g and %g that were spent make a sum beyond the limit of %g", c.USD, b.USDSpent, math.MaxFloat64),
			}
		}
		tokens, ok := addInt64(b.TokensSpent, c.Tokens)
		if !ok {
			return b, nil, &runstore.InputError{
				Kind: runstore.ErrTooLarge, Field: "tokens",
				Problem: fmt.Sprintf("%d and %d that were spent make a sum beyond the limit of 64 bits", c.Tokens, b.TokensSpent),
			}
		}
		b.USDSpent, b.TokensSpent = usd, tokens
		return b, &step{}, nil
	})
}

// Admission is the result of AdmitBudget.
type Admission struct {
	Admitted bool
	// Reason names the cap that the estimate would exceed; empty if it is admitted.
	Reason string
	// Budget is the state that the estimate was checked against.
	Budget Budget
}

// AdmitBudget reports whether a run's budget has room for an estimate. It reserves nothing. One
// read.
//
// Errors: runstore.ErrInvalid for an estimate that is not a finite number.
func (t *Tape) AdmitBudget(ctx context.Context, run runstore.RunID, usd float64, tokens int64) (Admission, error) {
	if err := checkFinite("usd_estimate", usd); err != nil {
		return Admission{}, err
	}
	b := Budget{Run: run}
	rec, found, err := t.readRecord(ctx, run, budgetKey)
	if err == nil && found {
		b, err = budgetOf(run, rec)
	}
	if err != nil {
		return Admission{}, err
	}
	reason := b.refusal(usd, tokens)
	return Admission{Admitted: reason == "", Reason: reason, Budget: b}, nil
}

// refusal returns the protocol's text for the cap that an estimate would exceed, USD first, or ""
// if it exceeds none.
func (b Budget) refusal(usd float64, tokens int64) string {
	if b.USDCap > 0 && b.USDSpent+usd > b.USDCap {
		return fmt.Sprintf("usd cap %.2f would be exceeded (spent %.2f + estimate %.2f)", b.USDCap, b.USDSpent, usd)
	}
	sum, ok := addInt64(b.TokensSpent, tokens)
	if b.TokenCap > 0 && (ok && sum > b.TokenCap || !ok && tokens > 0) {
		return fmt.Sprintf("token cap %d would be exceeded (spent %d + estimate %d)", b.TokenCap, b.TokensSpent, tokens)
	}
	return ""
}

// addInt64 returns the sum, and whether it fits into 64 bits.
func addInt64(a, b int64) (sum int64, ok bool) {
	sum = a + b
	return sum, (sum > a) == (b > 0)
}

// checkFinite returns an error for NaN and the infinities.
func checkFinite(name string, n float64) error {
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return &runstore.InputError{Kind: runstore.ErrInvalid, Field: name, Problem: fmt.Sprintf("%v is not a finite number", n)}
	}
	return nil
}
