package tape_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/tape"
)

// The table of authorities in docs/fencing.md is that of the code.
func TestAuthoritiesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/fencing.md")
	if err != nil {
		t.Fatal(err)
	}
	methods := map[tape.Authority][]string{}
	for method, a := range tape.Authorities() {
		methods[a] = append(methods[a], method)
	}
	for a, all := range methods {
		slices.Sort(all)
		found := false
		for line := range strings.Lines(string(page)) {
			if strings.HasPrefix(line, "| "+a.String()+":") {
				found = true
				if want := "| " + strings.Join(all, ", ") + " |"; !strings.HasSuffix(strings.TrimSpace(line), want) {
					t.Errorf("docs/fencing.md has %q, want %q", strings.TrimSpace(line), want)
				}
			}
		}
		if !found {
			t.Errorf("docs/fencing.md has no line for %q", a)
		}
	}
}
