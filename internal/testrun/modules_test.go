package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The modules that build the command know the checksum of each library that this module imports. Only a
// full run builds them, so a library that is new here would be missed there.
func TestModulesKnowNewLibraries(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "mod", "edit", "-json", "../../go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{"containers", "bench/peers", "bench/peers/temporal"} {
		sums, err := os.ReadFile(filepath.Join("../..", module, "go.sum"))
		if err != nil {
			t.Fatal(err)
		}
		known := map[string]bool{}
		for line := range strings.Lines(string(sums)) {
			if f := strings.Fields(line); len(f) == 3 && !strings.HasSuffix(f[1], "/go.mod") {
				known[f[0]] = true
			}
		}
		direct := 0
		for _, r := range mod.Require {
			if r.Indirect {
				continue
			}
			if direct++; !known[r.Path] {
				t.Errorf("%s/go.sum has no checksum of %s: run go mod tidy there", module, r.Path)
			}
		}
		if direct == 0 {
			t.Fatal("go.mod requires nothing")
		}
	}
}
