package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// foreign opens a handle whose writes the other handles of this process take for those of another
// process.
func foreign(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s := openFile(t, path)
	sqlite.TakeForForeign(s)
	return s
}

func openFile(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for !done() {
		if t.Context().Err() != nil {
			t.Fatalf("still waiting for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func runWakeups(t *testing.T, s *sqlite.Store, on runstore.WakeOn) <-chan struct{} {
	t.Helper()
	ch, err := s.RunWakeups(t.Context(), "run", on)
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// TestOthersWakeBySight writes by another process. That wakes the callers that wait for writes, and
// those that wait for a release only once the lease is free.
func TestOthersWakeBySight(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s, other := openFile(t, path), foreign(t, path)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	granted, err := other.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "owner", TTL: time.Minute, Grant: "grant"}})
	if err != nil {
		t.Fatal(err)
	}
	writes, releases := runWakeups(t, s, runstore.OnWrite), runWakeups(t, s, runstore.OnRelease)
	for range 3 {
		await(t, "a hint at a commit of another process", func() bool {
			b := runstore.NewBatch("run", granted.Lease.Fence())
			b.Append("event", nil)
			if _, err := other.Commit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			return wakeup.Take(writes)
		})
		if wakeup.Take(releases) {
			t.Error("a commit of another process wakes who waits for a release")
		}
	}
	if _, err := other.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: granted.Lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	await(t, "a hint at the release by another process", func() bool { return wakeup.Take(releases) })
}

// TestOthersWriteAtOnce has another process write right after a caller began to wait, again and again. Each
// time that wakes the caller, although nothing follows.
func TestOthersWriteAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s, other := openFile(t, path), foreign(t, path)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		ch, err := s.RunWakeups(ctx, "run", runstore.OnWrite)
		if err != nil {
			t.Fatal(err)
		}
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Append("event", nil)
		if _, err := other.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		await(t, "a hint at a write right after the caller began to wait", func() bool { return wakeup.Take(ch) })
		cancel()
	}
}

// TestRefusedWritesOfOthersWakeNobody refuses a write of another process, which is not a change.
func TestRefusedWritesOfOthersWakeNobody(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s, other := openFile(t, path), foreign(t, path)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	before, err := sqlite.Changes(s)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		b := runstore.NewBatch("run", runstore.AtSeq(77))
		b.Append("event", nil)
		if _, err := other.Commit(t.Context(), b); err == nil {
			t.Fatal("the commit was not refused")
		}
	}
	if after, err := sqlite.Changes(s); err != nil || after != before {
		t.Errorf("refused writes changed the store by %d, %v", after-before, err)
	}
}
