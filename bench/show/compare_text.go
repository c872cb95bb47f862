package show

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/bench"
)

// Compare writes the changes from a to b that exceed the noise of their samples, and returns the
// difference.
func Compare(w io.Writer, a, b bench.Report) (Difference, error) {
	d := Diff(a, b)
	var out strings.Builder
	for i, r := range []bench.Report{a, b} {
		fmt.Fprintf(&out, "%c: %s, %s, by tapestore %s\n", 'A'+i, date(r.Began), newView(r).ScaleText(), plain(cmp.Or(r.Version, "of unknown version")))
	}
	for _, text := range d.Warnings {
		fmt.Fprintf(&out, "WARNING: %s\n", plain(text))
	}
	for _, show := range []struct {
		verdict Verdict
		about   string
	}{
		{Worse, ""}, {Improved, ""}, {Changed, "neither direction is better"},
		{Suspected, "differ by their own samples, but so many would by chance; measure more rounds"},
	} {
		d.write(&out, show.verdict, show.about)
	}
	d.writeFew(&out)
	d.writeMetrics(&out)
	reason := "B did not measure their part or their system"
	if a.Scale != b.Scale {
		reason = "the scales differ"
	}
	for _, only := range []struct {
		in, about string
		all       []bench.Result
	}{
		{"lost in B", " (B measured the same part of the same system, and has no such result, or one of another size)", d.Lost},
		{"only in A", " (" + reason + ")", d.OnlyA}, {"only in B", "", d.OnlyB},
	} {
		if len(only.all) > 0 {
			fmt.Fprintf(&out, "\n%s: %s%s\n", only.in, count(len(only.all), "result"), only.about)
		}
		for _, r := range only.all {
			fmt.Fprintf(&out, "  %s\n", plain(name(r)))
		}
	}
	d.writeMethod(&out)
	_, err := io.WriteString(w, out.String())
	return d, err
}

func (d Difference) write(out *strings.Builder, v Verdict, about string) {
	all := d.Of(v)
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s: %d", v, len(all))
	if about != "" {
		fmt.Fprintf(out, " (%s)", about)
	}
	out.WriteString("\n")
	slices.SortStableFunc(all, func(x, y Change) int { return cmp.Compare(math.Abs(y.relative()), math.Abs(x.relative())) })
	table := [][]string{{"", "A", "B", "unit", "change", "p", "samples"}}
	for _, c := range all {
		change := fmt.Sprintf("%+.1f %%", 100*c.relative())
		if math.IsInf(c.relative(), 0) {
			change = "from 0"
		}
		table = append(table, []string{
			name(c.Result) + ": " + c.Metric, number(c.A), number(c.B), c.Unit, change,
			fmt.Sprintf("%.4f", c.P), fmt.Sprintf("%d, %d", c.NA, c.NB),
		})
	}
	write(out, table)
}

// relative returns the change of the median as a fraction of the former median.
func (c Change) relative() float64 {
	if c.A == 0 {
		return math.Inf(1)
	}
	return (c.B - c.A) / math.Abs(c.A)
}

func (d Difference) writeFew(out *strings.Builder) {
	few := slices.DeleteFunc(d.Of(TooFew), func(c Change) bool { return c.A == c.B })
	if len(few) == 0 {
		return
	}
	fmt.Fprintf(out, "\ntoo few samples to say: %d; each side needs %d rounds or more (--rounds)\n", len(few), roundsFor(falseDiscoveries))
	for _, c := range few {
		fmt.Fprintf(out, "  %s: %s (%d, %d samples)\n", plain(name(c.Result)), plain(c.Metric), c.NA, c.NB)
	}
}

// writeMetrics lists the metrics that cannot be compared: one line for each metric and reason.
func (d Difference) writeMetrics(out *strings.Builder) {
	if len(d.Metrics) == 0 {
		return
	}
	fmt.Fprintf(out, "\nmetrics that are not compared: %d\n", len(d.Metrics))
	for _, m := range d.Metrics {
		fmt.Fprintf(out, "  %s: %s: %s\n", plain(name(m.Result)), plain(m.Metric), plain(m.Reason))
	}
}

func (d Difference) writeMethod(out *strings.Builder) {
	n := d.tested()
	fmt.Fprintf(out, "\nunchanged, as far as the samples show: %d\n", len(d.Of(Unchanged)))
	fmt.Fprintf(out, "%s by the Mann-Whitney U test. By chance alone %.0f would differ at 5 %%; of the changes\n", count(n, "comparison"), math.Ceil(falseDiscoveries*float64(n)))
	fmt.Fprintf(out, "reported as such at most 5 %% are expected to be chance (Benjamini-Hochberg).\n")
	if n > 0 {
		if need := roundsFor(falseDiscoveries / float64(n)); d.fewest() < need {
			fmt.Fprintf(out, "With so many comparisons a change of a single metric is found from %d rounds on (--rounds %d).\n", need, need)
		}
	}
	out.WriteString("The test knows the noise within each run, not what differs from run to run, such as other load on the\n" +
		"machine. Repeat both before you act on a small change.\n")
}

// fewest returns the smallest number of samples of any comparison.
func (d Difference) fewest() int {
	least := math.MaxInt
	for _, c := range d.Changes {
		if c.Verdict != TooFew {
			least = min(least, c.NA, c.NB)
		}
	}
	return least
}

// name returns a one-line description of a result.
func name(r bench.Result) string {
	words := slices.DeleteFunc([]string{r.Part, r.Group, r.System, r.Side, setting(r.Params)}, func(w string) bool { return w == "" })
	return strings.Join(words, " / ")
}
