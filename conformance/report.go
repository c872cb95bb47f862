package conformance

import (
	"context"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

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
	// LeftOut lists what the case left out, such as "5000 of 100000 events" in a quick run.
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

// describe fills in what a store of the harness runs on and which capabilities it has.
func describe(ctx context.Context, h Harness, report *Report) {
	report.Engine, report.Version, report.Tier = "unknown", "unknown", "unknown"
	report.Capabilities = []string{}
	RunPlain(ctx, "describe", func(t T) {
		s := harness.NewEnv(t, h, Case{}).Store
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
	_, terms := runstore.As[runstore.TermReader](s)
	_, moves := runstore.As[runstore.Mover](s)
	_, stale := runstore.As[runstore.StaleReader](s)
	_, describes := runstore.As[runstore.Describer](s)
	add("MultiCommitter", multi)
	add("Notifier", notify)
	add("RunNotifier", runs)
	add("EpochManager", epoch)
	add("TermReader", terms)
	add("Mover", moves)
	add("StaleReader", stale)
	add("Describer", describes)
	add("StrictCommitter", kit.StrictAtCommit(s))
	return has
}
