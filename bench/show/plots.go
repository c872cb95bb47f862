package show

import (
	"maps"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/bench"
)

// Plot declares which results are drawn, and how.
type Plot struct {
	Part, Group string // Group "" matches every group of the part
	// X is the parameter of the horizontal axis. A plot without one, or whose results have only
	// one value of it, is drawn as bars.
	X string
	// Y names the metrics, each drawn in a figure of its own. A * matches any text.
	Y       []string
	Bars    bool   // also where X has several values
	Caption string // explains how to read the plot
}

// plots declares the plots of a report. The first plot that matches a group draws it.
var plots = []Plot{
	{Part: "cas", X: "contenders", Y: []string{bench.Rate, "winner p50", "winner p99", "loser p50", "attempts per win"}},
	{Part: "pause", Y: []string{"takeover"}, Bars: true},
	{Part: "handover", X: "standbys", Y: []string{"next grant", "next grant p95", "requests per *"}, Bars: true},
	{
		Part: "commit", X: "writers", Y: []string{"of hand-written", "of *", bench.Rate, "latency p50"},
		Caption: "1 is the side that the ratio names, through the same client, measured in turn with the store.",
	},
	{Part: "read", Group: "journal replay", X: "events", Y: []string{bench.Rate, "allocations per event", "held memory"}},
	{Part: "read", Y: []string{"of *", bench.Rate, "*p50"}},
	{
		Part: "scale", Group: "live leases", X: "live leases", Y: []string{"scan p50", "turn p50", "requests per *", "allocations per scan"},
		Caption: "A turn takes the lease of a run that is due, and releases it.",
	},
	{Part: "scale", Group: "first scan", X: "live leases", Y: []string{"first scan", "requests per *"}},
	{Part: "scale", Group: "run size", X: "records", Y: []string{"commit p50", "read p50", "page p50", "requests per *"}},
	{Part: "scale", Group: "purge", X: "events", Y: []string{"slowest heartbeat during *", "purge", "requests per *"}},
	{Part: "scale", Group: "handles", X: "handles", Y: []string{"feed lag p50", "feed lag p99", "requests per *", "commit p50"}},
	{Part: "heartbeat", Y: []string{"leases per core", "CPU per renewal", "largest share *"}, Bars: true},
	{Part: "protocol", Group: "RPCs", X: "clients", Y: []string{bench.Rate, "RPC p50", "store calls per RPC"}},
	{Part: "protocol", Group: "idle streams", X: "streams", Y: []string{"of *", bench.Rate, "CPU at rest", "store calls at rest"}, Bars: true},
	{Part: "protocol", Group: "matching", Y: []string{bench.Rate, "CPU per entry", "store calls per entry"}, Bars: true},
	{
		Part: "protocol", Group: "claims", X: "workers", Y: []string{bench.Rate, "attempts per claim", "claim p50"},
		Caption: "An attempt is a commit. The goal is at most 1.5 per claim, with any number of workers and servers.",
	},
}

// plotOf returns the declaration for a group, or a declaration of its first metric.
func plotOf(g group) Plot {
	p := Plot{Part: g.Part}
	for _, declared := range plots {
		if declared.Part == g.Part && (declared.Group == "" || declared.Group == g.Name) {
			p = declared
			break
		}
	}
	if len(matching(p.Y, g.columns())) == 0 {
		p.Y = []string{bench.Rate}
		if columns := g.columns(); len(matching(p.Y, columns)) == 0 && len(columns) > 0 {
			p.Y = []string{columns[0].Name}
		}
	}
	if len(distinct(g.Results, p.X)) <= 1 {
		p.X = widest(g.Results)
	}
	return p
}

// plotted returns the columns of a group that its plot draws.
func plotted(g group) []column { return matching(plotOf(g).Y, g.columns()) }

// matching returns the columns that the patterns match, in the order of the patterns.
func matching(patterns []string, columns []column) (all []column) {
	for _, pattern := range patterns {
		for _, c := range columns {
			if matches(pattern, c.Name) && !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all
}

func matches(pattern, name string) bool {
	begin, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	if middle, end, two := strings.Cut(rest, "*"); two {
		return strings.HasPrefix(name, begin) && strings.Contains(name, middle) && strings.HasSuffix(name, end)
	}
	return strings.HasPrefix(name, begin) && strings.HasSuffix(name, rest)
}

// distinct returns the values of a parameter, in order.
func distinct(results []bench.Result, param string) (values []string) {
	for _, r := range results {
		if v, ok := r.Params[param]; ok && !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	slices.SortFunc(values, compareValues)
	return values
}

// widest returns the numeric parameter with the most values; "" if each has only one.
func widest(results []bench.Result) (param string) {
	most := 1
	names := make(map[string]bool)
	for _, r := range results {
		for name := range r.Params {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		values := distinct(results, name)
		if _, ok := numeric(values[0]); ok && len(values) > most {
			param, most = name, len(values)
		}
	}
	return param
}
