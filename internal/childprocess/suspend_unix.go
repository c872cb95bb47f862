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

// Suspend stops a process, but not within a write to the store: a process that is stopped with SQLite's
// write lock, or with the lock of the witness file, keeps all others from writing.
func (p *Process) Suspend(t testing.TB, store runstore.RunStore) {
	t.Helper()
	for {
		p.signal(t, syscall.SIGSTOP)
		if probe(t, store, func() { p.signal(t, syscall.SIGCONT) }) {
			return
		}
	}
}

// probe reports whether a write succeeds. It calls release if the write fails or is not over after a
// second, and returns when it is over.
func probe(t testing.TB, store runstore.RunStore, release func()) bool {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	written := make(chan error, 1)
	go func() {
		_, err := store.CreateRun(ctx, runstore.RunSpec{ID: runstore.RunID("probe " + rand.Text())})
		written <- err
	}()
	select {
	case err := <-written:
		if err != nil {
			release()
		}
		return err == nil
	case <-ctx.Done():
		release()
		<-written
		return false
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
