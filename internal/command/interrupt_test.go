package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// TestTheReaderOfTheOutputHasGone checks that a command whose output is a closed pipe ends with an error,
// after its cleanup, and is not killed by a signal.
func TestTheReaderOfTheOutputHasGone(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/null"); err != nil {
		t.Skip("no signals for closed pipes here")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args   string
		stderr bool // standard error is closed too
	}{
		"a page":                      {"inspect runs", false},
		"a report":                    {"audit", false},
		"a page, with all its output": {"inspect runs", true},
		"a server":                    {"serve --listen 127.0.0.1:0 --healthz-listen=", true}, // it would run on
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "tape.db")
			store, err := runstore.Open(t.Context(), "sqlite:"+file)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := store.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
				t.Fatal(err)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = writer.Close() }()
			if err := reader.Close(); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), exe, append(strings.Fields(c.args), "--store", "sqlite:"+file)...)
			cmd.Env = append(os.Environ(), "TAPESTORE_TEST_RUN=1")
			var errs strings.Builder
			cmd.Stdout, cmd.Stderr = writer, &errs
			if c.stderr {
				cmd.Stderr = writer
			}
			_ = cmd.Run() // its error is in the state
			if state := cmd.ProcessState; state == nil || state.ExitCode() != 1 {
				t.Errorf("got %v, want the exit status 1", state)
			}
			if !c.stderr && !strings.Contains(errs.String(), "the reader of the output has gone") {
				t.Errorf("got the message %q", errs.String())
			}
			if _, err := os.Stat(file + "-wal"); err == nil {
				t.Error("the store was not closed: its journal is left")
			}
		})
	}
}
