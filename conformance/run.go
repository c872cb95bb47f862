package conformance

import (
	"context"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/conformance/version"
	"github.com/tapestore/tapestore/internal/wrap"
	"github.com/tapestore/tapestore/runstore"
)

// Run runs the suite as subtests of t, named guarantee/case. A case that does not apply to the
// store is skipped with its reason, and listed on standard output after the last case, because go
// test shows skips only with -v. A panic in a call of the store fails the case.
func Run(t *testing.T, h Harness) {
	t.Helper()
	RunChild()
	var left exempt
	t.Cleanup(func() { left.print(os.Stdout, t.Name()) })
	for _, c := range Cases() {
		c.subtest(t, h, &left)
	}
}

// subtest runs the case as a parallel subtest of t, or adds it to left if it does not apply.
func (c Case) subtest(t *testing.T, h Harness, left *exempt) {
	t.Helper()
	t.Run(c.Guarantee+"/"+c.Name, func(t *testing.T) {
		t.Parallel()
		c.explainFailure(t)
		guarded(t, func() {
			e := newEnv(t, h, c)
			if reason := c.missing(e); reason != "" {
				left.add(reason, c.Guarantee+"/"+c.Name)
				t.Skipf("not applicable: %s", reason)
			}
			c.run(t, e)
		})()
	})
}

// explainFailure logs the case's Doc if the case fails, after all of its messages. It must be
// called before any other cleanup is registered.
func (c Case) explainFailure(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() { // 88 columns, and go test adds 12
			t.Logf("about the case:\n%s", wrap.Text(c.Doc, 88, ""))
		}
	})
}

// run runs the case and then checks what must hold after every case.
func (c Case) run(t T, e *Env) {
	t.Helper()
	c.Run(t, e)
	e.checkEpochs(t)
}

// RunCases runs the named cases, written guarantee/name, as subtests of t. A name that the suite
// does not have fails t. RunCases serves a second way to reach an engine, where only some cases
// exercise the difference.
func RunCases(t *testing.T, h Harness, names ...string) {
	t.Helper()
	RunChild()
	var left exempt
	t.Cleanup(func() { left.print(os.Stdout, t.Name()) })
	for _, name := range names {
		c, ok := Find(name)
		if !ok {
			t.Errorf("the suite has no case %s", name)
			continue
		}
		c.subtest(t, h, &left)
	}
}

func (c Case) missing(e *Env) string {
	for _, n := range c.Needs {
		if reason := n.missing(e); reason != "" {
			return reason
		}
	}
	return ""
}

// Status is the result of a case, in one word.
type Status string

// The statuses of a case.
const (
	Passed        Status = "passed"
	Failed        Status = "failed"
	NotApplicable Status = "not_applicable"
)

// Result is the result of one case.
type Result struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Reason says why the case failed or does not apply.
	Reason string `json:"reason"`
	// Doc is the Doc of a case that failed.
	Doc string `json:"doc,omitempty"`
	MS  int64  `json:"ms"`
	// LeftOut lists the repetitions that a quick run left out, such as "5000 of 100000 events".
	LeftOut []string `json:"left_out,omitempty"`
	// RPCs lists the methods that a case of the wire protocol called, in alphabetical order.
	RPCs []string `json:"rpcs,omitempty"`
}

// Report is the result of a whole run of the suite.
type Report struct {
	Engine  string `json:"engine"`
	Version string `json:"version"`
	Tier    string `json:"tier"`
	Summary struct {
		Passed        int `json:"passed"`
		Failed        int `json:"failed"`
		NotApplicable int `json:"not_applicable"`
		// NotRun counts the selected cases that did not run to their end because the context of
		// Execute ended. They are not in Guarantees.
		NotRun int `json:"not_run,omitempty"`
	} `json:"summary"`
	// Suite is the version of this module, with its commit where that is known.
	Suite string `json:"suite"`
	// Effort is quick or full (see EffortVariable).
	Effort string `json:"effort"`
	// Capabilities lists the optional interfaces that the store implements.
	Capabilities []string      `json:"capabilities"`
	Guarantees   []ByGuarantee `json:"guarantees"`
}

// ByGuarantee holds the results of one guarantee's cases.
type ByGuarantee struct {
	ID    string   `json:"id"`
	Cases []Result `json:"cases"`
}

