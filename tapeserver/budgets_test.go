package tapeserver_test

import (
	"math"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func TestBudgets(t *testing.T) { // 49, 50
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	admit := func(usd float64) *tapepb.AdmitBudgetResponse {
		t.Helper()
		a, err := c.AdmitBudget(t.Context(), &tapepb.AdmitBudgetRequest{RunId: id, UsdEstimate: usd})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := admit(1e9); !a.GetAdmitted() || a.GetReason() != "" || !proto.Equal(a.GetBudget(), &tapepb.BudgetState{RunId: id}) {
		t.Errorf("AdmitBudget without a budget = %v, want it admitted", a)
	}
	set := &tapepb.SetBudgetRequest{RunId: id, UsdCap: 1, TokenCap: 100}
	if b, err := c.SetBudget(t.Context(), set); err != nil || !proto.Equal(b, &tapepb.BudgetState{RunId: id, UsdCap: 1, TokenCap: 100}) {
		t.Errorf("SetBudget = %v, %v", b, err)
	}
	if a := admit(0.5); !a.GetAdmitted() {
		t.Errorf("AdmitBudget(0.5) = %v, want it admitted", a)
	}
	want := &tapepb.BudgetState{RunId: id, UsdCap: 1, TokenCap: 100, UsdSpent: 0.9, TokensSpent: 7}
	if b, err := c.ChargeBudget(t.Context(), &tapepb.ChargeBudgetRequest{RunId: id, Usd: 0.9, Tokens: 7}); err != nil || !proto.Equal(b, want) {
		t.Errorf("ChargeBudget = %v, %v, want %v", b, err, want)
	}
	if a := admit(0.5); a.GetAdmitted() || a.GetReason() != "usd cap 1.00 would be exceeded (spent 0.90 + estimate 0.50)" || !proto.Equal(a.GetBudget(), want) {
		t.Errorf("AdmitBudget(0.5) = %v, want it refused", a)
	}
	if b, err := c.SetBudget(t.Context(), set); err != nil || !proto.Equal(b, want) {
		t.Errorf("SetBudget again = %v, %v, want %v", b, err, want)
	}
	_, err := c.ChargeBudget(t.Context(), &tapepb.ChargeBudgetRequest{RunId: id, Usd: math.NaN()})
	wantStatus(t, "ChargeBudget(NaN)", err, codes.InvalidArgument, "usd")
	if field := infoOf(t, err).GetMetadata()["field"]; field != "usd" {
		t.Errorf("ChargeBudget(NaN) blames %q, want usd", field)
	}
}

func TestConcurrentChargesAddUp(t *testing.T) {
	t.Parallel()
	c := client(t)
	id := begin(t, c, "i").GetRunId()
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if _, err := c.ChargeBudget(t.Context(), &tapepb.ChargeBudgetRequest{RunId: id, Usd: 0.5, Tokens: 3}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	a, err := c.AdmitBudget(t.Context(), &tapepb.AdmitBudgetRequest{RunId: id})
	if want := (&tapepb.BudgetState{RunId: id, UsdSpent: 32, TokensSpent: 192}); err != nil || !proto.Equal(a.GetBudget(), want) {
		t.Errorf("budget = %v, %v, want %v", a.GetBudget(), err, want)
	}
}
