package containers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestImportFromAnotherModule checks that a module outside this repository can import the package
// as its documentation says.
func TestImportFromAnotherModule(t *testing.T) {
	t.Parallel()
	checkout, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	documentation, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var steps [][]string
	for line := range strings.Lines(string(documentation)) {
		if step, ok := strings.CutPrefix(line, "//\tgo "); ok {
			steps = append(steps, strings.Fields(strings.ReplaceAll(step, "CHECKOUT", checkout)))
		}
	}
	if len(steps) == 0 {
		t.Fatal("the documentation says nothing about how to import the package")
	}
	steps = append([][]string{{"mod", "init", "example.com/outside"}}, append(steps, []string{"vet", "."})...)
	dir := t.TempDir()
	program := []byte("package main\n\nimport _ \"github.com/tapestore/tapestore/containers\"\n\nfunc main() {}\n")
	if err := os.WriteFile(filepath.Join(dir, "main.go"), program, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range steps {
		step := exec.CommandContext(t.Context(), "go", args...)
		step.Dir = dir
		// The module cache has everything that this module needs, or its tests could not run.
		step.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -buildvcs=false", "GONOSUMDB=*")
		if said, err := step.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, said)
		}
	}
}
