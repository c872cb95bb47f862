package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/internal/report"
)

// The command starts each engine in turn, says what it is, runs the suite on it and
// ends it.
func TestConformanceOnEveryEngine(t *testing.T) {
	t.Parallel()
	out, errs, status := runCommandWith(t, ownTemp(t), builtCommand(t), "conformance", "--all", "--run", fewCases, "--format", "json")
	var got report.Run
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	if missing := got.Summary.Missing; status != 0 && (missing == 0 || !missingFails()) {
		t.Errorf("got status %d: %s", status, errs)
	}
	if want := "tapestore conformance --all --run '" + fewCases + "' --format json"; got.Command != want {
		t.Errorf("got the command %q, want %q", got.Command, want)
	}
	var names []string
	for i, e := range got.Engines {
		names = append(names, e.Name)
		t.Run(e.Name, func(t *testing.T) {
			if e.Missing != "" {
				emulators.Require(t, fmt.Errorf("%w: %s", emulators.ErrMissing, e.Missing))
			}
			checkEngine(t, e)
			if want := fmt.Sprintf("[%d/%d] %s: 3 cases\n", i+1, len(got.Engines), e.Started); !strings.Contains(errs, want) {
				t.Errorf("no %q in\n%s", want, errs)
			}
		})
	}
	if want := inOrder(starters); len(names) != len(want) || names[0] != "memory" || names[1] != "sqlite" {
		t.Errorf("got the engines %q", names)
	}
}

// checkEngine checks what the few cases found on an engine.
func checkEngine(t *testing.T, e report.Engine) {
	t.Helper()
	about := map[string]string{
		"memory":   `^memory reference \(embedded\)$`,
		"sqlite":   `^sqlite 3\.\S+ \(embedded\)$`,
		"postgres": `^postgres \d\S* \((local|service|container)\)$`,
		"alloydb":  `^alloydb connector \S+ over postgres \d\S* \(emulator\)$`,
		"bigtable": `^bigtable .+ \((emulator|local|service|container)\)$`,
		"spanner":  `^spanner .+ \((local|service|container)\)$`,
	}[e.Name]
	if e.Report == nil || e.Broken != "" || !regexp.MustCompile(about).MatchString(e.Started) {
		t.Fatalf("got %+v, want it started as %s", e, about)
	}
	exempt := 0
	if e.Name == "memory" {
		exempt = 1 // no process can be killed that shares its store
	}
	if sum := e.Report.Summary; sum.Passed != 3-exempt || sum.Failed != 0 || sum.NotApplicable != exempt {
		t.Errorf("got %+v, want 3 cases, %d not applicable", sum, exempt)
	}
	tier := "(" + e.Report.Tier + ")"
	if e.Report.Tier == emulators.TierEmulator && e.Name != "alloydb" { // wherever it came from
		tier = "("
	}
	if e.Report.Engine != e.Name || !strings.Contains(e.Started, tier) || !slices.Contains(e.Report.Capabilities, "EpochManager") {
		t.Errorf("got the report of %s %s (%s): %v", e.Report.Engine, e.Report.Version, e.Report.Tier, e.Report.Capabilities)
	}
	if local := e.Name != "memory" && e.Report.Tier != emulators.TierService; local != (e.Unproved != "") {
		t.Errorf("of a %s run is unproved: %q", e.Report.Tier, e.Unproved)
	}
}

// What becomes of engines that cannot be had, do not start or do not end well, and what
// is said meanwhile.
func TestEveryEngine(t *testing.T) {
	t.Parallel()
	starts := func(end error) func(context.Context) (subject, error) {
		return func(context.Context) (subject, error) {
			return subject{embedded.Memory(), "made here", func() error { return end }}, nil
		}
	}
	fails := func(err error) func(context.Context) (subject, error) {
		return func(context.Context) (subject, error) { return subject{}, err }
	}
	all := inOrder(map[string]func(context.Context) (subject, error){
		"zeta": starts(errors.New("it hangs")), "sqlite": starts(nil),
		"spanner": fails(fmt.Errorf("%w: look here", emulators.ErrMissing)), "postgres": fails(errors.New("disk full")),
	})
	pattern := regexp.MustCompile("^I12/ttl-is-bounded$")
	var said bytes.Buffer
	p := newProgress(&said, storeSuite(pattern).cases)
	var got report.Run
	if got.Engines, got.NotRun = everyEngine(t.Context(), all, storeSuite(pattern), p); len(got.NotRun) != 0 {
		t.Errorf("not run: %q", got.NotRun)
	}
	var lines []string
	for _, e := range got.Engines {
		lines = append(lines, fmt.Sprintf("%s: missing %q, broken %q, ran %v", e.Name, e.Missing, e.Broken, e.Report != nil))
	}
	want := []string{
		`sqlite: missing "", broken "", ran true`,
		`postgres: missing "", broken "disk full", ran false`,
		`spanner: missing "engine not found: look here", broken "", ran false`,
		`zeta: missing "", broken "to end it: it hangs", ran true`,
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got %q, want %q", lines, want)
	}
	wantSaid := `^\[1/4\] made here: 1 case
\[1/4\] sqlite: 1 passed, 0 failed, 0 not applicable, in .*
\[2/4\] postgres: disk full
\[3/4\] spanner is missing: engine not found: look here
\[4/4\] made here: 1 case
\[4/4\] zeta: 1 passed, 0 failed, 0 not applicable, in .*
\[4/4\] zeta: to end it: it hangs
$`
	if !regexp.MustCompile(wantSaid).MatchString(said.String()) {
		t.Errorf("said:\n%s", said.String())
	}
}

