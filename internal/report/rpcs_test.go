package report

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// called notes the methods that the cases of an engine called, in their order; a case that did not
// run called none.
func called(e Engine, rpcs ...string) Engine {
	for g := range e.Report.Guarantees {
		for c := range e.Report.Guarantees[g].Cases {
			if rpcs[0] != "" {
				e.Report.Guarantees[g].Cases[c].RPCs = strings.Fields(rpcs[0])
			}
			rpcs = rpcs[1:]
		}
	}
	return e
}

func protocolRun() Run {
	r := run(
		called(engine("memory", "embedded", "T1/a", "T5/b", "runs/1-c"), "BeginRun GetRun", "BeginEffect BeginRun", "BeginRun"),
		called(engine("sqlite", "embedded", "T1/a failed: lost", "T5/b n/a: no business keys", "runs/1-c"), "BeginRun GetRun", "", "BeginRun"),
		missing,
	)
	r.Protocol = true
	return r
}

// A method's cell counts the cases that call it. A case that does not apply on one engine is known
// from another.
func TestRPCsByEngines(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := JSON(&b, protocolRun()); err != nil {
		t.Fatal(err)
	}
	var got struct{ RPCs []RPC }
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.RPCs) != 51 {
		t.Errorf("%d RPCs, want 51", len(got.RPCs))
	}
	cells := map[string]RPCCell{}
	for _, r := range got.RPCs {
		for _, c := range r.Engines {
			cells[r.Name+" "+c.Engine] = c
		}
	}
	for name, want := range map[string]RPCCell{
		"BeginRun memory":    {State: "passed", Passed: []string{"T1/a", "T5/b", "runs/1-c"}},
		"BeginRun sqlite":    {State: "failed", Passed: []string{"runs/1-c"}, Failed: []string{"T1/a"}, NotApplicable: []string{"T5/b"}, Reasons: []string{"no business keys"}},
		"BeginEffect sqlite": {State: "not applicable", NotApplicable: []string{"T5/b"}, Reasons: []string{"no business keys"}},
		"GetRun memory":      {State: "passed", Passed: []string{"T1/a"}},
		"ClaimTasks memory":  {State: "no case"},
		"BeginRun spanner":   {State: "missing"},
	} {
		c := cells[name]
		if c.State != want.State || !slices.Equal(c.Passed, want.Passed) || !slices.Equal(c.Failed, want.Failed) ||
			!slices.Equal(c.NotApplicable, want.NotApplicable) || !slices.Equal(c.Reasons, want.Reasons) {
			t.Errorf("%s = %+v, want %+v", name, c, want)
		}
	}
}

func TestRPCsAreShown(t *testing.T) {
	t.Parallel()
	var text, page, contract bytes.Buffer
	if err := Text(&text, protocolRun()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nRPCs by engines\n", "BeginEffect ", "not applicable 0/0/1", "1/1/1 FAILED", "passed 3/0/0", "no case",
		"\nThe cases behind each RPC\n", "  BeginRun\n    T1/a, T5/b, runs/1-c\n", "  ClaimTasks\n    none\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}
	if err := HTML(&page, protocolRun()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`<h2 id="rpcs">RPCs by engines</h2>`, `<details class="card" id="BeginRun">`, `href="#BeginEffect-engine-2"`, `id="BeginEffect-engine-2"`} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	plain := protocolRun()
	plain.Protocol = false
	if err := Text(&contract, plain); err != nil || strings.Contains(contract.String(), "RPC") {
		t.Errorf("a run of the contract shows RPCs: %v", err)
	}
}
