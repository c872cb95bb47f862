// Testrun runs the module's tests, quickly or in full, and reports where the time went and what the
// run left out. make test and make test-full call it.
//
// A quick run applies the race detector only where it is affordable: to the packages that need no
// server, and to the concurrent cases of SQLite's suite. All of SQLite takes three times as long
// with it; so do the many executions in crossrun, where one actor runs at a time, those in
// tapeserver/cuts and tapeserver/fuzz, whose server runs with it in tapeserver and in faultyservers,
// and those in archive. For retain/bucket, hundreds of packages would be compiled with it. Packages
// that share no memory between goroutines, or only start processes, run without it, too. So do the
// engines behind a server, at the same time, because their suites wait as much as they compute. A full
// run applies it to everything, two packages at a time, and sets [effort.Variable].
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
)

// plain lists the packages that a quick run tests without the race detector, slowest first.
var plain = []string{
	"./runstore/spanner", "./runstore/alloydb", "./runstore/postgres", "./runstore/bigtable", "./demo",
	"./emulators/spanner", "./emulators/postgres", "./emulators/alloydb", "./emulators/bigtable", "./emulators/doctor",
	"./internal/command", "./conformance/engines", "./conformance/protocol", "./internal/report", "./bench/engines", "./bench/floor", sqlite, "./tapeserver/cuts", "./tapeserver/fuzz", "./crossrun", "./fence", "./archive", "./retain/bucket",
	"./conformance/mutants", "./internal/docs", "./internal/clocklint", "./bench/show",
}

const sqlite = "./runstore/sqlite"

func main() {
	if path := os.Getenv(measureVariable); path != "" {
		os.Exit(measure(path, os.Args[1:]))
	}
	full := flag.Bool("full", false, "race detector on every package, all rounds of every case")
	race := flag.Bool("race", false, "race detector on every package, with the rounds of a quick run")
	flag.Parse()
	if !run(*full, *full || *race) {
		os.Exit(1)
	}
}

func run(full, raceEverywhere bool) (passed bool) {
	began := time.Now()
	if full {
		if err := os.Setenv(effort.Variable, "full"); err != nil {
			panic(err) // the name is a constant
		}
	}
	rest, err := others()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return false
	}
	groups := []group{
		{packages: plain, flags: []string{"-p=3"}},
		{packages: rest, flags: []string{"-p=2"}},
	}
	if raceEverywhere { // then packages compute more than they wait
		groups = []group{{packages: slices.Concat(plain, rest), flags: []string{"-p=2"}}}
	}
	race := raceFlags()
	if !raceEverywhere && len(race) > 0 {
		groups = append(groups, group{label: "race", packages: []string{sqlite}, flags: []string{"-run=^TestConformanceInMemory$"}})
	}
	if len(race) == 0 {
		fmt.Println("race detector: OFF. It needs cgo and a C compiler.")
	}
	for i := range groups {
		if i > 0 || raceEverywhere {
			groups[i].flags = append(groups[i].flags, race...)
		}
	}
	r := newReport(os.Stdout)
	var wg sync.WaitGroup
	for _, g := range groups {
		wg.Go(func() { g.run(r) })
	}
	wg.Wait()
	return r.print(time.Since(began), full, raceEverywhere, len(race) > 0)
}

// others returns the module's packages that are not in plain.
func others() ([]string, error) {
	list := exec.Command("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	paths := slices.DeleteFunc(strings.Fields(string(out)), func(path string) bool {
		return slices.ContainsFunc(plain, func(s string) bool { return strings.HasSuffix(path, s[1:]) })
	})
	return paths, nil
}

// raceFlags returns the flags that turn the race detector on; none if it cannot be built, because
// it needs cgo and a C compiler.
func raceFlags() []string {
	// -race also checks unsafe pointers. Only generated code uses them here, and the failing disk
	// in SQLite's tests. SQLite, which uses many, takes twice as long with the checks.
	//
	// SQLite and its C library are translated from C. Their memory is not Go's, so the detector finds
	// nothing in it: without instrumentation the tests of SQLite take a third of the time. Their mutexes
	// are Go's, which the detector sees in any case.
	//
	// No test reads the tables for debuggers, which take a tenth of the compiler's time. The other tests
	// are compiled with them, because they share what make build has compiled.
	const compile = "-d=checkptr=0 -dwarf=false"
	flags := []string{"-race", "-gcflags=all=" + compile}
	for _, c := range []string{"modernc.org/sqlite/lib", "modernc.org/libc/..."} {
		flags = append(flags, "-gcflags="+c+"="+compile+" -race=false")
	}
	// An empty test of a small package links only if the race detector is installed.
	if exec.Command("go", slices.Concat([]string{"test", "-run=^$"}, flags, []string{"errors"})...).Run() != nil {
		return nil
	}
	return flags
}

// timeout ends a package's tests that hang: go test's own is ten minutes. A full run of
// Spanner's suite took an hour on two busy cores.
const timeout = "4h"

// group is one go test command.
type group struct {
	label           string // distinguishes the group's packages in the report
	packages, flags []string
}

func (g group) run(r *report) {
	args := slices.Concat([]string{"test", "-json", "-count=1", "-vet=off", "-timeout=" + timeout, "-exec=" + os.Args[0]}, g.flags, g.packages)
	r.line("go %s", strings.Join(slices.Concat([]string{"test"}, g.flags, g.packages), " "))
	test := exec.Command("go", args...)
	test.Env = append(os.Environ(), measureVariable+"="+r.measured, labelVariable+"="+g.label)
	if os.Getenv("GOGC") == "" {
		test.Env = append(test.Env, rareGC)
	}
	test.Stderr = os.Stderr
	out, err := test.StdoutPipe()
	if err == nil {
		err = test.Start()
	}
	if err != nil {
		r.fail("go test", err.Error())
		return
	}
	r.read(out, g.label)
	if err := test.Wait(); err != nil {
		r.fail("go test", err.Error())
	}
}
