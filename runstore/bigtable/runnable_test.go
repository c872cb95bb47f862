package bigtable_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// runnable creates a run that wants a driver, and takes its lease.
func runnable(t testing.TB, s *bigtable.Store, id runstore.RunID, ttl time.Duration) runstore.Lease {
	t.Helper()
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Runnable: runstore.After(0)}); err != nil {
		t.Fatal(err)
	}
	return grant(t, s, id, ttl)
}

func grant(t testing.TB, s *bigtable.Store, id runstore.RunID, ttl time.Duration) runstore.Lease {
	t.Helper()
	granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "driver", TTL: ttl}})
	if err != nil {
		t.Fatal(err)
	}
	return granted.Lease
}

// wanted returns the runs that a scan finds, one to a page.
func wanted(t testing.TB, s *bigtable.Store, q runstore.IndexQuery) (found []runstore.RunID) {
	t.Helper()
	q.Index, q.Limit = runstore.IndexRunnable, 1
	for e, err := range runstore.Entries(t.Context(), s, q) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, e.Run)
	}
	slices.Sort(found)
	return found
}

func isWanted(t testing.TB, what string, s *bigtable.Store, q runstore.IndexQuery, want ...runstore.RunID) {
	t.Helper()
	if found := wanted(t, s, q); !slices.Equal(found, want) {
		t.Errorf("%s: got the runs %q, want %q", what, found, want)
	}
}

// placesOf returns the rows of IndexRunnable.
func placesOf(t testing.TB, tbl *client.Table) (all []bigtable.EntryParts) {
	t.Helper()
	for _, key := range keys(t, tbl, "i") {
		if p, ok := bigtable.ParseIndexEntry(key[2:]); ok && p.Index == string(runstore.IndexRunnable) {
			all = append(all, p)
		}
	}
	return all
}

var (
	due = runstore.IndexQuery{}
	all = runstore.IndexQuery{Until: runstore.EndOfTime}
)

// isPast waits until the store clock has passed a time.
func isPast(t testing.TB, s *bigtable.Store, at time.Time) {
	t.Helper()
	await(t, "the end of a lease", func() bool { return now(t, s).After(at.Add(time.Second / 100)) })
}

// A run has one row in the index once its operations have ended, and the rows of before are gone.
func TestARunnableRunHasOneRow(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other, tbl := openBare(t, table), openBare(t, table), raw(t, table)
	one := func(what string, at time.Time) {
		t.Helper()
		bigtable.EmptyGarbage(t.Context(), s)
		bigtable.EmptyGarbage(t.Context(), other)
		if rows := placesOf(t, tbl); len(rows) != 1 || rows[0].At != runstore.Micros(at) {
			t.Errorf("%s: got the rows %+v, want one at %d", what, rows, runstore.Micros(at))
		}
	}
	lease := runnable(t, s, "run", runstore.MinTTL)
	one("granted", lease.ExpiresAt)
	renewed, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL})
	if err != nil {
		t.Fatal(err)
	}
	one("renewed", lease.ExpiresAt)
	isPast(t, s, lease.ExpiresAt)
	isWanted(t, "renewed", other, due)
	one("moved", renewed.ExpiresAt)
	isWanted(t, "moved", s, runstore.IndexQuery{Until: renewed.ExpiresAt, From: renewed.ExpiresAt}, "run")
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	isWanted(t, "released", other, due, "run")
	bigtable.EmptyGarbage(t.Context(), s)
	if rows := placesOf(t, tbl); len(rows) != 2 { // the releaser does not know where a scan moved the row
		t.Errorf("released: got the rows %+v, want two", rows)
	}
	lease = grant(t, s, "run", runstore.MaxTTL)
	isWanted(t, "granted again", other, all, "run")
	b := runstore.NewBatch("run", lease.Fence())
	b.Runnable = runstore.After(2 * time.Hour)
	done := commit(t, s, b)
	isWanted(t, "in two hours", other, all, "run")
	one("in two hours", done.Time.Add(2*time.Hour))
}

