package command

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

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/show"
)

// benchRun runs the command in this process.
func benchRun(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	cmd := newRoot()
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(append([]string{"bench"}, args...))
	err = cmd.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

func TestBenchRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for args, want := range map[string]string{
		"":                                      "--engine or a store with --store",
		"--all --engine memory":                 "one of --all, --engine and --store",
		"--engine oracle":                       `--engine is "oracle"; it is memory, sqlite, postgres, alloydb, bigtable or spanner`,
		"--engine memory,oracle":                `--engine is "oracle"`,
		"--engine memory --scale huge":          `--scale is "huge"; it is smoke, standard or full`,
		"--engine memory --rounds -1":           "--rounds is -1",
		"--engine memory --format pdf":          `--format is "pdf"; it is text, json or html`,
		"--engine memory nonsense":              `there is no part "nonsense"`,
		"--store nonsense":                      "--store is neither",
		"--engine memory --out " + dir:          "is a directory",
		"--engine memory --out " + dir + "/a/b": "--out:",
		"--engine memory --format html --out " + dir + "/page.json": "the raw samples beside the page",
		"compare one": "give B.json",
		"compare " + dir + "/none " + dir + "/none": "no such file",
	} {
		if _, _, err := benchRun(t.Context(), strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("refused runs left %v, %v", left, err)
	}
}

func TestBenchList(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"list"}, {"--list"}} {
		out, _, err := benchRun(t.Context(), args...)
		if err != nil {
			t.Error(err)
		}
		for _, p := range bench.Parts() {
			if !strings.Contains(out, p.Name+": "+p.Title) {
				t.Errorf("%v lacks part %s", args, p.Name)
			}
		}
	}
}

// A run of every part on memory writes the page and the samples beside it.
func TestBenchPage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "page.html")
	out, errs, err := benchRun(t.Context(), "--engine", "memory", "--scale", "smoke", "--format", "html", "--out", path)
	if err != nil || out != "" {
		t.Fatalf("got %v and %q", err, out)
	}
	for _, want := range []string{"memory: starting", "wrote " + path} {
		if !strings.Contains(errs, want) {
			t.Errorf("the progress lacks %q:\n%s", want, errs)
		}
	}
	page, err := os.ReadFile(path)
	if err != nil || !bytes.HasSuffix(page, []byte("</html>\n")) {
		t.Errorf("the page is not whole: %v", err)
	}
	file, err := os.Open(strings.TrimSuffix(path, "html") + "json")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := show.ReadJSON(file)
	if err != nil {
		t.Fatal(err)
	}
	if r.Command != "tapestore bench --engine memory --scale smoke --format html --out "+path || r.Version == "" || r.Machine.Cores == 0 || r.Scale != "smoke" {
		t.Errorf("got command %q, version %q, machine %+v, scale %s", r.Command, r.Version, r.Machine, r.Scale)
	}
	if len(r.Systems) == 0 || r.Systems[0].Name != "memory" {
		t.Errorf("got the systems %+v", r.Systems)
	}
	for _, part := range bench.PartNames() {
		if !strings.Contains(string(page), `id="part-`+part+`"`) {
			t.Errorf("the page lacks part %s", part)
		}
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 2 {
		t.Errorf("the run left %v, %v; want the page and the samples", left, err)
	}
}

// Ctrl-C ends a run with an error, and its report is written.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out, _, err := benchRun(ctx, "--engine", "memory", "--scale", "smoke")
	if err == nil || !strings.Contains(err.Error(), "interrupted") || !strings.Contains(out, "not measured: interrupted") {
		t.Errorf("got %v and %s", err, out)
	}
}

// No secret of a URL is in a report: neither in the command nor in what an engine said.
func TestBenchHidesSecrets(t *testing.T) {
	t.Parallel()
	given := benchFlags{store: "postgres://tape:hunter2@db.internal/tape?sslpassword=hunter3", scale: "standard", format: "json"}
	r := bench.Report{
		Faults:  []bench.Fault{{System: "store", Text: "dial " + given.store + ": refused"}},
		Notes:   []bench.Note{{Text: given.store}},
		Systems: []bench.System{{Name: "store", Missing: given.store}},
	}
	given.complete(&r, bench.Machine{}, []string{"cas"})
	var b bytes.Buffer
	if err := show.JSON(&b, r); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "hunter") || strings.Contains(judgeBench(r).Error(), "hunter") {
		t.Errorf("the report shows a password: %s", b.String())
	}
	if !strings.HasPrefix(r.Command, "tapestore bench cas --store 'postgres://") || !strings.Contains(r.Command, "db.internal/tape?…' --format json") {
		t.Errorf("got the command %s", r.Command)
	}
}

func TestBenchJudge(t *testing.T) {
	t.Setenv("CI", "")
	missing := bench.Report{Systems: []bench.System{{Name: "spanner", Missing: "no emulator"}}}
	if err := judgeBench(missing); err != nil {
		t.Errorf("a missing engine: %v, want none", err)
	}
	t.Setenv("CI", "true")
	if err := judgeBench(missing); err == nil || !strings.Contains(err.Error(), "spanner is missing") {
		t.Errorf("a missing engine under CI: %v", err)
	}
	if err := judgeBench(bench.Report{Faults: []bench.Fault{{System: "sqlite", Text: "counts disagree"}}}); err == nil || !strings.Contains(err.Error(), "counts disagree") {
		t.Errorf("a fault: %v", err)
	}
}

