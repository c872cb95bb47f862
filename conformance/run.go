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
	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/cases"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/leasecases"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/conformance/version"
	"github.com/tapestore/tapestore/internal/wrap"
)

// EffortVariable is the environment variable that selects a full run: with TAPESTORE_EFFORT=full,
// cases do all their rounds.
const EffortVariable = effort.Variable

// Run runs the suite as subtests of t, named guarantee/case. A case that does not apply to the
// store is skipped with its reason, and listed on standard output after the last case, because go
// test shows skips only with -v. A panic in a call of the store fails the case.
func Run(t *testing.T, h Harness) {
	t.Helper()
	RunChild()
	var left exempt
	t.Cleanup(func() { left.print(os.Stdout, t.Name()) })
	for _, c := range Cases() {
		subtest(t, h, c, &left)
	}
}

// subtest runs the case as a parallel subtest of t, or adds it to left if it does not apply.
func subtest(t *testing.T, h Harness, c Case, left *exempt) {
	t.Helper()
	t.Run(c.Guarantee+"/"+c.Name, func(t *testing.T) {
		t.Parallel()
		explainFailure(t, c)
		panics.Guarded(t, func() {
			e := harness.NewEnv(t, h, c)
			if reason := c.Missing(e); reason != "" {
				left.add(reason, c.Guarantee+"/"+c.Name)
				t.Skipf("not applicable: %s", reason)
			}
			runAndCheck(t, c, e)
		})()
	})
}

// explainFailure logs the case's Doc if the case fails, after all of its messages. It must be
// called before any other cleanup is registered.
func explainFailure(t *testing.T, c Case) {
	t.Cleanup(func() {
		if t.Failed() { // 88 columns, and go test adds 12
			t.Logf("about the case:\n%s", wrap.Text(c.Doc, 88, ""))
		}
	})
}

// runAndCheck runs the case and then checks what must hold after every case.
func runAndCheck(t T, c Case, e *Env) {
	t.Helper()
	c.Run(t, e)
	e.CheckEpochs(t)
}

// RunChild runs the task of a child process and then exits, if a crash case started this process as
// its child; otherwise it returns at once. Run and Execute call it. A program that does other work
// before calling them calls RunChild first.
func RunChild() { kit.RunChild(cases.ChildRoles(), leasecases.Roles()) }

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
		subtest(t, h, c, &left)
	}
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

// RunCase runs one case on a store of the harness, outside go test.
func RunCase(ctx context.Context, h Harness, c Case) Result {
	RunChild()
	return execute(ctx, h, c)
}

func execute(ctx context.Context, h Harness, c Case) Result {
	began := time.Now()
	result := Result{Name: c.Name, Status: Passed}
	failed, messages := RunPlain(ctx, c.Guarantee+"/"+c.Name, func(t T) {
		e := harness.NewEnv(t, h, c)
		if result.Reason = c.Missing(e); result.Reason != "" {
			result.Status = NotApplicable
			return
		}
		defer func() { result.LeftOut = e.LeftOut() }()
		runAndCheck(t, c, e)
	})
	if failed {
		result.Status, result.Reason, result.Doc = Failed, strings.Join(messages, "\n"), c.Doc
	}
	result.MS = time.Since(began).Milliseconds()
	return result
}
