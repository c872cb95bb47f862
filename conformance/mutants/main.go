package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// The exit statuses.
const (
	allKilled = iota
	someSurvived
	someBroken
)

// run executes the command with the given arguments, and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	engine := flags.String("engine", "", "test the mutations of one list: "+strings.Join(engines, ", "))
	match := flags.String("run", "", "test the mutations whose engine/name matches this `regexp`")
	listOnly := flags.Bool("list", false, "list the mutations and test none")
	jobs := flags.Int("jobs", max(1, runtime.GOMAXPROCS(0)/2), "test `n` mutations side by side")
	file := flags.String("json", "", "write the results to this `file`, too")
	bound := flags.Duration("timeout", 3*time.Minute, "a test that runs longer than this, and three times as long as without the mutation, hangs and has noticed it")
	if err := flags.Parse(args); err != nil {
		return someBroken
	}
	selected, err := choose(*engine, *match)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return someBroken
	}
	if *listOnly {
		for _, m := range selected {
			fmt.Fprintf(stdout, "%-4s %-60s %s\n", m.Guarantee, m, m.Why)
		}
		return allKilled
	}
	root, err := moduleRoot(ctx)
	if err == nil {
		err = current(root, selected)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return someBroken
	}
	limitMemory()
	b := &bench{runner: goTest{root}, root: root, bound: *bound, jobs: max(1, *jobs), out: stdout}
	results := b.testAll(ctx, selected)
	if *file != "" {
		if err := writeJSON(*file, results); err != nil {
			fmt.Fprintln(stderr, err)
			return someBroken
		}
	}
	return summarize(stdout, results)
}

// choose returns the mutations of an engine whose engine/name matches.
func choose(engine, match string) ([]mutation, error) {
	all, err := load(lists)
	if err != nil {
		return nil, err
	}
	if engine != "" && !slices.Contains(engines, engine) {
		return nil, fmt.Errorf("no list of %q: want one of %s", engine, strings.Join(engines, ", "))
	}
	pattern, err := regexp.Compile(match)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(m mutation) bool {
		return engine != "" && m.Engine != engine || !pattern.MatchString(m.String())
	})
	if len(all) == 0 {
		return nil, errors.New("no mutation matches")
	}
	return all, nil
}

// moduleRoot returns the root directory of the module in which the command runs.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// current returns an error that lists the mutations that no longer match their files.
func current(root string, all []mutation) error {
	var errs []error
	for _, m := range all {
		text, err := os.ReadFile(m.path(root))
		if err == nil {
			_, err = m.apply(text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("list/%s.txt:%d: %w", m.Engine, m.Line, err))
		}
	}
	return errors.Join(errs...)
}

// bench runs the tests of mutations.
type bench struct {
	runner runner
	root   string
	bound  time.Duration
	jobs   int

	mu  sync.Mutex
	out io.Writer
}

// testAll tests each package without a mutation, and then each mutation of the packages that
// passed. The results are in the order of all.
func (b *bench) testAll(ctx context.Context, all []mutation) []result {
	var packages []string
	kills := map[string][]string{}
	for _, m := range all {
		if kills[m.Package] == nil {
			packages = append(packages, m.Package)
		}
		kills[m.Package] = append(kills[m.Package], m.Kills...)
	}
	unsound := make([]error, len(packages))
	sound := make([]tests, len(packages)) // without a mutation
	b.each(len(packages), func(i int) {
		pkg := packages[i]
		names := slices.Compact(slices.Sorted(slices.Values(kills[pkg])))
		began := time.Now()
		// The time limit applies to one mutation; this run has the tests of all mutations.
		t, err := b.runner.run(ctx, pkg, names, nil, 10*b.bound)
		if err == nil {
			err = baseline(pkg, names, t)
		}
		unsound[i], sound[i] = err, t
		if err != nil {
			b.printf("%s: the tests do not pass without a mutation\n%v\n", pkg, err)
			return
		}
		b.printf("%-10s %d tests pass without a mutation (%.1f s)\n", filepath.Base(pkg), len(names), time.Since(began).Seconds())
	})
	results := make([]result, len(all))
	b.each(len(all), func(i int) {
		m := all[i]
		if ctx.Err() != nil {
			results[i] = result{Engine: m.Engine, Name: m.Name, Guarantee: m.Guarantee, Verdict: broken, Message: "not tested: interrupted"}
			return
		}
		pkg := slices.Index(packages, m.Package)
		if unsound[pkg] != nil {
			results[i] = result{Engine: m.Engine, Name: m.Name, Guarantee: m.Guarantee, Verdict: broken,
				Message: "the tests of " + m.Package + " do not pass without a mutation"}
			return
		}
		results[i] = test(ctx, b.runner, b.root, m, sound[pkg].limit(m, b.bound))
		b.printf("%s", results[i].line())
	})
	return results
}

// each calls f(0) to f(n-1), with as many calls at a time as there are jobs.
func (b *bench) each(n int, f func(i int)) {
	slots := make(chan struct{}, b.jobs)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}

func (b *bench) printf(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(b.out, format, args...)
}

// line returns the result's row of the table.
func (r result) line() string {
	by := strings.Join(r.By, ", ")
	text := fmt.Sprintf("%-10s %-4s %-52s %-8s %5.1f s  %s\n", r.Engine, r.Guarantee, r.Name, r.Verdict, r.Seconds, by)
	if r.Message != "" {
		text += fmt.Sprintf("%-16s%s\n", "", r.Message)
	}
	return text
}

// summarize prints each engine's counts and the mutations that were not killed, and returns the
// exit status.
func summarize(w io.Writer, results []result) int {
	counts := map[string]map[verdict]int{}
	total := map[verdict]int{}
	for _, r := range results {
		if counts[r.Engine] == nil {
			counts[r.Engine] = map[verdict]int{}
		}
		counts[r.Engine][r.Verdict]++
		total[r.Verdict]++
	}
	fmt.Fprintln(w)
	for _, engine := range engines {
		if n := counts[engine]; n != nil {
			fmt.Fprintf(w, "%-10s %3d killed, %d survived, %d broken\n", engine, n[killed], n[survived], n[broken])
		}
	}
	fmt.Fprintf(w, "%-10s %3d killed, %d survived, %d broken\n", "together", total[killed], total[survived], total[broken])
	for _, v := range []verdict{survived, broken} {
		if total[v] > 0 {
			fmt.Fprintf(w, "\n%s:\n", v)
		}
		for _, r := range results {
			if r.Verdict == v {
				fmt.Fprintf(w, "  %s/%s  %s\n", r.Engine, r.Name, r.Message)
			}
		}
	}
	switch {
	case total[broken] > 0:
		return someBroken
	case total[survived] > 0:
		return someSurvived
	}
	return allKilled
}

func writeJSON(name string, results []result) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o666)
}
