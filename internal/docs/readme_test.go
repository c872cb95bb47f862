package docs_test

import (
	"strings"
	"testing"
)

// README.md is short, so that a newcomer reads all of it. What does not fit belongs into docs.
func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	if lines := strings.Count(read(t, "README.md"), "\n"); lines > 150 {
		t.Errorf("README.md has %d lines, the limit is 150", lines)
	}
}

// The example of README.md is a part of the one that the tests run.
func TestReadmeExample(t *testing.T) {
	t.Parallel()
	_, rest, found := strings.Cut(read(t, "README.md"), "```go\n")
	example, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatal("README.md has no example in Go")
	}
	var body strings.Builder
	for line := range strings.Lines(read(t, "runstore/example_test.go")) {
		body.WriteString(strings.TrimPrefix(line, "\t"))
	}
	if !strings.Contains(body.String(), example) {
		t.Errorf("runstore/example_test.go does not contain the example of README.md:\n%s", example)
	}
}

// While no version is released, README.md has no command that needs one.
func TestReadmeNeedsNoRelease(t *testing.T) {
	t.Parallel()
	page := read(t, "README.md")
	if strings.Contains(page, "No version is released yet") && strings.Contains(page, "@latest") {
		t.Error("README.md says that no version is released, and installs the latest one")
	}
}
