//go:build unix

package k8s_test

import (
	"context"
	"crypto/rand"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// suspend stops a process, but not within a transaction on the store: SQLite has one write lock for
// the file, and a process that is stopped with it stops all others.
func suspend(t *testing.T, store runstore.RunStore, p *os.Process) {
	t.Helper()
	for {
		signal(t, p, syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := store.CreateRun(ctx, runstore.RunSpec{ID: runstore.RunID("probe " + rand.Text())})
		cancel()
		if err == nil {
			return
		}
		signal(t, p, syscall.SIGCONT)
	}
}

func resume(t *testing.T, p *os.Process) { signal(t, p, syscall.SIGCONT) }

func signal(t *testing.T, p *os.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
}