// The row of a grant, or of the end of one, cannot be written, though the head was. The caller gets an
// unknown outcome, the run is found no later than before, and the repeat sees to the row.
func TestTheRowOfAGrantIsMissing(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"acquire", "release", "commit that releases", "take over"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, other, tbl := openBare(t, table), openBare(t, table), raw(t, table)
			lease := runnable(t, s, "run", runstore.MinTTL)
			if op == "acquire" {
				if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
					t.Fatal(err)
				}
			}
			if op == "take over" {
				isPast(t, s, lease.ExpiresAt)
			}
			bigtable.EmptyGarbage(t.Context(), s)
			do := func(s *bigtable.Store) error {
				switch op {
				case "release":
					_, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
					return err
				case "commit that releases":
					b := runstore.NewBatch("run", lease.Fence())
					b.ID, b.Release = "the same", true
					_, err := s.Commit(t.Context(), b)
					return err
				default:
					_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
						Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: runstore.MinTTL, Grant: "the same"},
					})
					return err
				}
			}
			before := placesOf(t, tbl)
			fault := refuseRows(t, table, 0, 'i', codes.PermissionDenied)
			if err := do(s); !errors.Is(err, runstore.ErrUnknownOutcome) {
				t.Fatalf("got %v, want an unknown outcome", err)
			}
			fault.Stop()
			bigtable.EmptyGarbage(t.Context(), s)
			if rows := placesOf(t, tbl); len(before) != 1 || !slices.Equal(rows, before) {
				t.Fatalf("got the rows %+v, want those of before, %+v", rows, before)
			}
			run, err := other.GetRun(t.Context(), "run")
			if err != nil || (op == "release" || op == "commit that releases") == (run.Holder.Token != 0) {
				t.Fatalf("it was not applied: %+v, %v", run.Holder, err)
			}
			isWanted(t, "at some time", other, all, "run")
			isPast(t, other, run.ExpiresAt)
			isPast(t, other, lease.ExpiresAt)
			isWanted(t, "due", other, due, "run")
			if err := do(other); err != nil {
				t.Errorf("the repeat: %v", err)
			}
			named := false
			for _, p := range placesOf(t, tbl) {
				named = named || p.Rev > before[0].Rev
			}
			if !named {
				t.Error("the repeat was acknowledged without the row")
			}
			bigtable.EmptyGarbage(t.Context(), other)
			isWanted(t, "in the end", s, due, "run")
		})
	}
}

// A scan moves the row of a run whose lease was renewed. If the new row cannot be written, the old one stays.
func TestAMoveOfARowFails(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	lease := runnable(t, s, "run", runstore.MinTTL)
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
		t.Fatal(err)
	}
	bigtable.EmptyGarbage(t.Context(), s)
	before := placesOf(t, tbl)
	isPast(t, s, lease.ExpiresAt)
	isWanted(t, "renewed", s, due)
	fault := refuseRows(t, table, 1, 'i', codes.PermissionDenied)
	bigtable.EmptyGarbage(t.Context(), s)
	if fault.Count() != 1 {
		t.Fatal("the scan moved no row")
	}
	if rows := placesOf(t, tbl); len(before) != 1 || !slices.Equal(rows, before) {
		t.Errorf("got the rows %+v, want those of before, %+v", rows, before)
	}
	isWanted(t, "at some time", s, all, "run")
}

