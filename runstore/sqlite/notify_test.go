package sqlite_test

import (
	"context"
	"path/filepath"
	"sync"
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

// TestWakeups wakes a caller of Wakeups at each commit: of its own handle, of another handle of this process, and of
// another process.
func TestWakeups(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openFile(t, path)
	ch, err := s.Wakeups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	held(t, s, runstore.MaxTTL)
	commit := func(by *sqlite.Store) {
		wakeup.Take(ch) // of a former commit
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Append("event", nil)
		if _, err := by.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	commit(s)
	if !wakeup.Take(ch) {
		t.Error("a commit of the handle causes no wake-up at once")
	}
	commit(openFile(t, path))
	if !wakeup.Take(ch) {
		t.Error("a commit of another handle of this process causes no wake-up at once")
	}
	commit(foreign(t, path))
	await(t, "a hint at a commit of another process", func() bool { return wakeup.Take(ch) })
}

// TestLookDuringACommit looks for changes of other processes while a commit of this process is visible in the file, but
// not counted yet: its checkpoint is running. Changes that another process makes after that are still seen.
func TestLookDuringACommit(t *testing.T) {
	t.Parallel()
	d, path := newDisk(t), filepath.Join(t.TempDir(), "tape.db")
	t.Cleanup(func() { d.set(nil) })
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{}.OnFileSystem(d.name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	looking, other := openFile(t, path), foreign(t, path)
	held(t, s, runstore.MaxTTL)
	look := sqlite.Looks(t, looking)
	looked := make(chan struct{})
	checkpoint := sync.OnceFunc(func() {
		committing := sqlite.Committing(s)
		go func() {
			defer close(looked)
			if look() {
				t.Error("a change of this process is taken for one of another process")
			}
		}()
		if !committing {
			<-looked
		}
	})
	d.set(func(call, file string) fault {
		if call == "write" && file == mainFile {
			checkpoint()
		}
		return fault{}
	})
	large := runstore.NewBatch("run", runstore.Unguarded("test"))
	for range 6 { // SQLite checkpoints a log of 1,000 pages: 4 MB
		large.Append("event", make([]byte, 1<<20))
	}
	if _, err := s.Commit(t.Context(), large); err != nil {
		t.Fatal(err)
	}
	d.set(nil)
	<-looked
	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Append("event", nil)
	if _, err := other.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if !look() {
		t.Error("a change of another process is not seen")
	}
}
