package sqlite_test

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
)

// TestMigratedWhileOpen lets a newer program migrate a database that this program has open. From
// then on this program writes nothing to it, and still reads it.
func TestMigratedWhileOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	spec := runstore.LeaseSpec{Owner: "owner", TTL: time.Minute}
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &spec})
	if err != nil {
		t.Fatal(err)
	}
	batch := func() runstore.Batch {
		b := runstore.NewBatch("run", created.Lease.Fence())
		b.Append("test", []byte("event"))
		return b
	}
	if _, err := s.Commit(t.Context(), batch()); err != nil {
		t.Fatal(err)
	}
	exec(t, path, "PRAGMA user_version = 99")
	var wg sync.WaitGroup
	for range 8 { // some share a transaction
		wg.Go(func() {
			_, err := s.Commit(t.Context(), batch())
			if !errors.Is(err, runstore.ErrUnsupported) || runstore.OutcomeOf(err) != runstore.NotApplied {
				t.Errorf("commit: got %v, want ErrUnsupported, not applied", err)
			}
		})
	}
	wg.Wait()
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: created.Lease.Fence(), TTL: time.Minute}); !errors.Is(err, runstore.ErrUnsupported) {
		t.Errorf("renew: got %v, want ErrUnsupported", err)
	}
	if events, err := s.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(events) != 1 {
		t.Errorf("got %d events, %v, want the one from before", len(events), err)
	}
}
