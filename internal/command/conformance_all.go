package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/internal/report"
)

// order is the order of the engines in reports and messages: from the simplest to the one that only
// its vendor runs. Other engines come last.
var order = []string{"memory", "sqlite", "postgres", "alloydb", "bigtable", "spanner"}

// starter is a function that starts an engine, with the engine's name.
type starter struct {
	name  string
	start func(ctx context.Context) (subject, error)
}

func inOrder(starters map[string]func(ctx context.Context) (subject, error)) (all []starter) {
	names := slices.Clone(order)
	for _, name := range slices.Sorted(maps.Keys(starters)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if start, ok := starters[name]; ok {
			all = append(all, starter{name, start})
		}
	}
	return all
}

// engineNames returns "memory, sqlite, postgres or alloydb".
func engineNames() string {
	var names []string
	for _, s := range inOrder(starters) {
		names = append(names, s.name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// everyEngine runs the suite on one engine after the other, until ctx ends. Each engine is stopped
// before the next one starts, so that they do not compete for the machine. Results that were
// complete when ctx ended are kept; notRun names the engines without results.
func everyEngine(ctx context.Context, all []starter, cases suite, p *progress) (engines []report.Engine, notRun []string) {
	p.engines = len(all)
	for _, s := range all {
		var e report.Engine
		if ctx.Err() == nil {
			p.begin(s.name)
			e = runOn(ctx, s, cases, p)
		}
		if ctx.Err() != nil && (e.Report == nil || len(e.Report.Guarantees) == 0) {
			notRun = append(notRun, s.name)
			continue
		}
		p.end(e)
		engines = append(engines, e)
	}
	return engines, notRun
}

func runOn(ctx context.Context, s starter, cases suite, p *progress) (e report.Engine) {
	began := time.Now()
	defer func() { e.MS = time.Since(began).Milliseconds() }()
	e.Name = s.name
	on, err := s.start(ctx)
	switch {
	case errors.Is(err, emulators.ErrMissing):
		e.Missing = oneLine(err)
		return e
	case err != nil:
		e.Broken = oneLine(err)
		return e
	}
	e.Started = on.about
	p.started(on.about)
	found, err := cases.execute(ctx, on.harness, p.done)
	if err == nil {
		e.Report = &found
	} else {
		e.Broken = oneLine(err)
	}
	if err := on.close(); err != nil {
		e.Broken = oneLine(fmt.Errorf("to end it: %w", err))
	}
	return e
}

// judge returns the error that determines the exit status of a run on every engine: a failed case,
// an engine that broke and, if CI is set, a missing engine.
func judge(run report.Run) error {
	var faults []error
	for _, e := range run.Engines {
		if e.Report != nil && e.Report.Summary.Failed > 0 {
			faults = append(faults, fmt.Errorf("%s does not keep %s", e.Name, run.Subject()))
		}
		if e.Broken != "" {
			faults = append(faults, fmt.Errorf("%s: %s", e.Name, e.Broken))
		}
		if e.Missing != "" && missingFails() {
			faults = append(faults, fmt.Errorf("%s is missing, which fails where CI is set: %s", e.Name, e.Missing))
		}
	}
	return errors.Join(faults...)
}

// missingFails reports whether a missing engine counts as a failure here, by the rule of the tests.
func missingFails() bool {
	var v verdict
	emulators.Require(&v, emulators.ErrMissing)
	return v.fatal
}

// verdict is a fake test that records its result.
type verdict struct{ fatal bool }

func (v *verdict) Helper()               {}
func (v *verdict) Skipf(string, ...any)  {}
func (v *verdict) Fatalf(string, ...any) { v.fatal = true }
