package command

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/tapestore/tapestore/bench"
)

// benchProgress shows the progress of a benchmark run on standard error: as a bar on a terminal,
// elsewhere as a line for each part of each engine.
type benchProgress struct {
	w        io.Writer
	terminal bool
	began    time.Time
	last     bench.Progress
}

func newBenchProgress(w io.Writer) *benchProgress {
	p := &benchProgress{w: w, began: time.Now()}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// benchLine is the maximal length of a progress line: a longer line would wrap on a terminal of 80
// columns and could not be overwritten.
const benchLine = 79

func (p *benchProgress) show(now bench.Progress) {
	switch {
	case p.terminal:
		text := []rune(barOf(now, time.Since(p.began)))
		fmt.Fprint(p.w, "\r"+string(text[:min(len(text), benchLine)])+"\x1b[K")
	case now.System != p.last.System || now.Part != p.last.Part:
		fmt.Fprintln(p.w, lineOf(now, time.Since(p.began)))
	}
	p.last = now
}

// wipe removes the bar from a terminal before other output.
func (p *benchProgress) wipe() {
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// barOf returns "[####----------------] 20 % 1m5s, 4m20s left postgres cas: 16 contenders".
func barOf(now bench.Progress, elapsed time.Duration) string {
	const cells = 20
	done := int(now.Done * cells)
	return fmt.Sprintf("[%s%s] %s", strings.Repeat("#", done), strings.Repeat("-", cells-done), lineOf(now, elapsed))
}

func lineOf(now bench.Progress, elapsed time.Duration) string {
	text := fmt.Sprintf("%3.0f %%  %s", now.Done*100, elapsed.Round(time.Second))
	if left, ok := remaining(now.Done, elapsed); ok {
		text += ", " + left.Round(time.Second).String() + " left"
	}
	text += "  " + now.System
	switch {
	case now.Part == "":
		text += ": starting"
	case now.What == "":
		text += " " + now.Part
	default:
		text += " " + now.Part + ": " + now.What
	}
	return text
}

// remaining estimates the remaining time of a run from its progress. There is no estimate in the
// first twentieth, in which an engine may still be starting.
func remaining(done float64, elapsed time.Duration) (time.Duration, bool) {
	if done < 0.05 {
		return 0, false
	}
	return time.Duration(float64(elapsed) * (1 - done) / done), true
}
