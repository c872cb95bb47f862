package command

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func vectorsOutput(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newRoot()
	cmd.SetArgs(append([]string{"conformance", "--vectors"}, args...))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestVectors(t *testing.T) {
	t.Parallel()
	out, err := vectorsOutput(t, "--format", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got vectorList
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	text, err := vectorsOutput(t)
	if err != nil {
		t.Fatal(err)
	}
	var engines []string
	for _, v := range append(got.Engines, got.Kinds...) {
		engines = append(engines, v.Name)
		for _, field := range []string{v.Substrate, v.Payload, v.Enforcement, v.Token, v.Handoff} {
			if field == "" || !strings.Contains(text, field+"\n") {
				t.Errorf("%s: %q is empty or not in the text", v.Name, field)
			}
		}
	}
	for _, name := range strings.Split(strings.ReplaceAll(engineNames(), " or ", ", "), ", ") {
		if !strings.Contains(strings.Join(engines, " "), name) {
			t.Errorf("no vector of %s among %v", name, engines)
		}
	}
	for _, target := range []string{"Commit events", "RenewLease records", "ReleaseLease", "AcquireLease", "CommitMulti purge"} {
		if !strings.Contains(strings.Join(got.Targets, ","), target) {
			t.Errorf("no target %q among %v", target, got.Targets)
		}
	}
	for _, bad := range [][]string{{"--all"}, {"--format", "html"}, {"--run", "I3"}} {
		if _, err := vectorsOutput(t, bad...); err == nil {
			t.Errorf("--vectors %v was accepted", bad)
		}
	}
}

// Every vector that a package of this module declares is printed.
func TestEveryVectorIsPrinted(t *testing.T) {
	t.Parallel()
	printed, err := os.ReadFile("conformance_vectors.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func (\w*Vector)\(\) (?:runstore\.)?LeaseVector {`)
	found := 0
	for _, root := range []string{"lease", "matcher", "runstore", "tape"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" {
				return err
			}
			source, err := os.ReadFile(path)
			for _, name := range declared.FindAllSubmatch(source, -1) {
				found++
				if call := filepath.Base(filepath.Dir(path)) + "." + string(name[1]) + "()"; !strings.Contains(string(printed), call) {
					t.Errorf("%s of %s is not printed", call, path)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 17 {
		t.Errorf("found %d vectors, want at least those of 6 engines and 11 kinds of lease", found)
	}
}