// A scan that meets only the row of before writes the run's own before it removes that, and before
// it returns if it may have to find it on a later page.
func TestAScanWritesTheMissingRow(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	lease := runnable(t, s, "run", time.Minute)
	runnable(t, s, "other", 2*runstore.MinTTL)
	bigtable.EmptyGarbage(t.Context(), s)
	deleteRows(t, tbl, "i", func(key string) bool {
		p, ok := bigtable.ParseIndexEntry(key[2:])
		return ok && p.Index == string(runstore.IndexRunnable) && p.Run == "run"
	})
	// What a handle leaves that dies between the two: the row of before.
	stray := bigtable.EntryParts{Index: string(runstore.IndexRunnable), At: 1, Written: 1, Run: "run", Rev: 1, Nonce: 7}
	m := client.NewMutation()
	m.Set("x", "", 0, nil)
	if err := tbl.Apply(t.Context(), stray.RowKey(), m); err != nil {
		t.Fatal(err)
	}
	fault := refuseRows(t, table, 0, 'i', codes.PermissionDenied)
	page, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRunnable, Until: runstore.EndOfTime, Limit: 1})
	fault.Stop()
	if err == nil {
		t.Errorf("a page without the row of a run behind it: %+v", page)
	}
	bigtable.EmptyGarbage(t.Context(), s)
	isWanted(t, "all", s, all, "other", "run")
	bigtable.EmptyGarbage(t.Context(), s)
	var own []int64
	for _, p := range placesOf(t, tbl) {
		if p.Run == "run" {
			own = append(own, p.At)
		}
	}
	if want := []int64{runstore.Micros(lease.ExpiresAt)}; !slices.Equal(own, want) {
		t.Errorf("the run has rows at %d, want %d", own, want)
	}
	isWanted(t, "all, again", s, all, "other", "run")
}

// A run that is taken while a scan reads backwards is found, though its row of before is gone.
func TestARunMovesOnDuringAScanBackwards(t *testing.T) {
	t.Parallel()
	for n := range 4 {
		table := newTable(t)
		s, scanner := openBare(t, table), openBare(t, table)
		for _, id := range []runstore.RunID{"a", "mover", "z"} {
			if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Runnable: runstore.After(0)}); err != nil {
				t.Fatal(err)
			}
		}
		for _, newest := range []bool{false, true} {
			var found []runstore.IndexEntry
			q := runstore.IndexQuery{Index: runstore.IndexRunnable, Until: runstore.EndOfTime, Limit: 10, Newest: newest}
			whilePaused(t, table, "scan index", n, func() {
				var err error
				if found, err = scanner.ScanIndex(t.Context(), q); err != nil {
					t.Error(err)
				}
			}, func() {
				takeOver(t, s, "mover")
				bigtable.DeleteGarbage(t.Context(), s)
			})
			ids := map[runstore.RunID]int{}
			for i, e := range found {
				ids[e.Run]++
				if i > 0 && e.At.Before(found[i-1].At) != newest && !e.At.Equal(found[i-1].At) {
					t.Errorf("held at request %d, newest first %v: the entries are not in order", n, newest)
				}
			}
			if len(found) != 3 || len(ids) != 3 {
				t.Errorf("held at request %d, newest first %v: found %v, want each of three runs once", n, newest, ids)
			}
		}
	}
}

// A grant of a runnable run, and its release, make one request more than those of another run, and
// not one after the other.
func TestRPCsOfARunnableRun(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	lease := runnable(t, s, "run", time.Minute)
	l := keepLedger(t, table)
	of := func(f func()) string {
		made := strings.Split(l.during(f), ", ")
		slices.Sort(made)
		return rpcs(made...)
	}
	if got, want := of(func() {
		if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute}); err != nil {
			t.Error(err)
		}
	}), rpcs(swaps); got != want {
		t.Errorf("renew: got %s, want %s", got, want)
	}
	for i, want := range []string{rpcs(swaps, writes), rpcs(writes, reads)} {
		if got := of(func() {
			if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
				t.Error(err)
			}
		}); got != want {
			t.Errorf("release, repeated %d times: got %s, want %s", i, got, want)
		}
	}
	for i, want := range []string{rpcs(swaps, writes, reads), rpcs(writes, reads)} {
		if got := of(func() {
			if _, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "driver", TTL: time.Minute, Grant: "repeated"},
			}); err != nil {
				t.Error(err)
			}
		}); got != want {
			t.Errorf("acquire, repeated %d times: got %s, want %s", i, got, want)
		}
	}
}

