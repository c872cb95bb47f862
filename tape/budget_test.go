package tape_test

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

func setBudget(t *testing.T, tp *tape.Tape, run runstore.RunID, usd float64, tokens int64) tape.Budget {
	t.Helper()
	b, err := tp.SetBudget(t.Context(), tape.BudgetCaps{Run: run, USD: usd, Tokens: tokens})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func charge(t *testing.T, tp *tape.Tape, run runstore.RunID, usd float64, tokens int64) tape.Budget {
	t.Helper()
	b, err := tp.ChargeBudget(t.Context(), tape.BudgetCharge{Run: run, USD: usd, Tokens: tokens})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBudget(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	for _, run := range []runstore.RunID{r.ID, "no-such-run"} {
		a, err := tp.AdmitBudget(t.Context(), run, math.MaxFloat64, math.MaxInt64)
		if want := (tape.Admission{Admitted: true, Budget: tape.Budget{Run: run}}); err != nil || a != want {
			t.Errorf("AdmitBudget without a budget = %+v, %v, want %+v", a, err, want)
		}
	}
	want := tape.Budget{Run: r.ID, USDCap: 1, TokenCap: 10}
	if got := setBudget(t, tp, r.ID, 1, 10); got != want {
		t.Errorf("SetBudget = %+v, want %+v", got, want)
	}
	want.USDSpent, want.TokensSpent = 0.9, 4
	if got := charge(t, tp, r.ID, 0.9, 4); got != want {
		t.Errorf("ChargeBudget = %+v, want %+v", got, want)
	}
	want.USDCap, want.TokenCap = -2.5, math.MinInt64
	if got := setBudget(t, tp, r.ID, -2.5, math.MinInt64); got != want {
		t.Errorf("SetBudget again = %+v, want %+v", got, want)
	}
	want.USDSpent, want.TokensSpent = 0.9-5, -1
	if got := charge(t, tp, r.ID, -5, -5); got != want {
		t.Errorf("ChargeBudget = %+v, want %+v", got, want)
	}
	if n := len(historyOf(t, s, r.ID).events); n != 1 {
		t.Errorf("%d journal entries, want that of the run alone", n)
	}
	other := begin(t, tp, "j") // a charge without caps makes a row too
	if got, want := charge(t, tp, other.ID, 0.5, 1), (tape.Budget{Run: other.ID, USDSpent: 0.5, TokensSpent: 1}); got != want {
		t.Errorf("ChargeBudget = %+v, want %+v", got, want)
	}
	for _, f := range []func() error{
		func() error { _, err := tp.SetBudget(t.Context(), tape.BudgetCaps{Run: "no-such-run"}); return err },
		func() error {
			_, err := tp.ChargeBudget(t.Context(), tape.BudgetCharge{Run: "no-such-run"})
			return err
		},
	} {
		if err := f(); !errors.Is(err, tape.ErrNoSuchRun) {
			t.Errorf("of no run: %v, want ErrNoSuchRun", err)
		}
	}
}

func TestAdmitBudget(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		usdCap      float64
		tokenCap    int64
		usdSpent    float64
		tokensSpent int64
		usd         float64
		tokens      int64
		reason      string
	}{
		{usdCap: 1, usdSpent: 0.5, usd: 0.5},
		{usdCap: 1, usdSpent: 0.5, usd: 0.501, reason: "usd cap 1.00 would be exceeded (spent 0.50 + estimate 0.50)"},
		{usdCap: 1, usdSpent: 2, usd: 0, reason: "usd cap 1.00 would be exceeded (spent 2.00 + estimate 0.00)"},
		{usdCap: 1, usdSpent: 2, usd: -1},
		{usdCap: 0, usdSpent: 2, usd: 3},
		{usdCap: -1, usdSpent: 2, usd: 3},
		{usdCap: math.MaxFloat64, usdSpent: math.MaxFloat64, usd: 1e300, reason: "usd cap"},
		{tokenCap: 10, tokensSpent: 5, tokens: 5},
		{tokenCap: 10, tokensSpent: 5, tokens: 6, reason: "token cap 10 would be exceeded (spent 5 + estimate 6)"},
		{tokenCap: 10, tokensSpent: 5, tokens: math.MaxInt64, reason: "token cap 10 would be exceeded (spent 5 + estimate 9223372036854775807)"},
		{tokenCap: 10, tokensSpent: -5, tokens: math.MinInt64},
		{tokenCap: -10, tokensSpent: 5, tokens: math.MaxInt64},
		{usdCap: 1, usdSpent: 1, usd: 1, tokenCap: 1, tokensSpent: 1, tokens: 1, reason: "usd cap 1.00 would be exceeded (spent 1.00 + estimate 1.00)"},
		{usdCap: 1, usdSpent: 0, usd: 1, tokenCap: 1, tokensSpent: 1, tokens: 1, reason: "token cap 1 would be exceeded (spent 1 + estimate 1)"},
	} {
		tp, s, _ := newTape(t)
		r := begin(t, tp, "i")
		setBudget(t, tp, r.ID, c.usdCap, c.tokenCap)
		b := charge(t, tp, r.ID, c.usdSpent, c.tokensSpent)
		before := historyOf(t, s, r.ID)
		a, err := tp.AdmitBudget(t.Context(), r.ID, c.usd, c.tokens)
		if err != nil || a.Admitted != (c.reason == "") || a.Admitted != (a.Reason == "") || !strings.HasPrefix(a.Reason, c.reason) || a.Budget != b {
			t.Errorf("%+v: AdmitBudget = %+v, %v", c, a, err)
		}
		if after := historyOf(t, s, r.ID); !reflect.DeepEqual(before, after) {
			t.Errorf("AdmitBudget changed %+v to %+v", before, after)
		}
	}
}

func TestBudgetsRefuseBadNumbers(t *testing.T) {
	t.Parallel()
	tp, s, _ := newTape(t)
	r := begin(t, tp, "i")
	charge(t, tp, r.ID, math.MaxFloat64, math.MaxInt64)
	before := historyOf(t, s, r.ID)
	type refusal struct {
		err   error
		kind  error
		field string
	}
	_, usdErr := tp.ChargeBudget(t.Context(), tape.BudgetCharge{Run: r.ID, USD: 1e300})
	_, tokensErr := tp.ChargeBudget(t.Context(), tape.BudgetCharge{Run: r.ID, Tokens: 1})
	refusals := []refusal{{usdErr, runstore.ErrTooLarge, "usd"}, {tokensErr, runstore.ErrTooLarge, "tokens"}}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		_, setErr := tp.SetBudget(t.Context(), tape.BudgetCaps{Run: r.ID, USD: bad})
		_, chargeErr := tp.ChargeBudget(t.Context(), tape.BudgetCharge{Run: r.ID, USD: bad})
		_, admitErr := tp.AdmitBudget(t.Context(), r.ID, bad, 0)
		refusals = append(refusals, refusal{setErr, runstore.ErrInvalid, "usd_cap"},
			refusal{chargeErr, runstore.ErrInvalid, "usd"}, refusal{admitErr, runstore.ErrInvalid, "usd_estimate"})
	}
	for _, c := range refusals {
		var limit *runstore.InputError
		if !errors.As(c.err, &limit) || limit.Kind != c.kind || limit.Field != c.field {
			t.Errorf("%v, want %v naming %s", c.err, c.kind, c.field)
		}
	}
	if after := historyOf(t, s, r.ID); !reflect.DeepEqual(before, after) {
		t.Errorf("refused numbers changed %+v to %+v", before, after)
	}
}

func TestConcurrentChargesAddUp(t *testing.T) {
	t.Parallel()
	for name, processes := range map[string]int{"one process": 1, "two processes": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner, s, _ := newTape(t)
			r := begin(t, inner, "i")
			var tapes []*tape.Tape
			for range processes {
				tapes = append(tapes, tape.New(s, nil))
			}
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					if _, err := tapes[i%processes].ChargeBudget(t.Context(), tape.BudgetCharge{Run: r.ID, USD: 0.25, Tokens: int64(i)}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			want := tape.Budget{Run: r.ID, USDSpent: 16, TokensSpent: 64 * 63 / 2}
			if a, err := inner.AdmitBudget(t.Context(), r.ID, 0, 0); err != nil || a.Budget != want {
				t.Errorf("budget = %+v, %v, want %+v", a.Budget, err, want)
			}
		})
	}
}
