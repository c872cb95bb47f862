package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// tests is what one run of go test reported.
type tests struct {
	status map[string]string        // by test: run (not finished), pass, fail or skip
	took   map[string]time.Duration // by test that has finished
	output map[string]string        // by test
	rest   string                   // output that belongs to no test: of the build, a panic, the end of the process
	ended  string                   // result of the package: pass, fail, or "" if the build failed
}

// event is a line of go test -json (see go doc test2json).
type event struct {
	Action, Test, Output string
	Elapsed              float64 // seconds
}

// read parses the output of go test -json.
func read(out []byte) tests {
	t := tests{status: map[string]string{}, took: map[string]time.Duration{}, output: map[string]string{}}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			t.rest += lines.Text() + "\n"
			continue
		}
		switch e.Action {
		case "run", "pass", "fail", "skip":
			if e.Test != "" {
				t.status[e.Test] = e.Action
				t.took[e.Test] = time.Duration(e.Elapsed * float64(time.Second))
			} else {
				t.ended = e.Action
			}
		case "output":
			if e.Test != "" {
				t.output[e.Test] += e.Output
			} else {
				t.rest += e.Output
			}
		case "build-output":
			t.rest += e.Output
		case "build-fail":
			t.status["build"] = "fail"
		}
	}
	if t.status["build"] == "fail" {
		t.ended = ""
	}
	return t
}

var running = regexp.MustCompile(`(?m)^\s+(\S+) \([0-9hms.µn]+\)$`)

// hung returns which of the named tests were running when the time limit ended, and whether it did.
// Tests that were only waiting for their turn are not included.
func (t tests) hung(names []string) (hung []string, timedOut bool) {
	_, block, timedOut := strings.Cut(t.everything(), "panic: test timed out after ")
	block, _, _ = strings.Cut(block, "\n\n")
	for _, match := range running.FindAllStringSubmatch(block, -1) {
		for _, name := range names {
			if match[1] == name || strings.HasPrefix(match[1], name+"/") {
				hung = append(hung, name)
			}
		}
	}
	return hung, timedOut
}

// everything returns all output.
func (t tests) everything() string {
	text := t.rest
	for _, out := range t.output {
		text += out
	}
	return text
}

// runner runs tests of a package with some files replaced.
type runner interface {
	run(ctx context.Context, pkg string, names []string, replace map[string]string, bound time.Duration) (tests, error)
}

// goTest is the runner that executes go test.
type goTest struct{ root string }

// run runs the named tests of a package by go test -json, with the files in replace overlaid, and
// stops them after bound.
func (g goTest) run(ctx context.Context, pkg string, names []string, replace map[string]string, bound time.Duration) (tests, error) {
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return tests{}, err
	}
	file, err := os.CreateTemp("", "overlay-*.json")
	if err != nil {
		return tests{}, err
	}
	defer os.Remove(file.Name())
	_, err = file.Write(overlay)
	if err = errors.Join(err, file.Close()); err != nil {
		return tests{}, err
	}
	// go test ends the tests at its own timeout and prints which of them hung; one minute later it
	// kills them.
	ctx, cancel := context.WithTimeout(ctx, bound+5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-vet=off", "-failfast",
		"-timeout="+bound.String(), "-overlay="+file.Name(), "-run="+pattern(names), "./"+pkg)
	cmd.Dir = g.root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return tests{}, err
	}
	if ctx.Err() != nil {
		return tests{}, fmt.Errorf("go test: %w", ctx.Err())
	}
	return read(out), nil
}

// pattern returns a -run pattern that matches exactly the named tests.
func pattern(names []string) string {
	var all []string
	for _, name := range names {
		parts := strings.Split(name, "/")
		for i, part := range parts {
			parts[i] = "^" + regexp.QuoteMeta(part) + "$"
		}
		all = append(all, strings.Join(parts, "/"))
	}
	return strings.Join(all, "|")
}

// verdict is the outcome of a mutation.
type verdict string

const (
	killed   verdict = "killed"
	survived verdict = "survived"
	broken   verdict = "broken"
)

// result is the report of one mutation.
type result struct {
	Engine    string   `json:"engine"`
	Name      string   `json:"name"`
	Guarantee string   `json:"guarantee"`
	Verdict   verdict  `json:"verdict"`
	By        []string `json:"by,omitempty"`      // the tests that failed
	Message   string   `json:"message,omitempty"` // of the first of those, or why the mutation is broken
	Seconds   float64  `json:"seconds"`
}

// slowdown is how much longer the tests of a mutation may take than without it before they count as
// hanging: 3 times. A loaded machine makes that much difference between two runs.
const slowdown = 3

