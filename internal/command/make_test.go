package command

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// make run ends with status 0 on Ctrl-C, which a terminal sends to make too.
func TestMakeRunStopsCleanly(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"make", "script"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("not applicable: %v", err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := filepath.Abs("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	// This test stands in for the command, and true for its build; script is the terminal.
	cmd := exec.CommandContext(t.Context(), "script", "-qec", "make -f "+makefile+" run GO=true TAPESTORE="+exe, "/dev/null")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "TAPESTORE_TEST_RUN=1", "TAPE_LISTEN=127.0.0.1:0", "TAPE_HEALTHZ_LISTEN=", "MAKEFLAGS=", "MAKELEVEL=")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	bound := time.AfterFunc(hang, func() { _ = cmd.Process.Kill() })
	defer bound.Stop()
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if strings.Contains(lines.Text(), "serving") {
			if _, err := io.WriteString(in, "\x03"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !strings.HasPrefix(strings.Join(said, "\n"), "building ") || !strings.Contains(strings.Join(said, "\n"), "stopped") {
		t.Errorf("got %v and the output\n%s", err, strings.Join(said, "\n"))
	}
}
