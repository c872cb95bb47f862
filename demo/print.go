package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// narrator prints the story as it goes, and then the evidence.
type narrator struct {
	mu     sync.Mutex
	out    io.Writer
	colour bool
	start  time.Time
}

func newNarrator(out io.Writer, colour bool) *narrator {
	n := &narrator{out: out, colour: colour, start: time.Now()}
	fmt.Fprintln(out)
	return n
}

// isTerminal reports whether colours are welcome.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
}

// The colours, as terminals know them.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	blue   = "34"
	purple = "35"
	cyan   = "36"
	bold   = "1"
)

var actors = map[string]string{"worker-1": yellow, "worker-2": purple, "worker-3": green, "bank": cyan, "server": blue}

func (n *narrator) paint(colour, text string) string {
	if !n.colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// say prints what somebody did.
func (n *narrator) say(who, what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.out, "%7.3f  %s  %s\n", time.Since(n.start).Seconds(), n.paint(actors[who], fmt.Sprintf("%-8s", who)), what)
}

// act prints what the demo did to somebody.
func (n *narrator) act(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.out, "%7.3f  %s\n", time.Since(n.start).Seconds(), n.paint(bold, "── "+what))
}

// evidence prints what was seen and found, and returns an error if something was not
// as it should be.
func (n *narrator) evidence(e evidence, found []finding) error {
	n.journal(e)
	n.bank(e)
	n.zombie(e)
	return n.verdict(found)
}

func (n *narrator) title(format string, args ...any) {
	fmt.Fprintf(n.out, "\n%s\n\n", n.paint(bold, fmt.Sprintf(format, args...)))
}

func (n *narrator) journal(e evidence) {
	n.title("The journal of run %s, read from the store's file", e.RunID)
	t := tabwriter.NewWriter(n.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  seq\ttime\ttoken\towner\tkind\twhat")
	for _, j := range e.Journal {
		fmt.Fprintf(t, "  %3d\t%7.3f\t%5v\t%s\t%s\t%s\n", j.Seq, j.Time.Sub(n.start).Seconds(), j.Token, j.Owner, j.Kind, j)
	}
	_ = t.Flush()
}

// String tells what an event says.
func (j entry) String() string {
	switch j.Kind {
	case "decision":
		return fmt.Sprintf("%d: %s", j.Decision, j.Rationale)
	case "effect":
		return j.Tool + " " + j.Status
	default:
		return j.Status
	}
}

func (n *narrator) bank(e evidence) {
	n.title("The bank's ledger")
	t := tabwriter.NewWriter(n.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  calls\tapplied\tmoved\treference\tidempotency key")
	for _, p := range e.Bank {
		note := ""
		if p.Key == e.Killed.Key {
			note = "  (in flight at the kill)"
		}
		fmt.Fprintf(t, "  %5d\t%7d\t%13s\t%s\t…%s%s\n", p.Calls, p.Applied, money(p.Moved), p.Reply.Reference,
			strings.TrimPrefix(p.Key, e.RunID), note)
	}
	_ = t.Flush()
}

func (n *narrator) zombie(e evidence) {
	refused := 0
	for _, a := range e.Zombie.Attempts {
		if a.Refused {
			refused++
		}
	}
	n.title("worker-2, stopped for %v under a lease of %v: %d of %d writes refused, exit status %d",
		e.Zombie.Paused.Round(time.Millisecond), e.TTL, refused, len(e.Zombie.Attempts), e.Zombie.Exit)
}

func (n *narrator) verdict(found []finding) error {
	failed := 0
	for _, f := range found {
		mark := n.paint(green, "ok    ")
		if len(f.Faults) > 0 {
			failed++
			mark = n.paint(red, "FAILED")
		}
		fmt.Fprintf(n.out, "  %s  %s\n", mark, f.Rule)
		for _, fault := range f.Faults {
			fmt.Fprintf(n.out, "          %s\n", fault)
		}
	}
	if failed > 0 {
		fmt.Fprintln(n.out)
		return fmt.Errorf("%d of %d checks failed", failed, len(found))
	}
	fmt.Fprintf(n.out, "\nAll %d checks passed, %.1f s.\n", len(found), time.Since(n.start).Seconds())
	return nil
}