// limit returns the time limit of a mutation's tests: bound, or more if they took more than a third
// of it without the mutation.
func (t tests) limit(m mutation, bound time.Duration) time.Duration {
	var sum time.Duration
	for _, name := range m.Kills {
		sum += t.took[name]
	}
	return max(bound, slowdown*sum)
}

// judge derives the verdict of a mutation from a run of its tests.
func judge(m mutation, t tests) (v verdict, by []string, message string) {
	with := func(status string) (some []string) {
		for _, test := range m.Kills {
			if t.status[test] == status {
				some = append(some, test)
			}
		}
		return some
	}
	failed, unfinished := with("fail"), with("run")
	if hung, timedOut := t.hung(m.Kills); timedOut {
		unfinished = hung
	}
	switch {
	case t.ended == "":
		return broken, nil, "does not build: " + brief(t.rest)
	case len(failed) > 0:
		message = firstError(t, failed[0])
		if unopened.MatchString(message) {
			return broken, nil, "no store can be opened: " + message
		}
		return killed, short(failed), message
	case t.ended == "fail" && len(unfinished) > 0:
		// The process ended under these tests: they hung until the time limit, or it crashed.
		return killed, short(unfinished), brief(crash(t.everything()))
	case t.ended == "fail":
		return broken, nil, "no named test failed, but the package did: " + brief(t.everything())
	}
	for _, test := range m.Kills {
		if t.status[test] != "pass" {
			return broken, nil, fmt.Sprintf("%s did not run: %s", shortName(test), brief(t.output[test]))
		}
	}
	return survived, nil, ""
}

// baseline returns an error unless every named test passed.
func baseline(pkg string, names []string, t tests) error {
	if t.ended == "" {
		return fmt.Errorf("%s does not build: %s", pkg, brief(t.rest))
	}
	var errs []error
	for _, name := range names {
		switch status := t.status[name]; status {
		case "pass":
		case "":
			errs = append(errs, fmt.Errorf("%s: %s did not run", pkg, name))
		default:
			errs = append(errs, fmt.Errorf("%s: %s without a mutation: %s: %s", pkg, name, status, brief(t.output[name])))
		}
	}
	if len(errs) == 0 && t.ended != "pass" {
		errs = append(errs, fmt.Errorf("%s fails without a mutation: %s", pkg, brief(t.everything())))
	}
	return errors.Join(errs...)
}

// unopened matches the message of a case whose store cannot be opened. A schema that does not parse
// proves as little as code that does not compile.
var unopened = regexp.MustCompile(`^\w+\.go:\d+: open: `)

func short(tests []string) []string {
	all := make([]string, len(tests))
	for i, test := range tests {
		all[i] = shortName(test)
	}
	return all
}

var position = regexp.MustCompile(`^\s+\w+\.go:\d+: `)

// firstError returns the first message of a failed test or of its failed subtests. Log output
// cannot be distinguished from errors, so it counts as a message.
func firstError(t tests, test string) string {
	names := []string{test}
	for name := range t.output {
		if strings.HasPrefix(name, test+"/") && t.status[name] == "fail" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		for line := range strings.Lines(t.output[name]) {
			if position.MatchString(line) && !strings.Contains(line, "left out: ") {
				return strings.TrimSpace(line)
			}
		}
	}
	return brief(crash(t.everything()))
}

// crash returns the output from the panic that ended the process, or "" if there was none.
func crash(output string) string {
	for _, mark := range []string{"panic: ", "fatal error: "} {
		if i := strings.Index(output, mark); i >= 0 {
			return output[i:]
		}
	}
	return output
}

// brief shortens output to a line or two.
func brief(output string) string {
	output = strings.Join(strings.Fields(output), " ")
	if len(output) > 400 {
		output = output[:400] + "…"
	}
	return output
}

// test runs the tests of one mutation.
func test(ctx context.Context, r runner, root string, m mutation, bound time.Duration) (out result) {
	began := time.Now()
	out = result{Engine: m.Engine, Name: m.Name, Guarantee: m.Guarantee}
	defer func() { out.Seconds = time.Since(began).Seconds() }()
	fail := func(err error) result {
		out.Verdict, out.Message = broken, err.Error()
		return out
	}
	text, err := os.ReadFile(m.path(root))
	if err != nil {
		return fail(err)
	}
	mutant, err := m.apply(text)
	if err != nil {
		return fail(err)
	}
	dir, err := os.MkdirTemp("", "mutant-*")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	changed := filepath.Join(dir, filepath.Base(m.File))
	if err := os.WriteFile(changed, mutant, 0o666); err != nil {
		return fail(err)
	}
	t, err := r.run(ctx, m.Package, m.Kills, map[string]string{m.path(root): changed}, bound)
	if err != nil {
		return fail(err)
	}
	out.Verdict, out.By, out.Message = judge(m, t)
	return out
}
