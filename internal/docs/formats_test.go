package docs_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/compatibility.md has the version of each engine's stored format, and says of the last step
// what it changes.
func TestStoredFormats(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/compatibility.md")
	rows := map[string]string{} // version by engine
	for line := range strings.Lines(section(t, page, "## Stored formats")) {
		if cells := strings.Split(line, " | "); len(cells) == 4 {
			rows[strings.TrimPrefix(cells[0], "| ")] = cells[1]
		}
	}
	check := func(row, engine, version string, last int) {
		t.Helper()
		if got := rows[row]; got != version {
			t.Errorf("docs/compatibility.md has the version %q of %s, want %q", got, row, version)
		}
		if step := fmt.Sprintf("\n| %s %d |", engine, last); !strings.Contains(page, step) {
			t.Errorf("docs/compatibility.md has no row of the step %s %d", engine, last)
		}
	}
	for row, engine := range map[string]string{"SQLite": "sqlite", "Postgres, AlloyDB": "postgres", "Spanner": "spanner"} {
		steps, err := filepath.Glob(filepath.Join(root, "runstore", engine, "schema", "*.sql"))
		if err != nil || len(steps) == 0 {
			t.Fatalf("the schema of %s has the steps %v, %v", engine, steps, err)
		}
		name, _, _ := strings.Cut(row, ",")
		check(row, name, fmt.Sprint(len(steps)), len(steps))
	}
	m := regexp.MustCompile(`(?m)^const format = (\d+)$`).FindStringSubmatch(read(t, "runstore/bigtable/format.go"))
	if m == nil {
		t.Fatal("runstore/bigtable/format.go has no constant format")
	}
	var last int
	if _, err := fmt.Sscan(m[1], &last); err != nil {
		t.Fatal(err)
	}
	check("Bigtable", "Bigtable", "format "+m[1], last)
}

// section returns what follows a heading, up to the next one of its level.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, "\n"+heading+"\n")
	if !found {
		t.Fatalf("there is no heading %q", heading)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}
