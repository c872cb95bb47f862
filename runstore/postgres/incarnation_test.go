//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/faultynetwork"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// begun is a store with a lease, two events, and the position of the last.
func begun(t *testing.T, s *postgres.Store) (runstore.Lease, runstore.Position) {
	t.Helper()
	lease := hold(t, s, "run")
	commit(t, s, appending(lease, "one", "two"))
	return lease, feed(t, s, 0, 2)[1].Position
}

// raisedOnce checks that the store is in epoch 1, by itself: the old lease is
// ended, a new token is above all old ones, and so are positions.
func raisedOnce(t *testing.T, s *postgres.Store, old runstore.Lease, last runstore.Position) {
	t.Helper()
	var fenced *runstore.FencedError
	if _, err := s.Commit(t.Context(), appending(old, "zombie")); !errors.As(err, &fenced) {
		t.Errorf("a write under the old lease: got %v, want ErrFenced", err)
	}
	epochs, err := s.Epochs(t.Context())
	if err != nil || len(epochs) != 1 || epochs[0].Epoch != 1 || !strings.Contains(epochs[0].Reason, "the store was in cluster") {
		t.Errorf("got epochs %+v, %v, want one that the store raised by itself", epochs, err)
	}
	lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: old.Run, LeaseSpec: runstore.LeaseSpec{Owner: "new", TTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	floor := runstore.Epoch(1).Floor()
	if lease.Token != floor+1 {
		t.Errorf("got token %d, want %d", lease.Token, floor+1)
	}
	commit(t, s, appending(lease.Lease, "after"))
	if p := feed(t, s, last, 1)[0].Position; p <= last || p <= runstore.Position(floor) {
		t.Errorf("got position %d, want one above %d and %d", p, last, floor)
	}
}

// A copy of the server that was promoted may lack what the original acknowledged:
// the first handle on it raises the epoch, and it stays.
func TestPromotedCopy(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(directory(t), "a"), filepath.Join(directory(t), "b")
	original := ownServer(t, &postgresemulator.Options{Dir: a})
	db, err := original.NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, db.URL)
	lease, last := begun(t, s)
	if err := errors.Join(s.Close(), original.Close(), os.Mkdir(b, 0o755)); err != nil {
		t.Fatal(err)
	}
	copyData(t, a, b)
	standby := ownServer(t, &postgresemulator.Options{Dir: b})
	address := at(t, db.URL, standby.Address())

	_, err = tryOpen(t, with(address, "retry_timeout=50ms"))
	if !errors.Is(err, runstore.ErrUnavailable) || !strings.Contains(err.Error(), "the server is a standby") {
		t.Errorf("opening on a standby: got %v, want ErrUnavailable that says so", err)
	}
	if !get[bool](t, connect(t, address), `SELECT pg_promote()`) {
		t.Fatal("the standby was not promoted")
	}
	handles, errs := make([]*postgres.Store, 4), make([]error, 4)
	var wg sync.WaitGroup
	for i := range handles {
		wg.Go(func() { handles[i], errs[i] = tryOpen(t, address, quiet) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	raisedOnce(t, handles[0], lease, last)
	if err := standby.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	epochs, err := open(t, address).Epochs(t.Context())
	if err != nil || len(epochs) != 1 {
		t.Errorf("after a restart: got epochs %+v, %v, want one", epochs, err)
	}
}

// A handle that is open while its server is replaced by a promoted copy raises the
// epoch when it connects anew, before any statement of its own.
func TestLiveHandleMeetsAPromotedCopy(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(directory(t), "a"), filepath.Join(directory(t), "b")
	original := ownServer(t, &postgresemulator.Options{Dir: a})
	db, err := original.NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	network, err := faultynetwork.New(t.Context(), original.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = network.Close() })
	s := open(t, at(t, db.URL, network.Address()), quiet)
	lease, last := begun(t, s)
	if err := errors.Join(original.Kill(), os.Mkdir(b, 0o755)); err != nil {
		t.Fatal(err)
	}
	copyData(t, a, b)
	standby := ownServer(t, &postgresemulator.Options{Dir: b})
	network.Retarget(standby.Address())
	// It waits while its server is a standby.
	refusal := make(chan error, 1)
	go func() {
		_, err := s.Commit(t.Context(), appending(lease, "zombie"))
		refusal <- err
	}()
	if !get[bool](t, connect(t, at(t, db.URL, standby.Address())), `SELECT pg_promote()`) {
		t.Fatal("the standby was not promoted")
	}
	if err := <-refusal; !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a write that was sent during the failover: got %v, want ErrFenced", err)
	}
	raisedOnce(t, s, lease, last)
}

// A store that was dumped and restored is in another cluster.
func TestRestoredDump(t *testing.T) {
	t.Parallel()
	address := database(t)
	lease, last := begun(t, open(t, address))
	dump := get[string](t, connect(t, address), `SELECT setting || '/pg_dump' FROM pg_config WHERE name = 'BINDIR'`)
	if _, err := os.Stat(dump); err != nil {
		t.Skipf("not applicable: the server comes without pg_dump: %v", err)
	}
	text, err := osexec.CommandContext(t.Context(), dump, "--inserts", "--no-owner", address).Output()
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, `\`) { // psql's own
			script.WriteString(line)
		}
	}
	db, err := ownServer(t, nil).NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, db.URL)
	if _, err := conn.PgConn().Exec(t.Context(), script.String()).ReadAll(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	raisedOnce(t, open(t, db.URL, quiet), lease, last)
}

// TestHandleMeetsAnOlderStore checks that a handle that was open while its store was replaced by an older
// one, of a lower epoch, continues the positions of that store.
func TestHandleMeetsAnOlderStore(t *testing.T) {
	t.Parallel()
	newer, older := database(t), database(t)
	u, err := url.Parse(newer)
	if err != nil {
		t.Fatal(err)
	}
	network, err := faultynetwork.New(t.Context(), u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = network.Close() })
	s := open(t, at(t, newer, network.Address()), quiet)
	for range 2 {
		if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
	before := open(t, older)
	_, last := begun(t, before)
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	name := func(address string) string {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimPrefix(u.Path, "/")
	}
	network.Cut()
	conn := connect(t, database(t))
	get[int64](t, conn, `SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE datname IN ($1, $2)`, name(newer), name(older))
	exec(t, conn, fmt.Sprintf(`ALTER DATABASE %q RENAME TO %q`, name(newer), name(newer)+"-replaced"))
	exec(t, conn, fmt.Sprintf(`ALTER DATABASE %q RENAME TO %q`, name(older), name(newer)))
	network.Reset()
	// The lease is another handle's, and s has no connection left, so that the statement of the commit is made
	// before s has a new one.
	lease := hold(t, open(t, newer), "next")
	postgres.CloseConnections(s)
	commit(t, s, appending(lease, "after"))
	if p := get[runstore.Position](t, connect(t, newer), `SELECT last_position FROM tapestore.runs WHERE id = 'next'`); p <= last || p > last+1<<40 {
		t.Errorf("got the position %d, want one soon after %d", p, last)
	}
}
