package report

import (
	"fmt"
	"slices"
)

// exemption is a reason why cases do not apply, with all of these cases.
type exemption struct {
	ID, Reason string
	Groups     []exemptGroup

	cases []exemptCase
}

// exemptGroup lists the cases that a reason excludes on the same engines.
type exemptGroup struct{ Engines, Cases []string }

// exemptCase is one case, and the engines on which it does not apply.
type exemptCase struct {
	name    string
	engines []int
}

// exempt records that a case does not apply on an engine, and returns the anchor of the reason on a
// page.
func (m *matrix) exempt(reason, name string, engine int) (place string) {
	at := slices.IndexFunc(m.Exempt, func(e exemption) bool { return e.Reason == reason })
	if at < 0 {
		at = len(m.Exempt)
		m.Exempt = append(m.Exempt, exemption{ID: fmt.Sprintf("not-applicable-%d", at+1), Reason: reason})
	}
	e := &m.Exempt[at]
	i := slices.IndexFunc(e.cases, func(c exemptCase) bool { return c.name == name })
	if i < 0 {
		i = len(e.cases)
		e.cases = append(e.cases, exemptCase{name: name})
	}
	e.cases[i].engines = append(e.cases[i].engines, engine)
	return e.ID
}

// group groups the cases that do not apply on the same engines. It is called once all are known.
func (m *matrix) group() {
	for at := range m.Exempt {
		e := &m.Exempt[at]
		var sets [][]int // the engines of each group
		for _, c := range e.cases {
			i := slices.IndexFunc(sets, func(s []int) bool { return slices.Equal(s, c.engines) })
			if i < 0 {
				i = len(sets)
				sets = append(sets, c.engines)
				group := exemptGroup{}
				for _, engine := range c.engines {
					group.Engines = append(group.Engines, m.Columns[engine].Name)
				}
				e.Groups = append(e.Groups, group)
			}
			e.Groups[i].Cases = append(e.Groups[i].Cases, c.name)
		}
	}
}
