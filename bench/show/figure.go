package show

import (
	"cmp"
	"html/template"
	"maps"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/bench"
)

// figure is one metric of one group, with a panel for each engine.
type figure struct {
	Title, Caption string
	Panels, Apart  []panel
}

// panel draws the sides of one engine, its peers among them.
type panel struct {
	Name   string
	Where  string // version, topology, tier
	Marks  []string
	Lines  *chart
	Bars   *bars
	Legend []entry // of lines
}

type entry struct {
	Label string
	Color int
	Mark  template.HTMLAttr // the path of its marker: d="…"
	Peer  bool
}

// colors is the number of colors of the page; further series use them again, with other markers.
const colors = 8

// facetsShown is the maximum number of figures for settings other than the horizontal axis: 4. A
// reader cannot compare more at a glance; the table has the rest.
const facetsShown = 4

// figures draws a group as its plot declares.
func (v *view) figures(g group) (all []figure) {
	p := plotOf(g)
	for _, c := range plotted(g) {
		with := slices.DeleteFunc(slices.Clone(g.Results), func(r bench.Result) bool { _, ok := c.of(r); return !ok })
		if strings.HasPrefix(c.Name, "of ") || p.Bars || len(distinct(with, p.X)) <= 1 {
			all = append(all, v.figure(g, p, c, with, nil))
			continue
		}
		facets := facetsOf(with, p.X)
		for i, facet := range facets {
			if i == facetsShown {
				break
			}
			all = append(all, v.figure(g, p, c, facet, facets))
		}
	}
	return all
}

// facetsOf splits results by their parameters other than x. A facet with only one value of x cannot
// be drawn as a line; if all facets are like that, the results stay together.
func facetsOf(results []bench.Result, x string) (facets [][]bench.Result) {
	var at []map[string]string
	for _, r := range results {
		rest := maps.Clone(r.Params)
		delete(rest, x)
		i := slices.IndexFunc(at, func(p map[string]string) bool { return maps.Equal(p, rest) })
		if i < 0 {
			i = len(at)
			at, facets = append(at, rest), append(facets, nil)
		}
		facets[i] = append(facets[i], r)
	}
	lines := slices.DeleteFunc(slices.Clone(facets), func(f []bench.Result) bool { return len(distinct(f, x)) <= 1 })
	if len(lines) == 0 {
		return [][]bench.Result{results}
	}
	slices.SortStableFunc(lines, func(a, b []bench.Result) int { return compareParams(without(a[0].Params, x), without(b[0].Params, x)) })
	return lines
}

func without(params map[string]string, name string) map[string]string {
	rest := maps.Clone(params)
	delete(rest, name)
	return rest
}

// figure draws one metric; facets are the facets to which the results belong, if any.
func (v *view) figure(g group, p Plot, c column, results []bench.Result, facets [][]bench.Result) figure {
	f := figure{Title: g.Title() + ": " + title(c), Caption: p.Caption}
	if !strings.HasPrefix(c.Name, "of ") && strings.HasPrefix(p.Caption, "1 is ") {
		f.Caption = ""
	}
	if len(facets) > 1 {
		f.Title += ", " + setting(results[0].Params, p.X)
	}
	var real, apart []bench.Result
	for _, r := range results {
		if v.apart(r.System) {
			apart = append(apart, r)
		} else {
			real = append(real, r)
		}
	}
	f.Panels = v.panels(p, c, real, facets != nil, false, v.palette(g.Results))
	f.Apart = v.panels(p, c, apart, facets != nil, true, v.palette(g.Results))
	return f
}

// title returns a metric's name for display.
func title(c column) string {
	switch {
	case c.Name == bench.Rate && c.Unit != "":
		return c.Unit
	case c.Unit != "":
		return c.Name + " in " + c.Unit
	default:
		return c.Name
	}
}

// palette assigns a color number to each side of a group, the same in all panels: by name for a
// store's side, by system and name for a peer's.
func (v *view) palette(results []bench.Result) map[string]int {
	numbers := make(map[string]int)
	for _, s := range v.sides(results) {
		if label := v.label(s); !hasKey(numbers, label) {
			numbers[label] = len(numbers)
		}
	}
	return numbers
}

func hasKey(m map[string]int, key string) bool { _, ok := m[key]; return ok }

// label returns a side's name within a panel. A store's system is clear from the panel.
func (v *view) label(s side) string {
	if v.systems[s.System].Peer {
		return s.String()
	}
	return cmp.Or(s.Side, s.System)
}

// homes splits results by the engine in whose panel they are drawn.
func (v *view) homes(results []bench.Result) (all [][]bench.Result) {
	results = slices.Clone(results)
	slices.SortStableFunc(results, func(a, b bench.Result) int { return cmp.Compare(v.rank(a.System), v.rank(b.System)) })
	var keys []string
	for _, r := range results {
		i := slices.Index(keys, v.home(r.System))
		if i < 0 {
			i = len(keys)
			keys, all = append(keys, v.home(r.System)), append(all, nil)
		}
		all[i] = append(all[i], r)
	}
	return all
}

// panels makes a panel for each engine. Panels that stand apart have an axis each, and the others
// share one. Peers on the same engine are in the panel of its store.
func (v *view) panels(p Plot, c column, results []bench.Result, lines, apart bool, palette map[string]int) (all []panel) {
	axis := axisFor(c, results)
	for _, results := range v.homes(results) {
		if apart {
			axis = axisFor(c, results)
		}
		name := v.home(results[0].System)
		s := v.systems[name]
		made := panel{Name: name, Where: where(s), Marks: marks(s)}
		if lines {
			made.Lines, made.Legend = v.lines(p, c, results, axis, palette)
		} else {
			made.Bars = v.bars(c, results, axis, palette)
		}
		all = append(all, made)
	}
	return all
}

// home returns the system in whose panel a system's results are drawn: for a peer, the store that
// it took turns with, which precedes it in the report. A peer whose figures stand apart while those
// of the store do not has a panel of its own.
func (v *view) home(system string) string {
	if !v.systems[system].Peer {
		return system
	}
	home := system
	for _, other := range v.Systems {
		if other.Name == system {
			break
		}
		if !other.Peer && other.Missing == "" {
			home = other.Name
		}
	}
	if v.apart(home) != v.apart(system) {
		return system
	}
	return home
}

// marks returns warnings about figures that must not be ranked.
func marks(s bench.System) (all []string) {
	if s.Emulated() {
		all = append(all, "emulator")
	}
	if !s.Durable {
		all = append(all, "not durable")
	}
	return all
}
