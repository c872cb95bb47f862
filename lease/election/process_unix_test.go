//go:build unix

package election_test

import (
	"os"
	"syscall"
	"testing"
)

func suspend(t *testing.T, p *os.Process) { signal(t, p, syscall.SIGSTOP) }
func resume(t *testing.T, p *os.Process)  { signal(t, p, syscall.SIGCONT) }

func signal(t *testing.T, p *os.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
}
