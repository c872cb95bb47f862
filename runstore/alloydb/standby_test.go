//go:build unix

package alloydb_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
)

// replicating starts a primary and a standby of it.
func replicating(t *testing.T) (primary, standby *emulators.PostgresServer) {
	t.Helper()
	program, err := exec.LookPath("pg_basebackup")
	if err != nil {
		t.Skip("not applicable: there is no pg_basebackup on the search path")
	}
	settings := map[string]string{"wal_level": "replica", "max_wal_senders": "4", "wal_receiver_status_interval": "1s", "wal_sender_timeout": "400ms"}
	dir, err := os.MkdirTemp("/tmp", "tapestore-standby-") // where a server's own user can enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	start := func(name string) *emulators.PostgresServer {
		s, err := emulators.Postgres(t.Context(), &emulators.PostgresOptions{Settings: settings, Dir: filepath.Join(dir, name)})
		emulators.Require(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	primary = start("primary")
	if primary.Engine().Tier != emulators.TierLocal {
		t.Skip("not applicable: the server is not of this machine")
	}
	var owner syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, "primary", "data"), &owner); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "standby"), 0o755); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "standby", "data")
	if out, err := exec.CommandContext(t.Context(), program, "-D", data, "-R", "-c", "fast", "-d", primary.URL()).CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	_ = os.Remove(filepath.Join(data, "postmaster.pid"))
	if err := filepath.WalkDir(filepath.Join(dir, "standby"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || os.Geteuid() != 0 {
			return err
		}
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	}); err != nil {
		t.Fatal(err)
	}
	return primary, start("standby")
}

// A real standby takes no writes and can be behind. Whether it is read is seen by what
// is read: a journal that lacks the last event comes from there.
func TestStaleReadsOnStandby(t *testing.T) {
	t.Parallel()
	primary, standby := replicating(t)
	db, err := primary.NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	store, err := alloydb.OpenWithReadPool(t.Context(), &alloydb.Options{
		Host: primary.Address(), ReadPool: standby.Address(), User: "postgres", Database: db.Name,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l := begin(t, store, "run")
	control := func(server *emulators.PostgresServer, sql string) {
		t.Helper()
		c, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	read := func(bound time.Duration) int {
		t.Helper()
		events, err := store.ReadJournalStale(t.Context(), "run", 1, 100, bound)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Position != 0 {
				t.Errorf("event %d has position %d", e.Seq, e.Position)
			}
		}
		return len(events)
	}
	waitFor(t, "the standby has the run", func() bool {
		c, err := pgx.Connect(t.Context(), standby.URL()[:len(standby.URL())-len("/postgres?sslmode=disable")]+"/"+db.Name)
		if err != nil {
			return false
		}
		defer c.Close(context.Background())
		var n int
		return c.QueryRow(t.Context(), "SELECT count(*) FROM tapestore.events").Scan(&n) == nil && n == 1
	})
	waitFor(t, "the standby is tried", func() bool { // it did not have the database when the store was opened
		control(standby, "SELECT pg_wal_replay_pause()")
		if err := appendOne(t.Context(), store, l, "while the standby stands still"); err != nil {
			t.Fatal(err)
		}
		stale := read(time.Hour)
		run, err := store.GetRun(t.Context(), "run")
		if err != nil {
			t.Fatal(err)
		}
		if stale > int(run.LastSeq) {
			t.Fatalf("%d events, the run has %d", stale, run.LastSeq)
		}
		return stale < int(run.LastSeq)
	})
	run, err := store.GetRun(t.Context(), "run")
	if err != nil {
		t.Fatal(err)
	}
	all := int(run.LastSeq)
	waitFor(t, "the standby is too far behind", func() bool { return read(100*time.Millisecond) == all })
	if got := read(time.Hour); got >= all {
		t.Errorf("within an hour: %d events, want those of the standby, fewer than %d", got, all)
	}

	begin(t, store, "unheard of")
	candidates := func(bound time.Duration) int {
		t.Helper()
		found, err := store.ScanIndexStale(t.Context(), runstore.IndexQuery{Index: runstore.IndexRuns, Limit: 10}, bound)
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	if got := candidates(time.Hour); got != 1 {
		t.Errorf("within an hour: %d candidates, want the one that the standby knows", got)
	}
	waitFor(t, "the standby is too far behind for a scan", func() bool { return candidates(100*time.Millisecond) == 2 })

	// An idle primary: the last commit is long ago, and the standby knows all of it.
	control(standby, "SELECT pg_wal_replay_resume()")
	waitFor(t, "the standby has caught up", func() bool { return read(time.Hour) == all })
	lag := func() time.Duration {
		t.Helper()
		c, err := pgx.Connect(t.Context(), standby.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		d, known, err := alloydb.LagOf(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if !known {
			return time.Hour
		}
		return d
	}
	var since time.Time
	waitFor(t, "the last commit is two seconds old", func() bool {
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) > 2*time.Second
	})
	waitFor(t, "an idle standby is known to be current", func() bool { return lag() < time.Second })

	// A standby that is cut off has replayed all that it received, and is not current.
	if err := primary.Freeze(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a standby that hears nothing is known to be behind", func() bool { return lag() > 1500*time.Millisecond })
	if err := primary.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := appendOne(t.Context(), store, l, "after all"); err != nil && !errors.Is(err, runstore.ErrUnavailable) {
		t.Error(fmt.Errorf("append: %w", err))
	}
}