// A scan of what is due costs the same however many live leases there are, and passes over the
// renewed ones once.
func TestRPCsOfLiveLeases(t *testing.T) {
	t.Parallel()
	for _, runs := range liveRuns(t) {
		table := newTable(t)
		s, scanner := openBare(t, table), openBare(t, table)
		const drivers = 16
		parallel(drivers, func(k int) {
			for i := k; i < runs; i += drivers {
				runnable(t, s, runstore.RunID(fmt.Sprint("live ", i)), runstore.MaxTTL)
			}
		})
		bigtable.DeleteGarbage(t.Context(), s)
		l := keepLedger(t, table)
		scan := func() int {
			now(t, scanner)
			return strings.Count(l.during(func() {
				found, err := scanner.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: 16})
				if err != nil || len(found) != 0 {
					t.Errorf("%d runs: found %d, %v", runs, len(found), err)
				}
			}), ",") + 1
		}
		if n := scan(); n != 2 {
			t.Errorf("%d live runs: a scan makes %d requests, want 2", runs, n)
		}
		parallel(drivers, func(k int) {
			for i := k; i < runs; i += drivers {
				lease := runnable(t, s, runstore.RunID(fmt.Sprint("renewed ", i)), runstore.MinTTL)
				if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
					t.Error(err)
				}
			}
		})
		bigtable.DeleteGarbage(t.Context(), s)
		isPast(t, s, now(t, s).Add(runstore.MinTTL))
		first := scan()
		bigtable.EmptyGarbage(t.Context(), scanner)
		second := scan()
		t.Logf("%d live runs: %d requests, and %d once the renewed ones were moved", runs, first, second)
		if second != 2 {
			t.Errorf("%d live runs: a scan makes %d requests after another has moved the entries, want 2", runs, second)
		}
		if most := 20 + runs/8; first > most {
			t.Errorf("%d renewed runs: a scan makes %d requests, want %d at most", runs, first, most)
		}
	}
}

// liveRuns are how many live runs the tests have.
func liveRuns(t *testing.T) []int {
	t.Helper()
	if effort.Full() {
		return []int{100, 1000, 10_000}
	}
	return []int{100, 1000}
}

func parallel(n int, f func(k int)) {
	var wg sync.WaitGroup
	for k := range n {
		wg.Go(func() { f(k) })
	}
	wg.Wait()
}

// A run that moves to a later time while a scan backwards is between two reads, from where the scan
// has not been to where it has, is found though its former row is gone.
func TestARunMovesBehindAScanBackwards(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, scanner := openBare(t, table), openBare(t, table)
	const drivers, each = 16, 25
	parallel(drivers, func(k int) {
		for i := range each { // entries that are due, and none of a run that is: the scan reads on
			lease := runnable(t, s, runstore.RunID(fmt.Sprint("renewed ", k, " ", i)), runstore.MinTTL)
			if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
				t.Error(err)
			}
		}
	})
	isPast(t, s, now(t, s).Add(runstore.MinTTL))
	bigtable.DeleteGarbage(t.Context(), s)
	for n := 1; ; n += 3 { // the first reads are of all shards, and then of each
		id := runstore.RunID(fmt.Sprint("mover ", n))
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Runnable: runstore.At(now(t, s).Add(-time.Hour))}); err != nil {
			t.Fatal(err)
		}
		move := func(at time.Time) {
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			b.Runnable = runstore.At(at)
			commit(t, s, b)
			bigtable.DeleteGarbage(t.Context(), s)
		}
		var found []runstore.IndexEntry
		moved := whilePaused(t, table, "scan index", n, func() {
			var err error
			q := runstore.IndexQuery{Index: runstore.IndexRunnable, Until: now(t, s).Add(time.Minute), Limit: 1, Newest: true}
			if found, err = scanner.ScanIndex(t.Context(), q); err != nil {
				t.Error(err)
			}
		}, func() { move(now(t, s).Add(time.Minute / 2)) })
		if len(found) != 1 || found[0].Run != id {
			t.Errorf("held at request %d: found %+v, want the run that moves", n, found)
		}
		move(now(t, s).Add(time.Hour))
		if !moved {
			return
		}
	}
}
