package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"html/template"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// run runs the command as a process of its own and returns what it printed and
// its exit status.
func run(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return runCommand(t, exe, args...)
}

func runCommand(t *testing.T, command string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return runCommandWith(t, nil, command, args...)
}

// runCommandWith runs a command with further variables in its environment.
func runCommandWith(t *testing.T, env []string, command string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command, args...)
	cmd.Env = append(append(os.Environ(), "TAPESTORE_TEST_RUN=1"), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// beyondOneProcess are the reasons of cases that need a network, a server, aborts, a replica,
// another process, or a process's clock: a store in memory has none of them.
var beyondOneProcess = []string{
	"no process's clock to set wrong: the harness has no OpenSkewed",
	"no network to harm: the harness has no Network",
	"no server to kill: the harness has no NewServed",
	"nothing aborts transactions: the harness has no Aborts",
	"the store lives in one process: the harness has no URL",
	"the store is no StaleReader",
}

func TestVersionCommand(t *testing.T) {
	t.Parallel()
	out, errs, status := runCommand(t, builtCommand(t), "version")
	if line := regexp.MustCompile(`^tapestore \S+, commit ` + linkedCommit + ` \(go\S+, \w+/\w+\)\n$`); status != 0 || errs != "" || !line.MatchString(out) {
		t.Errorf("got status %d, %q and %q, want a line like %s", status, out, errs, line)
	}
}

// Every guarantee has cases, and all of them are reported.
func TestConformanceCommand(t *testing.T) {
	t.Parallel()
	out, errs, status := runCommand(t, builtCommand(t), "conformance", "--store", "memory", "--format", "json")
	var found conformance.Report
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatalf("%v: %s", err, errs)
	}
	if found.Engine != "memory" || found.Version == "" || found.Tier != "embedded" {
		t.Errorf("got engine %q, version %q, tier %q", found.Engine, found.Version, found.Tier)
	}
	if !strings.HasSuffix(found.Suite, ", commit "+linkedCommit) {
		t.Errorf("got the suite %q, want it with the commit that was linked in", found.Suite)
	}
	beyond := 0 // cases that need what a process alone has not
	for _, g := range found.Guarantees {
		for _, c := range g.Cases {
			if c.Status == conformance.NotApplicable && slices.Contains(beyondOneProcess, c.Reason) {
				beyond++
			} else if c.Status != conformance.Passed {
				t.Errorf("%s/%s: %s: %s", g.ID, c.Name, c.Status, c.Reason)
			}
		}
	}
	if status != 0 {
		t.Errorf("got status %d: %s", status, errs)
	}
	reported := 0
	for i, g := range found.Guarantees {
		if want := conformance.Guarantees()[i]; g.ID != want || len(g.Cases) == 0 || conformance.Title(g.ID) == "" {
			t.Errorf("got guarantee %s with %d cases, want %s with some", g.ID, len(g.Cases), want)
		}
		reported += len(g.Cases)
	}
	sum := found.Summary
	if all := len(conformance.Cases()); reported != all || sum.Passed+sum.Failed+sum.NotApplicable != all {
		t.Errorf("got %d cases and the summary %+v, want %d", reported, sum, all)
	}
	if sum.Failed != 0 || sum.NotApplicable != beyond {
		t.Errorf("got the summary %+v, want all passed but the %d that one process cannot have", sum, beyond)
	}
}