// An interruption keeps the engines that are finished, and the finished cases of the
// engine that is at it.
func TestEveryEngineInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The second engine's second case, by order, is interrupted while it makes its store.
	made := 0
	start := func(stop bool) func(context.Context) (subject, error) {
		return func(context.Context) (subject, error) {
			h := embedded.Memory()
			make := h.New
			h.New = func(ct conformance.T) conformance.Instance {
				if stop && ct.Name() == "I12/ttl-is-bounded" {
					made++
					cancel()
				}
				return make(ct)
			}
			return subject{h, "made here", nothing}, nil
		}
	}
	all := []starter{{"first", start(false)}, {"second", start(true)}, {"third", start(false)}}
	pattern := regexp.MustCompile("^I12/ttl-is-bounded$")
	p := newProgress(&bytes.Buffer{}, storeSuite(pattern).cases)
	var run report.Run
	run.Engines, run.NotRun = everyEngine(ctx, all, storeSuite(pattern), p)
	if len(run.Engines) != 1 || run.Engines[0].Name != "first" || run.Engines[0].Report.Summary.Passed != 1 || made != 1 {
		t.Errorf("got the engines %+v, want the first alone", run.Engines)
	}
	if want := []string{"second", "third"}; !slices.Equal(run.NotRun, want) {
		t.Errorf("not run: %q, want %q", run.NotRun, want)
	}
	var text bytes.Buffer
	if err := report.Text(&text, run); err != nil || !strings.Contains(text.String(), "first keeps the contract; second and third not run: interrupted.") {
		t.Errorf("got %v and the report\n%s", err, &text)
	}
}

// Without a terminal the count is a line after each quarter.
func TestProgressElsewhere(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	p := newProgress(&said, 41)
	for range 41 {
		p.done()
	}
	if got, want := said.String(), "11 of 41 cases\n22 of 41 cases\n33 of 41 cases\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

// A count of the cases that are done stands on a terminal only, and is wiped out.
func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	pattern := regexp.MustCompile("^I12/ttl-is-bounded$")
	var said bytes.Buffer
	p := newProgress(&said, storeSuite(pattern).cases)
	p.terminal = true
	everyEngine(t.Context(), []starter{{"memory", func(context.Context) (subject, error) { return subject{embedded.Memory(), "", nothing}, nil }}}, storeSuite(pattern), p)
	if got := said.String(); strings.Count(got, "\r[1/1] memory: 1 of 1 cases\r\x1b[K[1/1] memory: 1 passed") != 1 {
		t.Errorf("said %q", got)
	}
}

// judge reads CI, so this test is not parallel.
func TestJudge(t *testing.T) {
	failed := report.Engine{Name: "a", Report: &conformance.Report{}}
	failed.Report.Summary.Failed = 1
	missing := report.Engine{Name: "b", Missing: "not here"}
	broken := report.Engine{Name: "c", Broken: "disk full"}
	kept := report.Engine{Name: "d", Report: &conformance.Report{}}
	for _, c := range []struct {
		ci      string
		engines []report.Engine
		says    string // nothing: no error
	}{
		{"", []report.Engine{kept, missing}, ""},
		{"false", []report.Engine{kept, missing}, ""},
		{"true", []report.Engine{kept, missing}, "b is missing, which fails where CI is set: not here"},
		{"true", []report.Engine{kept}, ""},
		{"", []report.Engine{kept, failed, missing, broken}, "a does not keep the contract; c: disk full"},
	} {
		t.Setenv("CI", c.ci)
		err := judge(report.Run{Engines: c.engines})
		if got := ""; err != nil {
			got = oneLine(err)
			if got != c.says {
				t.Errorf("CI=%s: got %q, want %q", c.ci, got, c.says)
			}
		} else if c.says != "" {
			t.Errorf("CI=%s: got no error, want %q", c.ci, c.says)
		}
	}
}

// The command line that a report shows can be run again, and holds no secret.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	for want, given := range map[string]suiteFlags{
		"tapestore conformance --protocol localhost:7878 --probes http://localhost:1": {protocol: true, address: "localhost:7878", probes: "http://localhost:1", format: "text"},
		"tapestore conformance --protocol --engine sqlite --fence connection":         {protocol: true, engine: "sqlite", fence: "connection", format: "text"},
		"tapestore conformance --all":                                              {all: true, format: "text"},
		"tapestore conformance --engine spanner --full":                            {engine: "spanner", full: true, format: "text"},
		"tapestore conformance --engine sqlite --run 'I1/|it'\\''s' --format html": {engine: "sqlite", run: "I1/|it's", format: "html"},
		"tapestore conformance --store sqlite:./a.db":                              {store: "./a.db", format: "text"},
		"tapestore conformance --store 'postgres://u:***@h/db?…' --format json":    {store: "postgres://u:secret@h/db?password=secret", format: "json"},
		"tapestore conformance --store 'bigtable://p/i/t?…'":                       {store: "bigtable://p/i/t?emulator=h:1", format: "text"},
		"tapestore conformance --store 'spanner://p/i/d?…'":                        {store: "spanner://p/i/d?emulator=h:1", format: "text"},
	} {
		if got := given.commandLine(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
