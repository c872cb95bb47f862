package show

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tapestore/tapestore/bench"
)

// number formats a figure with about three significant digits and separated thousands.
func number(v float64) string {
	switch abs := math.Abs(v); {
	case v == 0:
		return "0"
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case abs >= 99.95:
		return thousands(strconv.FormatFloat(v, 'f', 0, 64))
	case abs >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case abs >= 0.9995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
}

func thousands(digits string) string {
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// short formats the figure of a tick: 20k, 1.5M.
func short(v float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= unit.of*0.9999 {
			return strconv.FormatFloat(v/unit.of, 'g', 4, 64) + unit.name
		}
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// withUnit formats a figure with its unit, "2,310 wins/s"; a ratio or a count has none.
func withUnit(v float64, unit string) string {
	return strings.TrimSpace(number(v) + " " + unit)
}

// header returns a metric's name with its unit, for a column or an axis.
func header(name, unit string) string {
	switch {
	case unit == "":
		return name
	case name == bench.Rate:
		return unit
	default:
		return name + ", " + unit
	}
}

// setting formats parameters, "16 contenders, id: yes", without those in skip.
func setting(params map[string]string, skip ...string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if slices.Contains(skip, name) {
			continue
		}
		words = append(words, oneSetting(name, params[name]))
	}
	return strings.Join(words, ", ")
}

func oneSetting(name, value string) string {
	v, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return name + ": " + value
	}
	if v == math.Trunc(v) {
		value = thousands(strconv.FormatFloat(v, 'f', 0, 64))
	}
	if v == 1 && strings.HasSuffix(name, "s") {
		name = strings.TrimSuffix(name, "s")
	}
	return value + " " + name
}

// compareParams orders settings: numbers by their value, parameters by name.
func compareParams(a, b map[string]string) int {
	names := slices.Sorted(maps.Keys(a))
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if c := compareValues(a[name], b[name]); c != 0 {
			return c
		}
	}
	return 0
}

func compareValues(a, b string) int {
	x, errA := strconv.ParseFloat(a, 64)
	y, errB := strconv.ParseFloat(b, 64)
	if errA == nil && errB == nil {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(a, b)
}

// duration formats a time for display, "2 min 5 s".
func duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
}

// memory formats a size for display.
func memory(bytes int64) string {
	if bytes <= 0 {
		return "unknown"
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}

func date(t time.Time) string { return t.UTC().Format("2 January 2006, 15:04 UTC") }

// count formats a count with its noun, "1 fault" or "3 faults".
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return thousands(strconv.Itoa(n)) + " " + what
}

// plain returns a text on one line, without characters that a terminal would interpret.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}