func TestBenchPeersNote(t *testing.T) {
	t.Parallel()
	note := func(systems ...bench.System) bool {
		r := bench.Report{Systems: systems}
		benchFlags{all: true, scale: "standard", format: "text"}.complete(&r, bench.Machine{}, nil)
		return len(r.Notes) == 1 && strings.Contains(r.Notes[0].Text, "bench/peers")
	}
	postgres := bench.System{Name: "postgres", Engine: "postgres"}
	if !note(postgres) || note(postgres, bench.System{Name: "river", Peer: true}) || note(bench.System{Name: "memory", Engine: "memory"}) {
		t.Error("the note on peers is not there exactly where postgres was measured without them")
	}
}

func TestBenchCompare(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report := func(name string, samples ...float64) string {
		r := bench.Report{Format: bench.Format, Results: []bench.Result{{Part: "cas", System: "memory", Metrics: []bench.Metric{
			{Name: bench.Rate, Unit: "wins/s", Better: bench.More, Samples: samples},
		}}}}
		var b bytes.Buffer
		path := filepath.Join(dir, name)
		if err := errors.Join(show.JSON(&b, r), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	slow, fast := report("slow.json", 1, 2, 3, 4, 5), report("fast.json", 11, 12, 13, 14, 15)
	if out, _, err := benchRun(t.Context(), "compare", fast, slow); err != nil || !strings.Contains(out, "worse: 1") {
		t.Errorf("got %v and %s", err, out)
	}
	if _, _, err := benchRun(t.Context(), "compare", "--fail", fast, slow); !errors.Is(err, errWorse) {
		t.Errorf("--fail, worse: got %v", err)
	}
	if out, _, err := benchRun(t.Context(), "compare", "--fail", slow, fast); err != nil || !strings.Contains(out, "improved: 1") {
		t.Errorf("--fail, improved: got %v and %s", err, out)
	}
	empty := filepath.Join(dir, "empty.json")
	if err := os.WriteFile(empty, []byte(`{"Format": 1, "Parts": ["cas"], "Systems": [{"Name": "memory"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := benchRun(t.Context(), "compare", "--fail", slow, empty); !errors.Is(err, errWorse) || !strings.Contains(err.Error(), "it lacks 1 result") {
		t.Errorf("--fail, a lost result: got %v", err)
	}
	broken := filepath.Join(dir, "broken.json")
	if err := os.WriteFile(broken, []byte(`{"Format": 99}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := benchRun(t.Context(), "compare", slow, broken); err == nil || !strings.Contains(err.Error(), "broken.json: the report has format 99") {
		t.Errorf("a newer format: got %v", err)
	}
}

// The bar fits a terminal, and the lines come once for each part.
func TestBenchProgress(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	p := benchProgress{w: &b, terminal: true, began: time.Now()}
	p.show(bench.Progress{Done: 0.5, System: "postgres", Part: "cas", What: strings.Repeat("x", 200)})
	if line := strings.TrimSuffix(strings.TrimPrefix(b.String(), "\r"), "\x1b[K"); len(line) != benchLine || !strings.HasPrefix(line, "[##########----------]  50 %") {
		t.Errorf("got the bar %q", line)
	}
	b.Reset()
	p.terminal = false
	for _, what := range []string{"", "1 contender", "2 contenders"} {
		p.show(bench.Progress{System: "sqlite", Part: "commit", What: what})
	}
	if got := strings.Count(b.String(), "\n"); got != 1 {
		t.Errorf("got %d lines for one part: %q", got, b.String())
	}
	if left, ok := remaining(0.25, time.Minute); !ok || left != 3*time.Minute {
		t.Errorf("a quarter in a minute: got %v, %v left", left, ok)
	}
	if _, ok := remaining(0.01, time.Minute); ok {
		t.Error("there is an estimate at the begin")
	}
}

// An explicit number of rounds is the number on emulators too.
func TestBenchRounds(t *testing.T) {
	t.Parallel()
	scale, err := benchFlags{scale: "standard", rounds: 7}.scaled()
	if err != nil || scale.Rounds != 7 || !scale.ExactRounds {
		t.Errorf("got %d rounds, exact: %v, %v", scale.Rounds, scale.ExactRounds, err)
	}
	if scale, err := (benchFlags{scale: "standard"}).scaled(); err != nil || scale.ExactRounds {
		t.Errorf("the scale's rounds are exact: %v", err)
	}
}

// --all measures every engine that keeps what is written to it.
func TestBenchAll(t *testing.T) {
	t.Parallel()
	all, err := benchFlags{all: true}.starters()
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	if want := []string{"sqlite", "postgres", "alloydb", "bigtable", "spanner"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("--all measures %v, %v; want %v", names, err, want)
	}
}