// Execute runs the cases whose guarantee/name matches pattern (nil: all), outside go test, and
// reports every one of them. When ctx ends, Execute returns soon with the cases that have finished.
func Execute(ctx context.Context, h Harness, pattern *regexp.Regexp) Report {
	RunChild()
	report := Report{Suite: version.String(), Effort: effort.Name()}
	describe(ctx, h, &report)
	var selected []Case
	for _, c := range Cases() {
		if pattern == nil || pattern.MatchString(c.Guarantee+"/"+c.Name) {
			selected = append(selected, c)
		}
	}
	results := make([]*Result, len(selected)) // nil: not run
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	for i, c := range selected {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			result := execute(ctx, h, c)
			if ctx.Err() == nil { // a case that was cut short proves nothing
				results[i] = &result
			}
		})
	}
	wg.Wait()
	for _, id := range Guarantees() {
		by := ByGuarantee{ID: id, Cases: []Result{}}
		for i, c := range selected {
			switch {
			case c.Guarantee != id:
			case results[i] == nil:
				report.Summary.NotRun++
			default:
				by.Cases = append(by.Cases, *results[i])
				report.Count(results[i].Status)
			}
		}
		if len(by.Cases) > 0 {
			report.Guarantees = append(report.Guarantees, by)
		}
	}
	return report
}

// Count adds a case to the summary.
func (r *Report) Count(s Status) {
	switch s {
	case Passed:
		r.Summary.Passed++
	case Failed:
		r.Summary.Failed++
	case NotApplicable:
		r.Summary.NotApplicable++
	}
}

// Find returns the case called name, written guarantee/name.
func Find(name string) (Case, bool) {
	for _, c := range Cases() {
		if c.Guarantee+"/"+c.Name == name {
			return c, true
		}
	}
	return Case{}, false
}

// RunCase runs one case on a store of the harness, outside go test.
func RunCase(ctx context.Context, h Harness, c Case) Result {
	RunChild()
	return execute(ctx, h, c)
}

func execute(ctx context.Context, h Harness, c Case) Result {
	began := time.Now()
	result := Result{Name: c.Name, Status: Passed}
	failed, messages := RunPlain(ctx, c.Guarantee+"/"+c.Name, func(t T) {
		e := newEnv(t, h, c)
		if result.Reason = c.missing(e); result.Reason != "" {
			result.Status = NotApplicable
			return
		}
		defer func() { result.LeftOut = e.leftOut.all }()
		c.run(t, e)
	})
	if failed {
		result.Status, result.Reason, result.Doc = Failed, strings.Join(messages, "\n"), c.Doc
	}
	result.MS = time.Since(began).Milliseconds()
	return result
}

// describe fills in what a store of the harness runs on and which capabilities it has.
func describe(ctx context.Context, h Harness, report *Report) {
	report.Engine, report.Version, report.Tier = "unknown", "unknown", "unknown"
	report.Capabilities = []string{}
	RunPlain(ctx, "describe", func(t T) {
		s := newEnv(t, h, Case{}).Store
		report.Capabilities = capabilities(s)
		if d, ok := runstore.As[runstore.Describer](s); ok {
			about, err := d.Describe(t.Context())
			if err != nil {
				t.Fatalf("describe: %v", err)
			}
			report.Engine, report.Version, report.Tier = about.Engine, about.Version, about.Tier
		}
	})
	if h.Tier != "" {
		report.Tier = h.Tier
	}
}

func capabilities(s runstore.RunStore) []string {
	has := []string{}
	add := func(name string, ok bool) {
		if ok {
			has = append(has, name)
		}
	}
	_, multi := runstore.As[runstore.MultiCommitter](s)
	_, notify := runstore.As[runstore.Notifier](s)
	_, runs := runstore.As[runstore.RunNotifier](s)
	_, epoch := runstore.As[runstore.EpochManager](s)
	_, stale := runstore.As[runstore.StaleReader](s)
	_, describes := runstore.As[runstore.Describer](s)
	add("MultiCommitter", multi)
	add("Notifier", notify)
	add("RunNotifier", runs)
	add("EpochManager", epoch)
	add("StaleReader", stale)
	add("Describer", describes)
	add("StrictCommitter", strictAtCommit(s))
	return has
}
