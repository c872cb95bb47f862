package report

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance"
)

// engine is one that was there. Each case is written "I3/name", "I3/name failed: why" or
// "I3/name n/a: why".
func engine(name, tier string, cases ...string) Engine {
	r := &conformance.Report{Engine: name, Version: "1.0", Tier: tier, Capabilities: []string{"EpochManager", "Notifier"}}
	for i, c := range cases {
		full, reason, _ := strings.Cut(c, ": ")
		full, failed := strings.CutSuffix(full, " failed")
		full, exempt := strings.CutSuffix(full, " n/a")
		id, name, _ := strings.Cut(full, "/")
		result := conformance.Result{Name: name, Status: conformance.Passed, Reason: reason, MS: int64(i) * 700}
		switch {
		case failed:
			result.Status, result.Doc = conformance.Failed, "Eight handles ask for one lease; exactly one of them wins, and every other learns the holder and the time that is left."
			r.Summary.Failed++
		case exempt:
			result.Status = conformance.NotApplicable
			r.Summary.NotApplicable++
		default:
			r.Summary.Passed++
		}
		if n := len(r.Guarantees); n == 0 || r.Guarantees[n-1].ID != id {
			r.Guarantees = append(r.Guarantees, conformance.ByGuarantee{ID: id})
		}
		last := &r.Guarantees[len(r.Guarantees)-1]
		last.Cases = append(last.Cases, result)
	}
	return Engine{Name: name, Started: name + " 1.0 (" + tier + ")", MS: 1234, Report: r}
}

func run(engines ...Engine) Run {
	return Run{
		Command: "tapestore conformance --all", Version: "v0.1.0, commit abc", Platform: "linux/amd64",
		Began: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), MS: 61_000, Engines: engines,
	}
}

var (
	missing = Engine{Name: "spanner", Missing: "engine not found: no emulator, <b>none</b>"}
	broke   = Engine{Name: "alloydb", Broken: "listen: address in use"}
)

// mixed has everything that can become of an engine and of a case.
func mixed() Run {
	return run(
		engine("memory", "embedded", "I1/one-winner", "I1/two-losers", "I8/lost-reply n/a: no network", "I8/late-copy n/a: no network", "I8/killed n/a: no server"),
		engine("sqlite", "embedded", "I1/one-winner", "I1/two-losers failed: got 2 winners,\nwant 1", "I8/lost-reply n/a: no network", "I8/late-copy n/a: no network", "I8/killed"),
		engine("bigtable", "emulator", "I1/one-winner", "I1/two-losers", "I8/lost-reply", "I8/late-copy n/a: no network", "I8/killed n/a: no server"),
		broke, missing,
	)
}

