package report

import (
	"fmt"
	"strings"
)

// verdict is the result of the run in one word, for a mark beside its sentence.
type verdict string

const (
	kept       verdict = "passed"     // every engine was available and no case failed
	broken     verdict = "failed"     // a case failed, or an engine did
	incomplete verdict = "incomplete" // an engine was not available, or proved nothing
)

// sorted holds the names of a run's engines by their result.
type sorted struct {
	kept, failed  []string
	broke         []string // engines that broke, without a failed case
	missing, idle []string // idle: no case applies
	cut           []string // interrupted, and no case had failed
}

func (m *matrix) sort() (s sorted) {
	for i, c := range m.Columns {
		switch t := m.Total[i]; {
		case t.Failed > 0:
			s.failed = append(s.failed, c.Name+m.violated(i))
		case c.Broken != "":
			s.broke = append(s.broke, c.Name)
		case c.Report == nil:
			s.missing = append(s.missing, c.Name)
		case c.Report.Summary.NotRun > 0:
			s.cut = append(s.cut, c.Name)
		case t.Passed == 0:
			s.idle = append(s.idle, c.Name)
		default:
			s.kept = append(s.kept, c.Name)
		}
	}
	return s
}

// violated lists the guarantees that an engine violates: " (I3, I9)".
func (m *matrix) violated(engine int) string {
	var ids []string
	for _, r := range m.Rows {
		if r.Cells[engine].Failed > 0 {
			ids = append(ids, r.ID)
		}
	}
	return " (" + strings.Join(ids, ", ") + ")"
}

// Verdict returns the result of the run in one word.
func (m *matrix) Verdict() verdict {
	s := m.sort()
	switch {
	case len(s.failed)+len(s.broke) > 0:
		return broken
	case len(s.missing)+len(s.idle)+len(s.cut)+len(m.NotRun) > 0 || len(s.kept) == 0:
		return incomplete
	default:
		return kept
	}
}

// Result returns the result of the run in one sentence; Counts returns it in numbers.
func (m *matrix) Result() string {
	s := m.sort()
	ran := fmt.Sprintf("%d engines", len(m.Columns))
	if n := len(s.kept) + len(s.failed) + len(s.idle) + len(s.cut); n < len(m.Columns) {
		ran = fmt.Sprintf("the %d engines that ran", n)
	}
	what := m.Subject()
	if m.Pattern != "" {
		what = "what the selected cases check"
	}
	var parts []string
	add := func(format string, args ...any) {
		if first := format[:1]; len(parts) == 0 { // capitalize, but not the name of an engine
			format = strings.ToUpper(first) + format[1:]
		}
		parts = append(parts, fmt.Sprintf(format, args...))
	}
	switch n := len(s.failed); {
	case n == 1 && len(s.kept)+len(s.idle) == 0:
		add("%s does not keep %s", s.failed[0], what)
	case n == 1:
		add("one of %s does not keep %s: %s", ran, what, s.failed[0])
	case n > 1:
		add("%d of %s do not keep %s: %s", n, ran, what, list(s.failed))
	case len(s.kept) == 1:
		add("%s keeps %s", s.kept[0], what)
	case len(s.kept) > 0 && len(s.kept) == len(m.Columns):
		add("all %d engines keep %s", len(s.kept), what)
	case len(s.kept) > 1:
		add("%s keep %s", list(s.kept), what)
	}
	if len(s.broke) > 0 {
		add("%s did not start or end as it should", list(s.broke))
	}
	if len(s.missing) > 0 {
		add("nothing is known of %s: not found on this machine", list(s.missing))
	}
	if len(s.idle) > 0 {
		add("no case applies to %s", list(s.idle))
	}
	if len(s.cut) > 0 {
		add("%s was interrupted before all cases had run", list(s.cut))
	}
	if len(m.NotRun) > 0 {
		add("%s not run: interrupted", list(m.NotRun))
	}
	if len(parts) == 0 {
		add("nothing was run")
	}
	return strings.Join(parts, "; ") + "."
}

// Subject returns what the cases check.
func (r Run) Subject() string {
	if r.Protocol {
		return "the protocol"
	}
	return "the contract"
}

// Counts adds up the cases of all engines.
func (m *matrix) Counts() string {
	sum := m.Sum()
	counts := fmt.Sprintf("%s passed, %d failed, %d not applicable", Cases(sum.Passed), sum.Failed, sum.NotApplicable)
	if sum.NotRun > 0 {
		counts += fmt.Sprintf(", %d not run", sum.NotRun)
	}
	return counts
}

// Cases returns a number of cases in words: "1 case".
func Cases(n int) string {
	if n == 1 {
		return "1 case"
	}
	return fmt.Sprintf("%d cases", n)
}

// list returns "a, b and c".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
