package sqlite_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Harness{New: func(t conformance.T) conformance.Instance {
		path := filepath.Join(t.TempDir(), "tape.db")
		host := newHost()
		open := func(ctx context.Context) (runstore.RunStore, error) {
			return sqlite.Open(ctx, path, &sqlite.Options{Clock: host})
		}
		return conformance.Instance{
			Open: open,
			// All processes of a host have one clock. One whose idea of the time of
			// day is wrong has it from elsewhere, and the store never asks for it.
			OpenSkewed: func(ctx context.Context, _ time.Duration) (runstore.RunStore, error) { return open(ctx) },
			Advance:    host.advance,
			Stall:      func(t conformance.T) func() { return stall(t, path) },
			URL:        "sqlite:" + path,
		}
	}})
}

// TestConformanceInMemory runs the suite on the database without a file.
func TestConformanceInMemory(t *testing.T) {
	conformance.Run(t, conformance.Harness{New: func(t conformance.T) conformance.Instance {
		host := newHost()
		s, err := sqlite.Open(t.Context(), ":memory:", &sqlite.Options{Clock: host})
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return conformance.Instance{
			// It has one handle, and so every process of a case shares it.
			Open:    func(context.Context) (runstore.RunStore, error) { return shared{s}, nil },
			Advance: host.advance,
		}
	}})
}

// host is a host's clocks, moved by the test.
type host struct {
	mu    sync.Mutex
	moved time.Duration // of both clocks: time that passed
	step  time.Duration // of the wall clock alone
	began time.Time
	boot  string
}

func newHost() *host { return &host{began: time.Now(), boot: "boot-1"} }

func (h *host) Wall() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Add(h.moved + h.step)
}

func (h *host) Up() (string, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boot, time.Since(h.began) + h.moved
}

func (h *host) advance(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moved += d
}

func stall(t conformance.T, path string) (resume func()) {
	t.Helper()
	release, err := sqlite.Hold(t.Context(), path)
	if err != nil {
		t.Fatalf("hold the write lock: %v", err)
	}
	resume = sync.OnceFunc(func() {
		if err := release(); err != nil {
			t.Errorf("release the write lock: %v", err)
		}
	})
	t.Cleanup(resume) // a case that fails early must not leave its writers waiting
	return resume
}

// shared is a handle whose Close leaves the store open for the others; of its
// own it is closed all the same.
type shared struct{ *sqlite.Store }

func (shared) Close() error { return nil }
