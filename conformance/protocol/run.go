package protocol

import (
	"context"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/conformance/version"
	"github.com/tapestore/tapestore/internal/wrap"
)

// Run runs the suite against a server as subtests of t, named by the cases' IDs. Cases that do not
// apply to the server are skipped with the reason. The cases run in parallel, except on a costly
// engine.
func Run(t *testing.T, target Target) {
	t.Helper()
	RunCases(t, target, Cases()...)
}

// RunCases runs the given cases as Run does.
func RunCases(t *testing.T, target Target, cases ...Case) {
	t.Helper()
	s, err := Inspect(t.Context(), target)
	if err != nil {
		t.Fatalf("the server at %s: %v", target.Address, err)
	}
	ran := map[string]bool{} // by group
	for _, c := range cases {
		leave := target.Like != "" && !effort.Full() && ran[c.Group]
		ran[c.Group] = true
		t.Run(c.ID(), func(t *testing.T) {
			if leave {
				t.Skipf("left to make test-full: the other cases of each group on a store with the statements of %s", target.Like)
			}
			if !c.Alone && !target.Costly {
				t.Parallel()
			}
			if why := c.missing(s); why != "" {
				t.Skipf("not applicable: %s", why)
			}
			t.Cleanup(func() { // runs after the cleanups of the case
				if t.Failed() {
					t.Logf("about the case:\n%s", wrap.Text(c.Doc, 88, ""))
				}
			})
			c.Run(t, newEnv(t, s))
		})
	}
}

// Execute runs the cases whose ID matches pattern (nil matches all) outside go test and reports
// each of them. It calls done, if not nil, after each case. When ctx ends, Execute returns soon,
// with the results of the cases that have finished.
//
// Errors: the server did not answer the calls of Inspect.
func Execute(ctx context.Context, target Target, pattern *regexp.Regexp, done func()) (conformance.Report, error) {
	report := conformance.Report{Suite: version.String(), Effort: effort.Name(), Engine: "server", Version: target.Address, Tier: "remote"}
	s, err := Inspect(ctx, target)
	if err != nil {
		return report, err
	}
	report.Capabilities = s.capabilities()
	var selected []Case
	for _, c := range Cases() {
		if pattern == nil || pattern.MatchString(c.ID()) {
			selected = append(selected, c)
		}
	}
	results := make([]*conformance.Result, len(selected)) // a nil entry was not run
	run := func(i int) {
		if ctx.Err() != nil {
			return
		}
		result := execute(ctx, s, selected[i])
		if ctx.Err() == nil { // an interrupted case has no result
			results[i] = &result
		}
		if done != nil {
			done()
		}
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	if target.Costly { // concurrent cases conflict on a costly engine, which makes calls slower
		slots = make(chan struct{}, 1)
	}
	for i, c := range selected {
		if c.Alone {
			run(i)
		}
	}
	for i, c := range selected {
		if c.Alone {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			run(i)
		})
	}
	wg.Wait()
	collect(&report, selected, results)
	return report, nil
}

// collect adds results to a report, by group.
func collect(report *conformance.Report, cases []Case, results []*conformance.Result) {
	for _, group := range Groups() {
		by := conformance.ByGuarantee{ID: group, Cases: []conformance.Result{}}
		for i, c := range cases {
			switch {
			case c.Group != group:
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
}

// RunCase runs one case against a server, outside go test.
//
// Errors: the server did not answer the calls of Inspect.
func RunCase(ctx context.Context, target Target, c Case) (conformance.Result, error) {
	s, err := Inspect(ctx, target)
	if err != nil {
		return conformance.Result{}, err
	}
	return execute(ctx, s, c), nil
}

// execute runs one case against a server and returns its result; NotApplicable if a need is not
// met.
func execute(ctx context.Context, s *Server, c Case) conformance.Result {
	began := time.Now()
	result := conformance.Result{Name: c.name(), Status: conformance.Passed}
	if result.Reason = c.missing(s); result.Reason != "" {
		result.Status = conformance.NotApplicable
		return result
	}
	broke, messages := conformance.RunPlain(ctx, c.ID(), func(t T) {
		e := newEnv(t, s)
		defer func() { result.LeftOut, result.RPCs = e.leftOut, e.called.list() }()
		c.Run(t, e)
	})
	if broke {
		result.Status, result.Reason, result.Doc = conformance.Failed, strings.Join(messages, "\n"), c.Doc
	}
	result.MS = time.Since(began).Milliseconds()
	return result
}

// capabilities returns the names of the server's capabilities, for reports.
func (s *Server) capabilities() []string {
	all := []string{"fence=" + string(s.Mode)}
	for _, c := range []struct {
		name string
		has  bool
	}{{"Grants", s.Grants}, {"Generations", s.Generations}, {"BusinessKeys", s.BusinessKeys}, {"Values", s.Values}, {"Feeds", s.Feeds}, {"Reactions", s.Reactions}} {
		if c.has {
			all = append(all, c.name)
		}
	}
	return all
}
