package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/internal/wrap"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// RPC is the result of a run for one method of the wire protocol. Its JSON form is stable.
type RPC struct {
	Name    string    `json:"rpc"`
	Engines []RPCCell `json:"engines"`
}

// RPCCell is the result of a run for a method on one engine.
type RPCCell struct {
	Engine string `json:"engine"`
	// State is "failed" if a case that calls the method failed, else "passed" if one passed, else
	// "not applicable" if none applies, and "no case" if there is none.
	State string `json:"state"`
	// Cases are the cases that call the method, by their full names.
	Passed        []string `json:"passed,omitempty"`
	Failed        []string `json:"failed,omitempty"`
	NotApplicable []string `json:"not_applicable,omitempty"`
	// Reasons are why the cases do not apply.
	Reasons []string `json:"reasons,omitempty"`
}

// rpcNames returns the methods of the protocol, in its order.
func rpcNames() (all []string) {
	methods := tapepb.File_tape_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		all = append(all, string(methods.Get(i).Name()))
	}
	return all
}

// callers returns, for each case by its full name, the methods that it called on any engine. For a
// case that does not apply on one engine, they are known from another.
func callers(engines []Engine) map[string][]string {
	all := map[string][]string{}
	for _, e := range engines {
		if e.Report == nil {
			continue
		}
		for _, g := range e.Report.Guarantees {
			for _, c := range g.Cases {
				name := g.ID + "/" + c.Name
				all[name] = append(all[name], c.RPCs...)
			}
		}
	}
	return all
}

// addRPCs collects the cases of each method on each engine, once the rows are known.
func (m *matrix) addRPCs() {
	calls := callers(m.Engines)
	for _, name := range rpcNames() {
		r := row{ID: name, Name: name, Cells: make([]cell, len(m.Columns))}
		for i, c := range m.Columns {
			r.Cells[i] = cell{Absent: cmp.Or(c.Absent(), "no case"), Target: fmt.Sprintf("%s-%s", name, c.ID)}
		}
		for _, group := range m.Rows {
			for _, c := range group.Cases {
				full := group.ID + "/" + c.Name
				if !slices.Contains(calls[full], name) {
					continue
				}
				r.Cases = append(r.Cases, caseRow{Name: full, Cells: c.Cells})
				for i, o := range c.Cells {
					if o.Ran {
						r.Cells[i].count(o.Status)
					}
				}
			}
		}
		for i, c := range r.Cells {
			if c.Failed > 0 {
				r.Failed = append(r.Failed, m.Columns[i].Name)
			}
		}
		m.RPCs = append(m.RPCs, r)
	}
}

// state is a cell of a method in words.
func (c cell) state() string {
	switch {
	case c.Failed > 0:
		return "failed"
	case c.Passed > 0:
		return "passed"
	case c.NotApplicable > 0:
		return "not applicable"
	default:
		return c.Absent
	}
}

// rpcs returns the matrix of methods for programs; nil for a run of the store's contract.
func (r Run) rpcs() (all []RPC) {
	m := newMatrix(r)
	for _, line := range m.RPCs {
		rpc := RPC{Name: line.Name}
		for i, c := range line.Cells {
			found := RPCCell{Engine: m.Columns[i].Name, State: c.state()}
			for _, of := range line.Cases {
				o := of.Cells[i]
				switch {
				case !o.Ran:
				case o.Passed():
					found.Passed = append(found.Passed, of.Name)
				case o.NotApplicable():
					found.NotApplicable = append(found.NotApplicable, of.Name)
					if !slices.Contains(found.Reasons, o.Reason) {
						found.Reasons = append(found.Reasons, o.Reason)
					}
				default:
					found.Failed = append(found.Failed, of.Name)
				}
			}
			rpc.Engines = append(rpc.Engines, found)
		}
		all = append(all, rpc)
	}
	return all
}

// textRPCs writes a line for each method with a column for each engine, and below that the cases of
// each method.
func (m *matrix) textRPCs(b *strings.Builder) {
	if len(m.RPCs) == 0 {
		return
	}
	b.WriteString("\nRPCs by engines\n")
	m.lines(b, "RPC, with passed/failed/not applicable", m.RPCs, func(r row) string { return r.Name }, func(c cell) string {
		if c.None() {
			return c.Absent
		}
		if c.Failed == 0 && c.Passed > 0 {
			return "passed " + c.text()
		}
		if c.Failed == 0 {
			return "not applicable " + c.text()
		}
		return c.text()
	})
	b.WriteString("\nThe cases behind each RPC\n")
	for _, r := range m.RPCs {
		var names []string
		for _, c := range r.Cases {
			name := c.Name
			if reason := c.reason(); reason != "" {
				name += " (not applicable: " + reason + ")"
			}
			names = append(names, name)
		}
		if len(names) == 0 {
			names = []string{"none"}
		}
		fmt.Fprintf(b, "  %s\n%s\n", r.Name, wrap.Text(plain(strings.Join(names, ", ")), 96, "    "))
	}
}

// reason returns why a case applies to no engine.
func (c caseRow) reason() (reason string) {
	for _, o := range c.Cells {
		if o.Ran && o.Status != conformance.NotApplicable {
			return ""
		}
		if o.Ran {
			reason = o.Reason
		}
	}
	return reason
}
