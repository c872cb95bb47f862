package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// event is one line of go test -json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// report collects the events of all groups.
type report struct {
	out      io.Writer
	measured string // the file of CPU times

	mu       sync.Mutex
	output   map[string][]string // of each running test and package
	packages []packageResult
	failures []string
	skipped  map[string]int // tests by reason
	reduced  map[string]int // cases by package
}

type packageResult struct {
	path    string
	wall    time.Duration
	tests   int
	skipped int
	passed  bool
}

func newReport(out io.Writer) *report {
	return &report{
		out: out, measured: filepath.Join(os.TempDir(), fmt.Sprintf("testrun-%d.txt", os.Getpid())),
		output: map[string][]string{}, skipped: map[string]int{}, reduced: map[string]int{},
	}
}

func (r *report) line(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, format+"\n", args...)
}

func (r *report) fail(what, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, what+": "+why)
}

// labelled returns the name in the report of a package, or its directory, in a group with that
// label.
func labelled(path, label string) string {
	return strings.TrimSuffix(path+" "+label, " ")
}

// read reads the output of one go test -json.
func (r *report) read(in io.Reader, label string) {
	lines := bufio.NewReader(in)
	counts := map[string]*packageResult{}
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
				r.take(e, label, counts)
			} else {
				r.line("%s", strings.TrimSuffix(line, "\n"))
			}
		}
		if err != nil {
			return
		}
	}
}

// take processes one event. counts holds the results of the packages of its go test.
func (r *report) take(e event, label string, counts map[string]*packageResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path := labelled(cmp.Or(e.Package, e.ImportPath), label)
	key := path + "\x00" + e.Test
	p := counts[path]
	if p == nil {
		p = &packageResult{path: path}
		counts[path] = p
	}
	switch e.Action {
	case "output", "build-output":
		r.output[key] = append(r.output[key], e.Output)
		if e.Test != "" && strings.Contains(e.Output, ": reduced: ") {
			r.reduced[path]++
		}
		return
	case "build-fail":
		fmt.Fprint(r.out, strings.Join(r.output[key], ""))
	case "pass", "skip":
		if e.Test != "" {
			p.tests++
			if e.Action == "skip" {
				p.skipped++
				r.skipped[reason(r.output[key])]++
			}
			break
		}
		p.passed, p.wall = true, seconds(e.Elapsed)
		r.packages = append(r.packages, *p)
		fmt.Fprintf(r.out, "ok    %-60s %6.1f s  %d tests, %d skipped\n", path, e.Elapsed, p.tests, p.skipped)
	case "fail":
		fmt.Fprint(r.out, strings.Join(r.output[key], ""))
		r.failures = append(r.failures, strings.TrimSpace(path+" "+e.Test))
		if e.Test == "" {
			r.unfinished(path)
			p.wall = seconds(e.Elapsed)
			r.packages = append(r.packages, *p)
			fmt.Fprintf(r.out, "FAIL  %-60s %6.1f s\n", path, e.Elapsed)
		}
	default:
		return
	}
	delete(r.output, key)
}

// unfinished prints the output of the tests that a package began and did not end, because its process
// crashed, was killed or took too long. The stacks of all goroutines are in the output of one of them.
func (r *report) unfinished(path string) {
	const most = 3000 // lines
	for _, key := range slices.Sorted(maps.Keys(r.output)) {
		test, ok := strings.CutPrefix(key, path+"\x00")
		if !ok || test == "" {
			continue
		}
		lines := r.output[key]
		fmt.Fprintf(r.out, "%s did not end:\n%s", test, strings.Join(lines[:min(len(lines), most)], ""))
		delete(r.output, key)
	}
}

// reason returns why a test was skipped: the first line that it logged.
func reason(output []string) string {
	for _, line := range output {
		if strings.HasPrefix(strings.TrimSpace(line), "---") || strings.HasPrefix(line, "===") {
			continue
		}
		_, why, found := strings.Cut(strings.TrimSpace(line), ": ") // after file:line
		if found {
			return why
		}
	}
	return "no reason given"
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// print prints where the time went, what was skipped and left out, and what failed.
func (r *report) print(took time.Duration, full, raceEverywhere, race bool) (passed bool) {
	cpu := r.cpu()
	slices.SortFunc(r.packages, func(a, b packageResult) int { return cmp.Compare(b.wall, a.wall) })
	fmt.Fprintf(r.out, "\n%-60s %8s %8s\n", "package", "wall s", "CPU s")
	for _, p := range r.packages {
		fmt.Fprintf(r.out, "%-60s %8.1f %8.1f\n", p.path, p.wall.Seconds(), cpu[p.path].Seconds())
	}
	fmt.Fprintln(r.out, "\nskipped, by reason:")
	for _, why := range slices.SortedFunc(maps.Keys(r.skipped), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.skipped[b], r.skipped[a]), cmp.Compare(a, b))
	}) {
		fmt.Fprintf(r.out, "%5d  %s\n", r.skipped[why], why)
	}
	if !full {
		fmt.Fprintln(r.out, "\nleft to make test-full, and the mutants to make mutants:")
		if !raceEverywhere {
			fmt.Fprintln(r.out, "       the race detector on the packages that start servers or processes or share no memory, on most of SQLite's tests, on archive, crossrun, retain/bucket, tapeserver/cuts and tapeserver/fuzz")
		}
		fmt.Fprint(r.out,
			"       engines in containers, go vet, staticcheck, and the lint of the other modules\n")
		for _, path := range slices.Sorted(maps.Keys(r.reduced)) {
			fmt.Fprintf(r.out, "       some rounds of cases in %s (%d reductions, listed by go test -v)\n", path, r.reduced[path])
		}
	}
	if !race {
		fmt.Fprintln(r.out, "\nthe race detector was OFF")
	}
	fmt.Fprintf(r.out, "\n%d packages in %.0f s\n", len(r.packages), took.Seconds())
	for _, f := range r.failures {
		fmt.Fprintln(r.out, "FAILED:", f)
	}
	return len(r.failures) == 0 && len(r.packages) > 0
}

// cpu returns the CPU time of each package's tests.
func (r *report) cpu() map[string]time.Duration {
	all := map[string]time.Duration{}
	text, err := os.ReadFile(r.measured)
	if err != nil {
		return all
	}
	_ = os.Remove(r.measured) // on failure a small file stays in the temporary directory
	for line := range strings.Lines(string(text)) {
		directory, ms, _ := strings.Cut(strings.TrimSpace(line), "\t")
		n, _ := strconv.Atoi(ms)
		for _, p := range r.packages {
			if _, sub, _ := strings.Cut(p.path, "github.com/tapestore/tapestore"); strings.HasSuffix(directory, sub) && sub != "" {
				all[p.path] += time.Duration(n) * time.Millisecond
			}
		}
	}
	return all
}
