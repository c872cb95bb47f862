package show

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tapestore/tapestore/bench"
)

// view is a report in the order in which it is shown.
type view struct {
	bench.Report
	Parts   []part
	systems map[string]bench.System
}

// part holds the results of one part of the benchmark.
type part struct {
	Name, Title, Doc string
	Groups           []group
	Faults           []bench.Fault
	Notes            []bench.Note
}

// group is a set of results that share one table.
type group struct {
	Part, Name string
	Results    []bench.Result
}

// newView groups the results, faults and notes of a report by part, in the order of bench.Parts.
func newView(r bench.Report) *view {
	r = finite(r)
	v := &view{Report: r, systems: make(map[string]bench.System)}
	for _, s := range r.Systems {
		if have, ok := v.systems[s.Name]; !ok || have.Missing != "" {
			v.systems[s.Name] = s
		}
	}
	for _, known := range bench.Parts() {
		v.part(known.Name)
	}
	for _, result := range r.Results {
		p := v.part(result.Part)
		i := slices.IndexFunc(p.Groups, func(g group) bool { return g.Name == result.Group })
		if i < 0 {
			i = len(p.Groups)
			p.Groups = append(p.Groups, group{Part: result.Part, Name: result.Group})
		}
		p.Groups[i].Results = append(p.Groups[i].Results, result)
	}
	for _, f := range r.Faults {
		if f.Part != "" {
			p := v.part(f.Part)
			p.Faults = append(p.Faults, f)
		}
	}
	for _, n := range r.Notes {
		if n.Part != "" {
			p := v.part(n.Part)
			p.Notes = append(p.Notes, n)
		}
	}
	v.Parts = slices.DeleteFunc(v.Parts, func(p part) bool {
		return len(p.Groups) == 0 && len(p.Faults) == 0 && len(p.Notes) == 0
	})
	return v
}

// part returns the part with the given name, and adds it if necessary.
func (v *view) part(name string) *part {
	for i := range v.Parts {
		if v.Parts[i].Name == name {
			return &v.Parts[i]
		}
	}
	p := part{Name: name, Title: name}
	for _, known := range bench.Parts() {
		if known.Name == name {
			p.Title, p.Doc = cmp.Or(known.Title, name), known.Doc
		}
	}
	v.Parts = append(v.Parts, p)
	return &v.Parts[len(v.Parts)-1]
}

// GeneralFaults returns the faults that belong to no part, such as an engine that did not start.
func (v *view) GeneralFaults() (all []bench.Fault) {
	for _, f := range v.Faults {
		if f.Part == "" {
			all = append(all, f)
		}
	}
	return all
}

// GeneralNotes returns the notes that belong to no part.
func (v *view) GeneralNotes() (all []bench.Note) {
	for _, n := range v.Notes {
		if n.Part == "" {
			all = append(all, n)
		}
	}
	return all
}

// apart reports whether a system's figures must not be next to an engine's: the system is an
// emulator, keeps nothing on disk, or is not described in the report.
func (v *view) apart(system string) bool {
	s, ok := v.systems[system]
	return !ok || s.Emulated() || !s.Durable
}

// Missing returns the systems without results.
func (v *view) Missing() (all []bench.System) {
	for _, s := range v.Systems {
		if s.Missing != "" {
			all = append(all, s)
		}
	}
	return all
}

// Measured returns the measured systems.
func (v *view) Measured() (all []bench.System) {
	for _, s := range v.Systems {
		if s.Missing == "" {
			all = append(all, s)
		}
	}
	return all
}

// rank returns the position of a system in the report.
func (v *view) rank(system string) int {
	i := slices.IndexFunc(v.Systems, func(s bench.System) bool { return s.Name == system })
	if i < 0 {
		return len(v.Systems)
	}
	return i
}

// where returns a short description of a system: version, topology, tier.
func where(s bench.System) string {
	words := slices.DeleteFunc([]string{s.Version, s.Topology, s.Tier}, func(w string) bool { return w == "" })
	return strings.Join(words, " · ")
}

// Title returns the group's name, or its part's.
func (g group) Title() string { return cmp.Or(g.Name, g.Part) }

// column is a metric of a group.
type column struct {
	Name, Unit string
	Better     bench.Better
}

func (c column) Header() string { return header(c.Name, c.Unit) }

// columns returns the metrics of the group's results, in the order of their first appearance.
func (g group) columns() (all []column) {
	for _, r := range g.Results {
		for _, m := range r.Metrics {
			if !slices.ContainsFunc(all, func(c column) bool { return c.Name == m.Name && c.Unit == m.Unit }) {
				all = append(all, column{m.Name, m.Unit, m.Better})
			}
		}
	}
	return all
}

// of returns the metric of a result in this column.
func (c column) of(r bench.Result) (bench.Metric, bool) {
	for _, m := range r.Metrics {
		if m.Name == c.Name && m.Unit == c.Unit && len(m.Samples) > 0 {
			return m, true
		}
	}
	return bench.Metric{}, false
}

// side identifies what a result measures, apart from its setting.
type side struct{ System, Side string }

func (s side) String() string {
	if s.Side == "" {
		return s.System
	}
	return s.System + " · " + s.Side
}

func sideOf(r bench.Result) side { return side{r.System, r.Side} }

// sides returns the sides of the results, by system in the order of the report.
func (v *view) sides(results []bench.Result) (all []side) {
	for _, r := range results {
		if s := sideOf(r); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b side) int { return cmp.Compare(v.rank(a.System), v.rank(b.System)) })
	return all
}

// sorted returns the results sorted by setting, then by side.
func (v *view) sorted(results []bench.Result) []bench.Result {
	order := v.sides(results)
	all := slices.Clone(results)
	slices.SortStableFunc(all, func(a, b bench.Result) int {
		return cmp.Or(
			compareParams(a.Params, b.Params),
			cmp.Compare(slices.Index(order, sideOf(a)), slices.Index(order, sideOf(b))),
		)
	})
	return all
}

// settings returns the distinct parameters of results, in order.
func settings(results []bench.Result) (all []map[string]string) {
	for _, r := range results {
		if !slices.ContainsFunc(all, func(p map[string]string) bool { return maps.Equal(p, r.Params) }) {
			all = append(all, r.Params)
		}
	}
	slices.SortStableFunc(all, compareParams)
	return all
}

// numeric parses the value of a parameter as a number; ok is false if it is not one.
func numeric(value string) (float64, bool) {
	v, err := strconv.ParseFloat(value, 64)
	return v, err == nil
}
