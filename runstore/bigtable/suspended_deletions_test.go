package bigtable_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// deletions are interruptions of work that sends several requests before or while it deletes.
var deletions = []interrupted{
	{
		name: "a move and a pack",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			runnable(t, s, "run", time.Minute)
			putLarge(t, s, "large 0", "a")
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "thief", TTL: time.Minute}, Preempt: "test",
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: granted.Lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
				t.Fatal(err)
			}
		},
		prepares: func(t testing.TB, s *bigtable.Store) {
			putLarge(t, s, "large 0", "b")
			// The scan finds the entry at the expiry of before the renewal, and has it moved.
			isWanted(t, "renewed", s, runstore.IndexQuery{Until: now(t, s).Add(5 * time.Minute)})
		},
		works: func(t testing.TB, s *bigtable.Store) { bigtable.EmptyGarbage(t.Context(), s) },
		keeps: func(t testing.TB, s *bigtable.Store, _ *client.Table) { hasLarge(t, s, "a", 1) },
	},
	{
		name: "packs of a purged run",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			hold(t, s, "run")
			for i := range 3 {
				putLarge(t, s, runstore.RecordKey(fmt.Sprint("large ", i)), "a")
			}
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			purge(t, s, takeOver(t, s, "run"))
		},
		prepares: func(_ testing.TB, s *bigtable.Store) { bigtable.DeleteOneByOne(s) },
		works:    func(t testing.TB, s *bigtable.Store) { bigtable.OrphanScan(t.Context(), s) },
		keeps:    func(t testing.TB, s *bigtable.Store, _ *client.Table) { hasLarge(t, s, "a", 3) },
	},
	refusedOnce(interrupted{
		name: "packs of a purged run whose deletion is repeated",
		survives: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			hold(t, s, "run")
			putLarge(t, s, "large", "a")
		},
		loses: func(t testing.TB, table bigtableemulator.TableName) {
			s := openBare(t, table)
			purge(t, s, takeOver(t, s, "run"))
		},
		works: func(t testing.TB, s *bigtable.Store) { bigtable.OrphanScan(t.Context(), s) },
		keeps: func(t testing.TB, s *bigtable.Store, _ *client.Table) { hasLarge(t, s, "a", 1) },
	}),
}

// refusedOnce has the first deletion of packs fail, with an error after which the adapter repeats it and the
// client library does not.
func refusedOnce(c interrupted) interrupted {
	var table bigtableemulator.TableName
	survives := c.survives
	c.survives = func(t testing.TB, of bigtableemulator.TableName) {
		table = of
		survives(t, of)
	}
	c.prepares = func(t testing.TB, _ *bigtable.Store) { refuseRows(t, table, 1, 'd', codes.Unknown) }
	return c
}

// putLarge commits an event, and a record whose value is in a pack.
func putLarge(t testing.TB, s *bigtable.Store, key runstore.RecordKey, value string) {
	t.Helper()
	b := signal("run", "event")
	b.Put(key, []byte(strings.Repeat(value, 20<<10)))
	commit(t, s, b)
}

// hasLarge checks that "run" has n records that putLarge has put.
func hasLarge(t testing.TB, s *bigtable.Store, value string, n int) {
	t.Helper()
	found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Prefix: "large", Limit: 10})
	if err != nil || len(found) != n {
		t.Errorf("the run has %d large records, %v, want %d", len(found), err, n)
	}
	for _, r := range found {
		if string(r.Value) != strings.Repeat(value, 20<<10) {
			t.Errorf("the record %q has %s, want the value of before the failover", r.Key, short(r.Value))
		}
	}
}
