package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A test runs without the compiler's GOGC, and its CPU time and exit status are reported.
func TestMeasure(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("not applicable: the machine has no sh")
	}
	name, value, _ := strings.Cut(rareGC, "=")
	t.Setenv(name, value)
	t.Setenv(labelVariable, "label")
	out, times := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "times")
	if status := measure(times, []string{shell, "-c", `printf "GOGC is '$GOGC'" >"$0"; exit 3`, out}); status != 3 {
		t.Errorf("status %d, want 3", status)
	}
	if text, err := os.ReadFile(out); err != nil || string(text) != "GOGC is ''" {
		t.Errorf("the test saw %q, %v", text, err)
	}
	if text, err := os.ReadFile(times); err != nil || !strings.Contains(string(text), " label\t") {
		t.Errorf("recorded %q, %v", text, err)
	}
}
