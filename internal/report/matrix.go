package report

import (
	"fmt"
	"slices"

	"github.com/tapestore/tapestore/conformance"
)

// matrix is a run in tabular form: guarantees by engines.
type matrix struct {
	Run
	Columns  []column
	Rows     []row
	Total    []cell
	Failures []failure
	Exempt   []exemption
	RPCs     []row // the methods of the wire protocol; none in a run of the store's contract
}

// column is an engine.
type column struct {
	Engine
	ID string // the anchor of its heading on a page
}

// Absent is the text in place of results if the engine was not available.
func (c column) Absent() string {
	switch {
	case c.Report != nil:
		return ""
	case c.Missing != "":
		return "missing"
	default:
		return "not run"
	}
}

// Where describes where the engine was running.
func (c column) Where() string {
	switch {
	case c.Report == nil && c.Missing != "":
		return "missing"
	case c.Report == nil:
		return "did not start"
	case c.Report.Tier == "emulator":
		return "emulated"
	case c.Report.Engine == "memory":
		return "in memory"
	default:
		return c.Report.Tier
	}
}

// row is a guarantee, or another group of cases.
type row struct {
	ID, Name, Sentence string
	Cells              []cell
	Cases              []caseRow
	Failed             []string // the engines that violate it
}

// cell counts a guarantee's cases on an engine. All counts are zero if none was run.
type cell struct {
	Passed, Failed, NotApplicable int

	Absent string // why there are no cases, if the engine was not available
	Target string // the anchor of the cases on a page
}

func (c *cell) count(s conformance.Status) {
	switch s {
	case conformance.Passed:
		c.Passed++
	case conformance.NotApplicable:
		c.NotApplicable++
	default: // an unknown status has not passed
		c.Failed++
	}
}

// None reports that no case was run.
func (c cell) None() bool { return c.Passed+c.Failed+c.NotApplicable == 0 }

// caseRow is one case on every engine.
type caseRow struct {
	Name  string
	Cells []outcome
}

// outcome is the result of a case on an engine.
type outcome struct {
	conformance.Result
	Ran    bool
	Target string // the anchor of the reason on a page, if there is one
}

// Passed reports that the case passed. A case that neither passed nor is not applicable has failed.
func (o outcome) Passed() bool { return o.Status == conformance.Passed }

// NotApplicable reports that the case does not apply.
func (o outcome) NotApplicable() bool { return o.Status == conformance.NotApplicable }

// failure is a case that failed on an engine.
type failure struct {
	ID, Engine, Case, Reason, Doc string
	MS                            int64
}

func newMatrix(r Run) *matrix {
	m := &matrix{Run: r, Total: make([]cell, len(r.Engines))}
	for i, e := range r.Engines {
		m.Columns = append(m.Columns, column{Engine: e, ID: fmt.Sprintf("engine-%d", i+1)})
		m.Total[i].Absent = m.Columns[i].Absent()
	}
	for _, id := range groups(r.Engines) {
		m.Rows = append(m.Rows, m.newRow(id))
	}
	m.group()
	if r.Protocol {
		m.addRPCs()
	}
	return m
}

// groups returns the guarantees that have cases, in their order, and then the other groups in the
// order of the reports.
func groups(engines []Engine) []string {
	var found, ordered []string
	for _, e := range engines {
		if e.Report == nil {
			continue
		}
		for _, g := range e.Report.Guarantees {
			if !slices.Contains(found, g.ID) {
				found = append(found, g.ID)
			}
		}
	}
	for _, id := range conformance.Guarantees() {
		if slices.Contains(found, id) {
			ordered = append(ordered, id)
		}
	}
	for _, id := range found {
		if !slices.Contains(ordered, id) {
			ordered = append(ordered, id)
		}
	}
	return ordered
}

// newRow collects the results of a guarantee on every engine.
func (m *matrix) newRow(id string) row {
	r := row{ID: id, Name: name(id), Sentence: sentences[id], Cells: make([]cell, len(m.Columns))}
	for i, c := range m.Columns {
		r.Cells[i] = cell{Absent: c.Absent(), Target: fmt.Sprintf("%s-%s", id, c.ID)}
		if c.Report == nil {
			continue
		}
		for _, g := range c.Report.Guarantees {
			if g.ID == id {
				for _, result := range g.Cases {
					m.add(&r, i, result)
				}
			}
		}
		if r.Cells[i].Failed > 0 {
			r.Failed = append(r.Failed, c.Name)
		}
	}
	return r
}

// add adds a result to a row, and its reason to the exemptions.
func (m *matrix) add(r *row, engine int, result conformance.Result) {
	r.Cells[engine].count(result.Status)
	m.Total[engine].count(result.Status)
	at := slices.IndexFunc(r.Cases, func(c caseRow) bool { return c.Name == result.Name })
	if at < 0 {
		at = len(r.Cases)
		r.Cases = append(r.Cases, caseRow{Name: result.Name, Cells: make([]outcome, len(m.Columns))})
	}
	o := outcome{Result: result, Ran: true}
	full := r.ID + "/" + result.Name
	switch {
	case o.NotApplicable():
		o.Target = m.exempt(result.Reason, full, engine)
	case !o.Passed():
		o.Target = fmt.Sprintf("failed-%d", len(m.Failures)+1)
		m.Failures = append(m.Failures, failure{o.Target, m.Columns[engine].Name, full, result.Reason, result.Doc, result.MS})
	}
	r.Cases[at].Cells[engine] = o
}
