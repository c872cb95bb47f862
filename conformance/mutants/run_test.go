package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// output returns what go test -json prints for tests with the given statuses, and for the package.
func output(ended string, status ...string) []byte {
	var b strings.Builder
	for _, s := range status {
		name, action, _ := strings.Cut(s, "=")
		b.WriteString(`{"Action":"run","Test":"` + name + `"}` + "\n")
		if action != "run" {
			b.WriteString(`{"Action":"output","Test":"` + name + `","Output":"    x_test.go:7: ` + action + `: got 1, want 2\n"}` + "\n")
			b.WriteString(`{"Action":"` + action + `","Test":"` + name + `"}` + "\n")
		}
	}
	if ended != "" {
		b.WriteString(`{"Action":"` + ended + `","Package":"x"}` + "\n")
	}
	return []byte(b.String())
}

func line(text string) string { return `{"Action":"output","Output":"` + text + `\n"}` + "\n" }

// timeout returns what go test prints when the time limit ends while one test is running.
func timeout(test string) []byte {
	return []byte(line("panic: test timed out after 3m0s") + line(`\trunning tests:`) + line(`\t\t`+test+" (3m0s)") + line("") + line("goroutine 7 [running]:"))
}

func TestJudge(t *testing.T) {
	t.Parallel()
	m := mutation{Kills: []string{"TestConformance/I3/a", "TestB"}}
	for _, test := range []struct {
		what    string
		out     []byte
		want    verdict
		by      string
		message string
	}{
		{"one case fails", output("fail", "TestConformance/I3/a=fail", "TestB=pass"), killed, "I3/a", "x_test.go:7: fail: got 1, want 2"},
		{"both fail", output("fail", "TestConformance/I3/a=fail", "TestB=fail"), killed, "I3/a, TestB", "x_test.go:7"},
		{"all pass", output("pass", "TestConformance/I3/a=pass", "TestB=pass"), survived, "", ""},
		{"a case hangs", append(timeout("TestConformance/I3/a/part"), output("fail", "TestConformance/I3/a=run", "TestB=run")...), killed, "I3/a", "test timed out"},
		{"another test hangs", append(timeout("TestC"), output("fail", "TestConformance/I3/a=run", "TestB=pass")...), broken, "", "test timed out"},
		{"the process dies", append([]byte(line("fatal error: concurrent map writes")), output("fail", "TestB=run")...), killed, "TestB", "concurrent map writes"},
		{"it does not compile", []byte(`{"Action":"build-output","Output":"a.go:3:1: declared and not used: x\n"}` + "\n" + `{"Action":"build-fail"}` + "\n" + string(output("fail"))), broken, "", "declared and not used"},
		{"no store can be opened", []byte(strings.ReplaceAll(string(output("fail", "TestB=fail")), "fail: got 1", "open: syntax error")), broken, "", "no store can be opened"},
		{"go does not start", []byte("go: no such package\n"), broken, "", "no such package"},
		{"a case is skipped", output("pass", "TestConformance/I3/a=skip", "TestB=pass"), broken, "", "I3/a did not run"},
		{"a case is missing", output("pass", "TestB=pass"), broken, "", "I3/a did not run"},
		{"another test fails", output("fail", "TestConformance/I3/a=pass", "TestB=pass", "TestC=fail"), broken, "", "no named test failed"},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			v, by, message := judge(m, read(test.out))
			if v != test.want || strings.Join(by, ", ") != test.by || !strings.Contains(message, test.message) {
				t.Errorf("got %s by %v, %q, want %s by %s, %q", v, by, message, test.want, test.by, test.message)
			}
		})
	}
}

func TestBaseline(t *testing.T) {
	t.Parallel()
	names := []string{"TestA", "TestB"}
	for _, test := range []struct {
		what string
		out  []byte
		want string
	}{
		{"all pass", output("pass", "TestA=pass", "TestB=pass"), ""},
		{"one fails", output("fail", "TestA=pass", "TestB=fail"), "TestB without a mutation: fail"},
		{"one is skipped", output("pass", "TestA=skip", "TestB=pass"), "TestA without a mutation: skip"},
		{"one is missing", output("pass", "TestA=pass"), "TestB did not run"},
		{"only the package fails", output("fail", "TestA=pass", "TestB=pass"), "fails without a mutation"},
		{"it does not build", []byte(`{"Action":"build-fail"}`), "does not build"},
	} {
		err := baseline("x", names, read(test.out))
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.what, err, test.want)
		}
	}
}

