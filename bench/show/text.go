package show

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tapestore/tapestore/bench"
)

// lineWidth is the maximum width of a text table; wider tables are split.
const lineWidth = 132 // columns: a wide terminal, and a page of a text editor

// Text writes the report for a terminal. Each group has a table for each plotted metric, with a row
// for each setting and a column for each system and side, and then one table for the other metrics
// with a row for each result. A figure is the median of its samples, or their maximum where the
// metric is one, followed by the least and the largest sample.
func Text(w io.Writer, r bench.Report) error {
	v := newView(r)
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", v.Result())
	fmt.Fprintf(&b, "%s, %s, in %s, by tapestore %s\n", v.ScaleText(), date(v.Began), duration(v.Took), plain(cmp.Or(v.Version, "of unknown version")))
	if v.Command != "" {
		fmt.Fprintf(&b, "%s\n", plain(v.Command))
	}
	fmt.Fprintf(&b, "on %s\n", plain(machine(v.Machine)))
	b.WriteString("Figures are medians of their samples, or maxima where they say max, longest or slowest; in parentheses the least and the largest sample.\n")
	v.textSystems(&b)
	v.textRemarks(&b, v.GeneralFaults(), v.GeneralNotes())
	for _, p := range v.Parts {
		fmt.Fprintf(&b, "\n%s: %s\n", strings.ToUpper(plain(p.Name)), plain(p.Title))
		for _, g := range p.Groups {
			v.textGroup(&b, g)
		}
		v.textRemarks(&b, p.Faults, p.Notes)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Result returns the outcome of the run in one sentence.
func (v *view) Result() string {
	words := count(len(v.Results), "result") + " of " + count(len(v.Measured()), "system")
	if n := len(v.Missing()); n > 0 {
		words += ", " + fmt.Sprint(n) + " missing"
	}
	if n := len(v.Faults); n > 0 {
		return words + "; " + count(n, "fault")
	}
	if len(v.Results) == 0 {
		return words + "; nothing was measured"
	}
	return words + "; no faults"
}

// ScaleText returns the name of the scale, and a warning if its figures mean nothing.
func (v *view) ScaleText() string {
	if v.Scale == bench.Smoke().Name {
		return "scale smoke, whose figures mean nothing"
	}
	return "scale " + cmp.Or(plain(v.Scale), "unknown")
}

// machine formats a machine's description in one line.
func machine(m bench.Machine) string {
	text := fmt.Sprintf("%s, %s, %s memory, %s, %s", cmp.Or(m.CPU, "an unknown CPU"), count(m.Cores, "core"), memory(m.Memory), cmp.Or(m.OS, "an unknown system"), m.Go)
	if m.SyncMS > 0 {
		text += fmt.Sprintf(", 4 KiB written and synced in %s ms", number(m.SyncMS))
	}
	return text
}

func (v *view) textSystems(b *strings.Builder) {
	b.WriteString("\nSystems\n")
	for _, s := range v.Systems {
		if s.Missing != "" {
			fmt.Fprintf(b, "  %s: missing: %s\n", plain(s.Name), plain(s.Missing))
			continue
		}
		var marks []string
		if s.Peer {
			marks = append(marks, "peer")
		}
		if s.Emulated() {
			marks = append(marks, "EMULATED: its figures say nothing of the engine")
		}
		if !s.Durable {
			marks = append(marks, "not durable")
		}
		fmt.Fprintf(b, "  %s: %s\n", plain(s.Name), plain(strings.Join(append([]string{where(s)}, marks...), "; ")))
	}
}

func (v *view) textRemarks(b *strings.Builder, faults []bench.Fault, notes []bench.Note) {
	for _, f := range faults {
		fmt.Fprintf(b, "  FAULT %s: %s\n", plain(f.System), plain(f.Text))
	}
	for _, n := range notes {
		fmt.Fprintf(b, "  note %s: %s\n", plain(n.System), plain(n.Text))
	}
}

func (v *view) textGroup(b *strings.Builder, g group) {
	main := plotted(g)
	varying := varyingParams(g.Results)
	for _, c := range main {
		fmt.Fprintf(b, "\n  %s: %s\n", plain(g.Title()), plain(c.Header()))
		for _, home := range v.homes(g.Results) {
			v.textTable(b, home, c, varying)
		}
	}
	rest := slices.DeleteFunc(g.columns(), func(c column) bool { return slices.Contains(main, c) })
	if len(rest) == 0 {
		return
	}
	fmt.Fprintf(b, "\n  %s: further metrics\n", plain(g.Title()))
	table := [][]string{{""}}
	for _, c := range rest {
		table[0] = append(table[0], c.Header())
	}
	for _, r := range v.sorted(g.Results) {
		row := []string{strings.Trim(v.mark(sideOf(r))+", "+setting(r.Params), ", ")}
		for _, c := range rest {
			row = append(row, value(r, c))
		}
		table = append(table, row)
	}
	write(b, table)
}

// mark returns a side's name; a side of an emulator has a star.
func (v *view) mark(s side) string {
	if v.systems[s.System].Emulated() {
		return s.System + "* " + s.Side
	}
	return strings.TrimSpace(s.System + " " + s.Side)
}

func cellOf(results []bench.Result, params map[string]string, s side, c column) string {
	for _, r := range results {
		if sideOf(r) == s && maps.Equal(r.Params, params) {
			return value(r, c)
		}
	}
	return ""
}

// value formats a figure with the range of its samples, "3,310 (3,100–3,420)".
func value(r bench.Result, c column) string {
	m, ok := c.of(r)
	if !ok {
		return ""
	}
	if least, most := number(slices.Min(m.Samples)), number(slices.Max(m.Samples)); least != most {
		return number(m.Value()) + " (" + least + "–" + most + ")"
	}
	return number(m.Value())
}

// write writes a table whose first row is its head and whose first column names the rows. It splits
// a table that is too wide into several, and leaves out rows that are empty in one of these.
func write(b *strings.Builder, table [][]string) {
	widths := make([]int, len(table[0]))
	for _, row := range table {
		for i := range row {
			row[i] = plain(row[i])
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for from := 1; from < len(widths); {
		to, used := from, 4+widths[0]
		for to < len(widths) && (to == from || used+2+widths[to] <= lineWidth) {
			used += 2 + widths[to]
			to++
		}
		for n, row := range table {
			if n > 0 && strings.Join(row[from:to], "") == "" {
				continue
			}
			line := "    " + row[0] + strings.Repeat(" ", widths[0]-utf8.RuneCountInString(row[0]))
			for i := from; i < to; i++ {
				line += "  " + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(row[i])) + row[i]
			}
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
		from = to
	}
}

// textTable writes the table of a metric of one engine: a row for each setting, a column for each
// side.
func (v *view) textTable(b *strings.Builder, home []bench.Result, c column, varying []string) {
	order := v.sides(home)
	table := [][]string{{v.headline(v.home(order[0].System))}}
	for _, s := range order {
		table[0] = append(table[0], v.label(s))
	}
	filled := false
	for _, params := range settings(home) {
		row := []string{"  " + only(params, varying)}
		for _, s := range order {
			row = append(row, cellOf(home, params, s, c))
		}
		filled = filled || strings.Join(row[1:], "") != ""
		table = append(table, row)
	}
	if filled {
		write(b, table)
	}
}

// headline returns an engine's name, with the reasons for which it must not be ranked.
func (v *view) headline(system string) string {
	if m := marks(v.systems[system]); len(m) > 0 {
		return system + " (" + strings.Join(m, ", ") + ")"
	}
	return system
}

// only formats the parameters that vary.
func only(params map[string]string, varying []string) string {
	kept := make(map[string]string)
	for _, name := range varying {
		if value, ok := params[name]; ok {
			kept[name] = value
		}
	}
	return setting(kept)
}
