package matcher_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
)

// backedUp is a store with a backup: writes reach both, in one order, until freeze; afterwards the store alone, until
// restore puts the backup in its place. Handles stay open, and no epoch is raised. Grants of before the backup are current
// after the restore, because their tokens follow from the order of the writes.
type backedUp struct {
	runstore.RunStore // the store, or the backup once it is restored; guarded by mu for writes
	backup            runstore.RunStore
	mu                sync.Mutex
	frozen, restored  bool
}

func (s *backedUp) freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = true
}

func (s *backedUp) restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restored = true
}

// present returns the store that is in place.
func (s *backedUp) present() runstore.RunStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restored {
		return s.backup
	}
	return s.RunStore
}

func writeBoth[R any](s *backedUp, write func(runstore.RunStore) (R, error)) (R, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restored {
		return write(s.backup)
	}
	if !s.frozen {
		_, _ = write(s.backup) // as the other one below
	}
	return write(s.RunStore)
}

func (s *backedUp) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return writeBoth(s, func(to runstore.RunStore) (runstore.Created, error) { return to.CreateRun(ctx, spec) })
}

func (s *backedUp) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return writeBoth(s, func(to runstore.RunStore) (runstore.Granted, error) { return to.AcquireLease(ctx, req) })
}

func (s *backedUp) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	return writeBoth(s, func(to runstore.RunStore) (runstore.Renewed, error) { return to.RenewLease(ctx, req) })
}

func (s *backedUp) ReleaseLease(ctx context.Context, req runstore.ReleaseRequest) (runstore.Committed, error) {
	return writeBoth(s, func(to runstore.RunStore) (runstore.Committed, error) { return to.ReleaseLease(ctx, req) })
}

func (s *backedUp) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return writeBoth(s, func(to runstore.RunStore) (runstore.Committed, error) { return to.Commit(ctx, b) })
}

func (s *backedUp) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	return s.present().GetRun(ctx, id)
}

func (s *backedUp) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return s.present().ReadRecords(ctx, id, q)
}

func (s *backedUp) ScanIndex(ctx context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	return s.present().ScanIndex(ctx, q)
}

func (s *backedUp) ReadFeed(ctx context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	return s.present().ReadFeed(ctx, q)
}

func (s *backedUp) Now(ctx context.Context) (time.Time, error) { return s.present().Now(ctx) }

// A store is restored from a backup, without a raised epoch, while leases of before the backup are current. Positions
// that replicas have in memory are then ahead of the store: of shards that have passed events without a commit, and of
// shards that have committed. The entries that come afterwards are handled, each once, and at once.
func TestRestoredStore(t *testing.T) {
	t.Parallel()
	for name, app := range map[string]string{"without a commit since the backup": "b", "with commits since the backup": "a"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				store := &backedUp{RunStore: w.store.Open(), backup: memory.New(nil).Open()}
				w.tape = tape.New(store, nil)
				r := w.register(reaction("r", "a", 3))
				m := w.startOn("one", store)
				defer m.stop()
				w.awaitHeld(r, "one", 3)
				w.enter("a", 10)
				w.await("r", 10)
				time.Sleep(ttl / 4) // the cursors are at the end
				store.freeze()
				kept := slices.Clone(w.runs)
				w.enter(app, 100)
				time.Sleep(ttl / 4)
				store.restore()
				time.Sleep(ttl / 4) // each reader of the feed has met the restored store
				if held := w.holders(r)["one"]; held != 3 {
					t.Fatalf("after the restore the replica holds %d shards, want its 3 of before", held)
				}
				w.runs = kept
				for range 30 { // up to the former end of the feed, and beyond
					w.enter("a", 10)
					w.await("r", len(w.runs))
				}
				w.expectOnce("r", w.runs)
			})
		})
	}
}

// A replica knows a definition that a restore from a backup has taken away. The reaction is registered again, with other
// content, before the replica lists: the record has the version of the lost definition. The replica adopts it.
func TestDefinitionAfterARestore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		store := &backedUp{RunStore: w.store.Open(), backup: memory.New(nil).Open()}
		w.tape = tape.New(store, nil)
		r := w.register(reaction("r", "a", 1))
		m := w.startOn("one", store)
		defer m.stop()
		w.awaitHeld(r, "one", 1)
		store.freeze()
		lost, present := r, r
		lost.Pattern, present.Pattern = "/tape/run/running/b/**", "/tape/run/running/c/**"
		lost = w.register(lost)
		time.Sleep(ttl / 4) // the replica has listed it
		store.restore()
		if present = w.register(present); present.Version != lost.Version {
			t.Fatalf("the definition has version %d, want that of the lost one, %d", present.Version, lost.Version)
		}
		time.Sleep(ttl)
		w.enter("c", 1)
		w.enter("b", 1)
		w.await("r", 1)
		time.Sleep(ttl) // for a second task
		w.expectOnce("r", w.runs[:1])
	})
}
