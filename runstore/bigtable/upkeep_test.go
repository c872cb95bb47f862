package bigtable_test

import (
	"fmt"
	"testing"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// requestsOf returns the number of background requests that do causes.
func requestsOf(t testing.TB, table bigtableemulator.TableName, do func()) (all int) {
	t.Helper()
	watch := server(t).Watch(func(c bigtableemulator.Call) bool {
		if c.Table == table.String() && !isServed(c) {
			all++
		}
		return false
	})
	defer watch.Stop()
	do()
	return all
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

// The shards of a handle that has died are claimed by others, those of one that was closed at once. A
// handle that comes back finds them taken.
func TestClaimsOfTheDead(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	dead, closed, heir := openBare(t, table), open(t, table), openBare(t, table)
	bigtable.StopWorkers(closed)
	has := func(s *bigtable.Store, want int) {
		t.Helper()
		if n := bigtable.ScanClaimed(t.Context(), s); n != want {
			t.Errorf("the handle has %d shards, want %d", n, want)
		}
	}
	has(dead, 8)
	has(closed, 8)
	has(heir, 0)
	bigtable.Release(t.Context(), closed)
	has(heir, 8)
	bigtable.AgeClaims(heir)
	has(heir, 16)
	has(dead, 0)
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