func TestResult(t *testing.T) {
	t.Parallel()
	good := func(name string) Engine { return engine(name, "local", "I1/a", "I8/b n/a: no server") }
	bad := func(name string) Engine { return engine(name, "local", "I1/a failed: x", "I9/b", "I11/c failed: y") }
	idle := engine("memory", "embedded", "I8/b n/a: no server")
	ended := good("postgres")
	ended.Broken = "to end it: it does not"
	selected := run(good("sqlite"), good("postgres"))
	selected.Pattern = "I1/"
	cut := good("postgres")
	cut.Report.Summary.NotRun = 3
	interrupted := run(good("sqlite"), cut)
	interrupted.NotRun = []string{"bigtable", "spanner"}
	for name, c := range map[string]struct {
		run     Run
		verdict verdict
		result  string
	}{
		"cut":       {interrupted, incomplete, "sqlite keeps the contract; postgres was interrupted before all cases had run; bigtable and spanner not run: interrupted."},
		"one":       {run(good("postgres")), kept, "postgres keeps the contract."},
		"one bad":   {run(bad("postgres")), broken, "postgres (I1, I11) does not keep the contract."},
		"all":       {run(good("sqlite"), good("postgres")), kept, "All 2 engines keep the contract."},
		"selected":  {selected, kept, "All 2 engines keep what the selected cases check."},
		"a bad one": {run(good("sqlite"), bad("postgres")), broken, "One of 2 engines does not keep the contract: postgres (I1, I11)."},
		"bad ones":  {run(bad("sqlite"), good("memory"), bad("postgres")), broken, "2 of 3 engines do not keep the contract: sqlite (I1, I11) and postgres (I1, I11)."},
		"missing": {run(good("sqlite"), good("postgres"), missing), incomplete,
			"sqlite and postgres keep the contract; nothing is known of spanner: not found on this machine."},
		"nothing applies": {run(idle, good("sqlite")), incomplete, "sqlite keeps the contract; no case applies to memory."},
		"broken":          {run(good("sqlite"), broke), broken, "sqlite keeps the contract; alloydb did not start or end as it should."},
		"ended badly":     {run(good("sqlite"), ended), broken, "sqlite keeps the contract; postgres did not start or end as it should."},
		"all at once": {mixed(), broken, "One of the 3 engines that ran does not keep the contract: sqlite (I1); " +
			"alloydb did not start or end as it should; nothing is known of spanner: not found on this machine."},
		"only missing": {run(missing), incomplete, "Nothing is known of spanner: not found on this machine."},
		"nothing":      {run(), incomplete, "Nothing was run."},
	} {
		m := newMatrix(c.run)
		if got := m.Result(); got != c.result || m.Verdict() != c.verdict {
			t.Errorf("%s: got %s, %q, want %s, %q", name, m.Verdict(), got, c.verdict, c.result)
		}
	}
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	// A group that is none of the guarantees comes last; a case that an engine did not
	// report is not counted as anything; a status that is unknown has not passed.
	odd := engine("odd", "local", "tape/a", "I10/b", "I2/c")
	odd.Report.Guarantees[0].Cases[0].Status = "unheard-of"
	m := newMatrix(run(odd, engine("even", "local", "I2/c", "I2/d"), missing))
	var got []string
	for _, r := range m.Rows {
		for _, c := range r.Cases {
			line := r.ID + "/" + c.Name
			for _, o := range c.Cells {
				switch {
				case !o.Ran:
					line += " -"
				case o.Passed():
					line += " passed"
				case o.NotApplicable():
					line += " n/a"
				default:
					line += " failed"
				}
			}
			got = append(got, line)
		}
	}
	want := []string{"I2/c passed passed -", "I2/d - passed -", "I10/b passed - -", "tape/a failed - -"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := []string{m.Total[0].text(), m.Total[1].text(), m.Total[2].text(), m.Rows[1].Cells[1].text()}; !reflect.DeepEqual(got,
		[]string{"2/1/0 FAILED", "2/0/0", "missing", "none"}) {
		t.Errorf("got the totals %q", got)
	}
}

// A reason is told once, with the engines and cases that it is about.
func TestExemptionsAreGrouped(t *testing.T) {
	t.Parallel()
	m := newMatrix(mixed())
	for i := range m.Exempt {
		m.Exempt[i].cases = nil
	}
	want := []exemption{
		{ID: "not-applicable-1", Reason: "no network", Groups: []exemptGroup{
			{Engines: []string{"memory", "sqlite"}, Cases: []string{"I8/lost-reply"}},
			{Engines: []string{"memory", "sqlite", "bigtable"}, Cases: []string{"I8/late-copy"}},
		}},
		{ID: "not-applicable-2", Reason: "no server", Groups: []exemptGroup{
			{Engines: []string{"memory", "bigtable"}, Cases: []string{"I8/killed"}},
		}},
	}
	if !reflect.DeepEqual(m.Exempt, want) {
		t.Errorf("got %+v, want %+v", m.Exempt, want)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	if err := Text(&got, mixed()); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/mixed.txt")
	if err != nil {
		t.Fatal(err)
	}
	// What cannot be proved is package engines' to word.
	before, after, found := strings.Cut(got.String(), "\nWhat a local run cannot prove\n")
	if before != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", before, want)
	}
	if !found || !strings.Contains(after, "sqlite: ") || !strings.Contains(after, "bigtable: ") {
		t.Errorf("nothing is said to be unproved:\n%s", after)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := JSON(&out, mixed()); err != nil {
		t.Fatal(err)
	}
	var got Run
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := Summary{Engines: 5, Missing: 1, Broken: 1, Passed: 7, Failed: 1, NotApplicable: 7}
	if got.Summary != want {
		t.Errorf("got the summary %+v, want %+v", got.Summary, want)
	}
	if e := got.Engines[2]; e.Name != "bigtable" || e.Unproved == "" || !reflect.DeepEqual(e.Report, mixed().Engines[2].Report) {
		t.Errorf("got %+v", e)
	}
	if got.Engines[4].Missing != missing.Missing || got.Engines[3].Broken != broke.Broken {
		t.Errorf("got %+v and %+v", got.Engines[3], got.Engines[4])
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for ms, want := range map[int64]string{0: "<1 ms", 7: "7 ms", 99: "99 ms", 729: "0.7 s", 59_940: "59.9 s", 61_000: "1 min 01 s", 3_661_499: "61 min 01 s"} {
		if got := Duration(ms); got != want {
			t.Errorf("Duration(%d) = %q, want %q", ms, got, want)
		}
	}
}

// The page says of each guarantee what the README says.
func TestSentences(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range conformance.Guarantees() {
		if line := "| " + id + " | " + name(id) + " | " + sentences[id] + " |\n"; !strings.Contains(string(readme), line) {
			t.Errorf("the README has no line %q", line)
		}
	}
}