// The cases of a store in a file have files beside it, those that kill processes too,
// and leave nothing.
func TestConformanceBesideAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, errs, status := runCommand(t, builtCommand(t), "conformance", "--store", "sqlite:"+filepath.Join(dir, "tape.db"), "--run", fewCases, "--format", "html")
	for _, want := range []string{
		"<!doctype html>", "sqlite keeps what the selected cases check.", "--run &#39;" + template.HTMLEscapeString(fewCases),
		"a-killed-process-leaves-whole-batches-only", "What a local run cannot prove",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if status != 0 || errs != "" {
		t.Errorf("got status %d: %s", status, errs)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestConformanceCommandSelects(t *testing.T) {
	t.Parallel()
	out, errs, status := runCommand(t, builtCommand(t), "conformance", "--store", "memory", "--run", "^(I12/ttl|I4/a-killed)")
	for _, want := range []string{
		"memory reference (embedded), capabilities: MultiCommitter, Notifier, RunNotifier, EpochManager, TermReader, Mover, Describer, StrictCommitter",
		"I12 Limits", "passed         ttl-is-bounded",
		"not applicable a-killed-process-leaves-whole-batches-only", "the store lives in one process",
		"suite of tapestore ", ", commit " + linkedCommit, "1 passed, 0 failed, 1 not applicable",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s%s", want, out, errs)
		}
	}
	if status != 0 {
		t.Errorf("got status %d, want 0", status)
	}
}

func TestGalleryCommand(t *testing.T) {
	t.Parallel()
	if !effort.Full() {
		t.Skip("left to make test-full: the gallery by way of the command; the tests of package gallery run the same stores")
	}
	out, errs, status := runCommand(t, builtCommand(t), "conformance", "--gallery")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if status != 0 || len(lines) < 15 {
		t.Fatalf("got status %d and %d lines: %s", status, len(lines), errs)
	}
	line := regexp.MustCompile(`^[a-z-]+ +caught by +I\d+/[a-z-]+$`)
	for _, l := range lines {
		if !line.MatchString(l) {
			t.Errorf("got line %q", l)
		}
	}
}

func TestReportsRefuseBadInputInOneLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.db")
	for args, says := range map[string]string{
		"conformance":                                                                      "--store URL",
		"conformance --gallery --format json":                                              "no other flag",
		"conformance --store sqlite:":                                                      "is no file",
		"conformance --store sqlite:" + dir:                                                "is no file",
		"conformance --store " + dir + "/x.db?readers=99999":                               "the limits are 1 and 1000",
		"conformance --engine oracle":                                                      "memory, sqlite, postgres, alloydb",
		"conformance --engine memory --store memory:":                                      "give one of the two",
		"conformance --all --gallery":                                                      "does not go with --engine, --store or --gallery",
		"conformance --all --store memory":                                                 "does not go with --engine, --store or --gallery",
		"conformance --all --engine sqlite":                                                "does not go with --engine, --store or --gallery",
		"conformance --all --run no-such-case":                                             "matches no case",
		"conformance --all --format xml":                                                   "text, json or html",
		"conformance --gallery --engine memory":                                            "no other flag",
		"conformance --store postgres://127.0.0.1:1/x":                                     "connection refused",
		"conformance --store postgres://h/x?colour=red":                                    `unknown key "colour"`,
		"conformance --store alloydb://u@projects/p/locations/r/clusters/c/instances/i/db": "give a host instead",
		"inspect runs --store postgres://127.0.0.1:1/x?retry_timeout=10ms":                 "connection refused",
		"inspect runs --store alloydb://127.0.0.1:1/x?retry_timeout=10ms":                  "connection refused",
		"emulators":           "say what to do",
		"emulators up":        "give postgres|",
		"emulators up oracle": `"oracle" cannot be started`,
		"emulators bogus":     "bogus",
		"inspect":             "name what to inspect",
		"inspect bogus":       "bogus",
		"inspect runs --store " + missing + "?create=yes": "does not go with",
		"conformance --gallery --store memory":            "no other flag",
		"conformance --store memory --format xml":         "text, json or html",
		"conformance --store memory --run (":              "no regular expression",
		"conformance --store memory --run no-such-case":   "matches no case",
		"conformance --store nosuch://host":               "no harness",
		"conformance --store memory:?a=b":                 `unknown key "a"`,
		"conformance --store " + dir + "/nodir/tape.db":   "no such file or directory",
		"inspect runs":                                       "--store URL",
		"inspect runs --store " + missing:                    "there is no file",
		"inspect runs --store memory --format xml":           "table or json",
		"inspect runs --store memory --limit 0":              "the least is 1",
		"inspect run --store memory":                         "give RUN_ID",
		"inspect run no-such-run --store memory":             "not found",
		"inspect journal no-such-run --store memory":         "not found",
		"inspect runs --store sqlite:" + missing + "?nope=1": `unknown key "nope"`,
	} {
		out, errs, status := runCommand(t, builtCommand(t), strings.Fields(args)...)
		if status == 0 || out != "" || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "tapestore: ") || !strings.Contains(errs, says) {
			t.Errorf("%s: got status %d, output %q and %q, want one line that says %q", args, status, out, errs, says)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("created: %v, %v", left, err)
	}
}

// A run that changed hands shows who holds it, what was taken from whom, and
// under which token each entry was written.
func TestInspect(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "tape.db")
	store, err := runstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	tp := tape.New(store, nil)
	key := tape.RunKey{App: "treasury", User: "ada", Session: "s\x1b[31m", Invocation: "i-1"}
	var begun tape.BeginRunResult
	for _, owner := range []string{"host-a:1", "host-b:2"} {
		if begun, err = tp.BeginRun(t.Context(), tape.BeginRunRequest{Key: key, Owner: owner, TTL: 10 * time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tp.BeginEffect(t.Context(), tape.BeginEffectRequest{Run: begun.ID, Decision: -1, Tool: "post_gl"}); err != nil {
		t.Fatal(err)
	}
	id := string(begun.ID)
	for args, wants := range map[string][]string{
		"runs":          {id, "running", "host-b:2 for ", "treasury", `"s\x1b[31m"`},
		"run " + id:     {id, "running", "treasury", "post_gl", "pending", "effect/", "from host-a:1: "},
		"journal " + id: {"running", "pending", "host-a:1"},
		"leases":        {id, "live", "host-b:2", "from host-a:1: "},
	} {
		out, errs, status := run(t, append([]string{"inspect"}, append(strings.Fields(args), "--store", url)...)...)
		if status != 0 {
			t.Errorf("%s: status %d: %s", args, status, errs)
		}
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", args, want, out)
			}
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%s: a control character got out:\n%q", args, out)
		}
		out, errs, status = run(t, append([]string{"inspect"}, append(strings.Fields(args), "--store", url, "--format", "json")...)...)
		if status != 0 || !json.Valid([]byte(out)) {
			t.Errorf("%s: status %d, %s, no JSON:\n%s", args, status, errs, out)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}