func TestPattern(t *testing.T) {
	t.Parallel()
	if got, want := pattern([]string{"TestA/I3/a.b", "TestB"}), `^TestA$/^I3$/^a\.b$|^TestB$`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// fakeTests is a runner whose result depends on which file is replaced, if any.
type fakeTests func(pkg, changed string, bound time.Duration) tests

func (f fakeTests) run(_ context.Context, pkg string, _ []string, replace map[string]string, bound time.Duration) (tests, error) {
	changed := ""
	for _, file := range replace {
		text, err := os.ReadFile(file)
		if err != nil {
			return tests{}, err
		}
		changed = string(text)
	}
	return f(pkg, changed, bound), nil
}

// TestLimit checks that the time limit of a mutation exceeds by far what its tests took without it.
func TestLimit(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.go"), []byte("return 1\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	finished := func(name, seconds string) string {
		return `{"Action":"run","Test":"` + name + `"}` + "\n" + `{"Action":"pass","Test":"` + name + `","Elapsed":` + seconds + "}\n"
	}
	var bounds []time.Duration
	b := &bench{root: root, jobs: 1, bound: 3 * time.Minute, out: new(bytes.Buffer), runner: fakeTests(func(_, changed string, bound time.Duration) tests {
		if changed != "" {
			bounds = append(bounds, bound)
		}
		return read([]byte(finished("TestQuick", "59.5") + finished("TestSlow", "100") + finished("TestSlower", "150.5") + `{"Action":"pass","Package":"x"}`))
	})}
	var all []mutation
	for _, kills := range [][]string{{"TestQuick"}, {"TestSlow"}, {"TestSlow", "TestSlower"}} {
		all = append(all, mutation{Engine: "memory", Package: "x", File: "a.go", Kills: kills, hunk: []string{"-return 1", "+return 2"}})
	}
	b.testAll(t.Context(), all)
	if want := []time.Duration{3 * time.Minute, 5 * time.Minute, 751500 * time.Millisecond}; !slices.Equal(bounds, want) {
		t.Errorf("the time limits are %v, want %v", bounds, want)
	}
}

// TestBench tests a kill, a survivor and a package whose tests fail without a mutation.
func TestBench(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.go"), []byte("return 1\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	one := func(name, pkg, after string) mutation {
		return mutation{
			Engine: "memory", Name: name, Package: pkg, File: "a.go", Kills: []string{"TestA"},
			hunk: []string{"-return 1", "+" + after},
		}
	}
	var out bytes.Buffer
	b := &bench{root: root, jobs: 2, out: &out, runner: fakeTests(func(pkg, changed string, _ time.Duration) tests {
		if pkg == "unsound" || strings.Contains(changed, "return 2") {
			return read(output("fail", "TestA=fail"))
		}
		return read(output("pass", "TestA=pass"))
	})}
	results := b.testAll(t.Context(), []mutation{
		one("noticed", "sound", "return 2"), one("unnoticed", "sound", "return 3"), one("not tested", "unsound", "return 2"),
	})
	for i, want := range []verdict{killed, survived, broken} {
		if results[i].Verdict != want {
			t.Errorf("%s: got %s, want %s", results[i].Name, results[i].Verdict, want)
		}
	}
	for _, test := range []struct {
		results []result
		want    int
	}{{results, someBroken}, {results[:2], someSurvived}, {results[:1], allKilled}} {
		if got := summarize(&out, test.results); got != test.want {
			t.Errorf("exit status of %d results: got %d, want %d", len(test.results), got, test.want)
		}
	}
	for _, want := range []string{"unsound: the tests do not pass without a mutation", "survived:\n  memory/unnoticed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

// TestOverlay runs go test on a small module: one mutation in code and one in an embedded file are
// noticed, one is not, and one does not compile.
func TestOverlay(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example.com/x\n\ngo 1.24\n",
		"x/x.go":      "package x\n\nimport _ \"embed\"\n\n//go:embed x.sql\nvar SQL string\n\nfunc One() int {\n\treturn 1\n}\n\nfunc Two() int {\n\treturn 2\n}\n",
		"x/x.sql":     "SELECT 1\n",
		"x/x_test.go": "package x\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) {\n\tif One() != 1 || SQL != \"SELECT 1\\n\" {\n\t\tt.Errorf(\"got %d, %s\", One(), SQL)\n\t}\n}\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	one := func(name, file string, hunk ...string) mutation {
		return mutation{Engine: "memory", Name: name, Package: "x", File: file, Kills: []string{"TestX"}, hunk: hunk}
	}
	all := []mutation{
		one("code", "x/x.go", "-return 1", "+return 3"),
		one("embedded", "x/x.sql", "-SELECT 1", "+SELECT 2"),
		one("untested", "x/x.go", "-return 2", "+return 3"),
		one("no Go", "x/x.go", "-return 2", "+return two"),
	}
	var out bytes.Buffer
	b := &bench{root: root, jobs: 2, out: &out, bound: time.Hour, runner: goTest{root}}
	results := b.testAll(t.Context(), all)
	for i, want := range []verdict{killed, killed, survived, broken} {
		if r := results[i]; r.Verdict != want {
			t.Errorf("%s: got %s (%s), want %s", r.Name, r.Verdict, r.Message, want)
		}
	}
	if !strings.Contains(out.String(), "got 3, SELECT 1") {
		t.Errorf("the report lacks the message of the test:\n%s", out.String())
	}
	if text, err := os.ReadFile(filepath.Join(root, "x", "x.go")); err != nil || strings.Contains(string(text), "return 3") {
		t.Errorf("the source was touched: %s, %v", text, err)
	}
	if _, err := (goTest{filepath.Join(root, "nowhere")}).run(t.Context(), "x", nil, nil, time.Hour); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: got %v, want %v", err, os.ErrNotExist)
	}
}
