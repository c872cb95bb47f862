package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// built is the directory of the command that builtCommand builds; empty before.
var built string

// removeBuilt removes it after the tests.
func removeBuilt() error {
	if built == "" {
		return nil
	}
	return os.RemoveAll(built)
}

// linkedCommit is what make build would tell the linker.
const linkedCommit = "0123456789ab"

var build = sync.OnceValues(func() (string, error) {
	var err error
	if built, err = os.MkdirTemp("", "tapestore-command-"); err != nil {
		return "", err
	}
	command := filepath.Join(built, "tapestore")
	// Without tables for debuggers, which take half of the linker's time.
	if out, err := exec.Command("go", "build", "-ldflags", "-s -w -X github.com/tapestore/tapestore/conformance/version.commit="+linkedCommit, "-o", command, "../../cmd/tapestore").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return command, nil
})

// builtCommand returns the command as users have it: inside a test binary the cases
// that start processes would start that test again.
func builtCommand(t *testing.T) string {
	t.Helper()
	command, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return command
}
