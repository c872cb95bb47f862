//go:build unix

package childprocess

import (
	"context"
	"crypto/rand"
	"syscall"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Suspend stops a process, but not within a transaction on the store: SQLite has one write lock for
// the file, and a process that is stopped with it stops all others.
func (p *Process) Suspend(t testing.TB, store runstore.RunStore) {
	t.Helper()
	for {
		p.signal(t, syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := store.CreateRun(ctx, runstore.RunSpec{ID: runstore.RunID("probe " + rand.Text())})
		cancel()
		if err == nil {
			return
		}
		p.signal(t, syscall.SIGCONT)
	}
}

// Resume lets a process go on that Suspend stopped.
func (p *Process) Resume(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
}

func (p *Process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}
