package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Shells offer words and no files, except where a file is expected.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"serve --fence ":          "presented\nrequired\nconnection\n:4",
		"serve --store pos":       "postgres:\npostgresql:\n:6",
		"serve --store ./":        ":0",
		"serve --config ":         ":0",
		"epoch list --format ":    "table\njson\n:4",
		"bench --format ":         "text\njson\nhtml\n:4",
		"run purge ":              ":4",
		"run purge a --operator ": ":4",
		"lease ":                  "break\nshow\nterms\n:4",
		"config check ":           ":0",
	} {
		out, _, err := here(t, "", append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(typed, " ")...)...)
		if got := strings.TrimSpace(out); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", typed, got, err, want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, _, err := here(t, "", "completion", shell); err != nil || !strings.Contains(out, "tapestore") {
			t.Errorf("%s: got %d bytes, %v", shell, len(out), err)
		}
	}
}

// There is a manual page for each command, with its flags, and the same for the same program.
func TestManualPages(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man1")
	if _, _, err := here(t, "", "man", dir); err != nil {
		t.Fatal(err)
	}
	for page, want := range map[string]string{
		"tapestore.1": "tapestore-serve(1)", "tapestore-serve.1": `\fB--listen\fP`, "tapestore-run-purge.1": `\fB--preempt\fP`, "tapestore-migrate.1": `\fB--apply\fP`,
	} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(string(text), want) || strings.Contains(string(text), "Auto generated") {
			t.Errorf("%s: %v, want %q in\n%s", page, err, want, text)
		}
	}
	if _, _, err := here(t, "", "man", filepath.Join(dir, "tapestore.1")); err == nil {
		t.Error("a file in place of the directory is accepted")
	}
}
