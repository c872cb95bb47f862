package bigtable_test

import (
	"context"
	"fmt"
	"testing"

	client "cloud.google.com/go/bigtable"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// requestsOf returns the number of background requests that do causes.
func requestsOf(t testing.TB, table bigtableemulator.TableName, do func()) int {
	t.Helper()
	return len(backgroundOf(t, table, do))
}

// backgroundOf returns the methods of the background requests that do causes, one after another.
func backgroundOf(t testing.TB, table bigtableemulator.TableName, do func()) (all []string) {
	t.Helper()
	watch := server(t).Watch(func(c bigtableemulator.Call) bool {
		if c.Table == table.String() && !isServed(c) {
			all = append(all, c.Method)
		}
		return false
	})
	defer watch.Stop()
	do()
	return all
}

// An orphan scan makes three requests for each 2,000 marks: it reads the marks, the epoch and the heads of the runs.
func TestRequestsOfManyMarks(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	marks := 0
	for _, n := range []int{1, 2001, 4001} {
		var rows []string
		var sets []*client.Mutation
		for ; marks < n; marks++ {
			set := client.NewMutation()
			set.Set("x", "", 0, nil)
			rows, sets = append(rows, bigtable.MarkKey(runstore.RunID(fmt.Sprint("run ", marks)), 1, 1)), append(sets, set)
		}
		if errs, err := tbl.ApplyBulk(t.Context(), rows, sets); err != nil || errs != nil {
			t.Fatal(errs, err)
		}
		got := requestsOf(t, table, func() { bigtable.OrphanScanOnce(t.Context(), s) })
		if want := 3 * (1 + n/2000); got != want {
			t.Errorf("a scan of %d marks makes %d requests, want %d", n, got, want)
		}
	}
}

// The orphan scans make the same requests however many handles are open: each shard is
// scanned by the handle that has claimed it, and a handle without a claim makes one request.
func TestOrphanScansOfManyHandles(t *testing.T) {
	t.Parallel()
	requests := map[int]int{}
	for _, n := range []int{1, 8} {
		table := newTable(t)
		var handles []*bigtable.Store
		for range n {
			handles = append(handles, openBare(t, table))
		}
		for i := range 20 {
			hold(t, handles[0], runstore.RunID(fmt.Sprint("run ", i)))
		}
		for range 2 { // each claims half of the shards
			bigtable.ScanClaimed(t.Context(), handles[0])
		}
		claimed := 0
		requests[n] = requestsOf(t, table, func() {
			for _, s := range handles {
				claimed += bigtable.ScanClaimed(t.Context(), s)
			}
		})
		if claimed != 16 {
			t.Errorf("%d handles have scanned %d shards, want 16", n, claimed)
		}
	}
	if want := requests[1] + 7; requests[8] != want {
		t.Errorf("a pass of 8 handles makes %d requests, want %d: the %d of one handle, and one of each of the others", requests[8], want, requests[1])
	}
}

// An orphan scan leaves the events of a live handle to that handle, and its page open. It publishes what the
// feed still lacks at the next scan, because the handle has died.
func TestOrphanScanLeavesLiveHandles(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	live, scanner := openBare(t, table), openBare(t, table)
	lease := hold(t, live, "run")
	published := func(want int) {
		t.Helper()
		if got := len(whole(t, live, 0, 100, nil)); got != want {
			t.Errorf("the feed has %d events, want %d", got, want)
		}
	}
	const commits = 5
	for i := range commits {
		commit(t, live, appending(lease, fmt.Sprint(i)))
		bigtable.OrphanScanOnce(t.Context(), scanner)
		published(i)
		bigtable.PublishPending(t.Context(), live)
		published(i + 1)
	}
	// A scan that ends just before the periodic review does not make the page look idle.
	other := openBare(t, table)
	bigtable.OrphanScan(t.Context(), other)
	if err := bigtable.WriteBack(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	commit(t, live, appending(lease, "last"))
	bigtable.PublishPending(t.Context(), live)
	published(commits + 1)
	if pages := keys(t, raw(t, table), "l"); len(pages) != 1 {
		t.Errorf("the log has %d pages, want the one that the live handle appends to", len(pages))
	}
	commit(t, live, appending(lease, "of a handle that dies"))
	bigtable.OrphanScanOnce(t.Context(), scanner)
	published(commits + 1)
	bigtable.OrphanScanOnce(t.Context(), scanner)
	published(commits + 2)
}

// The shards of handles that have died, or were closed, are claimed by others. A handle that comes back finds them
// taken.
func TestClaimsOfTheDead(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	dead, closed, heir := openBare(t, table), openBare(t, table), openBare(t, table)
	has := func(s *bigtable.Store, want int) {
		t.Helper()
		if n := bigtable.ScanClaimed(t.Context(), s); n != want {
			t.Errorf("the handle has %d shards, want %d", n, want)
		}
	}
	has(dead, 8)
	has(closed, 8)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	has(heir, 0)
	for _, n := range []int{8, 16} { // it claims half of the shards at once
		bigtable.AgeClaims(heir)
		has(heir, n)
	}
	has(dead, 0)
}

// A scan of many marks renews the claims of its handle between any two requests that read marks.
func TestLongScanKeepsItsClaims(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	other, tbl := openBare(t, table), raw(t, table)
	watching, requests := false, 0
	s := openBare(t, table, before(func(method string, kind byte) {
		if watching && method == reads && kind == 'm' {
			if n := bigtable.ScanClaimed(t.Context(), other); n != 0 {
				t.Errorf("before request %d another handle has claimed %d shards", requests, n)
			}
			bigtable.AgeClaims(other)
			requests++
		}
	}))
	plant(t, tbl, 2*bigtable.ScanPage+100, func(i int) string { return bigtable.MarkKey(runID("run", i), 1, 1) })
	for range 2 { // each claims half of the shards
		bigtable.ScanClaimed(t.Context(), s)
	}
	bigtable.RenewOften(s)
	bigtable.ScanClaimed(t.Context(), other)
	watching = true
	bigtable.ScanClaimed(t.Context(), s)
	watching = false
	if requests != 3 {
		t.Errorf("the scan has read marks with %d requests, want 3", requests)
	}
}

// A handle that retires the mark of an idle run for long keeps its claims by its scans. If it has lost them
// nevertheless, it leaves the run to the other handle.
func TestRetirementNeedsItsClaim(t *testing.T) {
	t.Parallel()
	for _, loses := range []bool{false, true} {
		t.Run(fmt.Sprint("loses its claims ", loses), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, other, tbl := openDying(t, table), openBare(t, table), raw(t, table)
			idle(t, s.Store)
			first, last := server(t).Hold(1, s.only(nthRevision(table, 1))), server(t).Hold(1, s.only(nthRevision(table, 2)))
			defer first.Stop()
			defer last.Stop()
			retired, end := context.WithCancel(t.Context())
			bigtable.Ahead(s.Store, func() {
				for range 2 { // each claims half of the shards
					bigtable.ScanClaimed(t.Context(), s.Store)
				}
				go func() {
					defer end()
					bigtable.Retire(t.Context(), s.Store)
				}()
				met(t, first, 1)
				others := func(want int) {
					t.Helper()
					got := 0
					for range 3 {
						got = bigtable.ScanClaimed(t.Context(), other)
					}
					if got != want {
						t.Errorf("the other handle has claimed %d shards, want %d", got, want)
					}
				}
				others(0)
				bigtable.AgeClaims(other)
				if loses {
					others(16)
				}
				bigtable.ScanClaimed(t.Context(), s.Store)
				first.Stop()
				if loses {
					if last.Await(retired, 1) == nil {
						t.Error("the retirement has gone on without its claim")
						last.Stop()
					}
					<-retired.Done()
					bigtable.Ahead(other, func() {
						bigtable.ScanClaimed(t.Context(), other)
						bigtable.Retire(t.Context(), other)
					})
					return
				}
				met(t, last, 1)
				others(0)
				last.Stop()
				<-retired.Done()
			})
			if n := len(keys(t, tbl, "m")); n != 0 {
				t.Errorf("%d marks remain, want none", n)
			}
		})
	}
}

// An orphan scan that the server does not answer delays neither the feed nor what seals the
// long runs.
func TestOrphanScansDelayNothing(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := open(t, table)
	lease := hold(t, s, "run")
	held := server(t).Hold(0, func(c bigtableemulator.Call) bool {
		return c.Table == table.String() && c.Row != nil && c.Method == swaps && c.Row[0] == 'w'
	})
	met(t, held, 1)
	for i := range 200 {
		commit(t, s, appending(lease, fmt.Sprint(i)))
	}
	feed(t, s, 0, 200)
	tbl := raw(t, table)
	await(t, "a segment of the journal", func() bool { return len(keys(t, tbl, "s")) > 0 })
	held.Stop()
}
