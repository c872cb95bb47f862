package bigtable_test

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// An event comes into the feed by one request, however many handles append in turn.
func TestAppendsOfManyHandles(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 8, 32} {
		t.Run(fmt.Sprint(n, " handles"), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			handles := bareHandles(t, table, n)
			inPages(t, handles, 1) // each handle learns where the log ends
			appends, all := 0, 0
			watch := server(t).Watch(func(c bigtableemulator.Call) bool {
				if c.Table == table.String() && !isServed(c) {
					if all++; onPage(table)(c) {
						appends++
					}
				}
				return false
			})
			defer watch.Stop()
			inPages(t, handles, 5)
			watch.Stop()
			t.Logf("%d handles: %.3f requests for each event", n, float64(all)/float64(5*n))
			if appends != 5*n || all != appends {
				t.Errorf("%d events: %d appends and %d requests in all, want one append each and nothing else", 5*n, appends, all)
			}
			if got := len(whole(t, handles[0], 0, 100, nil)); got != 6*n {
				t.Errorf("the feed has %d events, want %d", got, 6*n)
			}
		})
	}
}

// Handles that take turns foresee that a page is full: none appends to it in vain. Each reads the next page
// once.
func TestFullPageIsForeseen(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	const n = 8
	handles := bareHandles(t, table, n)
	inPages(t, handles, 1)
	appends, creates, looks := 0, 0, 0
	watch := server(t).Watch(func(c bigtableemulator.Call) bool {
		switch page := len(c.Row) > 0 && c.Row[0] == 'l'; {
		case c.Table != table.String() || isServed(c):
		case onPage(table)(c):
			appends++
		case page && c.Method == swaps:
			creates++
		case c.Method == reads:
			looks++
		}
		return false
	})
	defer watch.Stop()
	rounds := bigtable.PageEntries/n + 5
	inPages(t, handles, rounds)
	watch.Stop()
	// The handle that filled the page tries to create the next one, which another handle has created by then.
	if creates > 2 || appends != rounds*n-1 || looks > n {
		t.Errorf("%d events of %d handles: %d appends, %d attempts to create a page, %d reads; want an append for each event but one, two attempts and a read for each handle at most",
			rounds*n, n, appends, creates, looks)
	}
	if got := len(whole(t, handles[0], 0, runstore.MaxPage, nil)); got != (rounds+1)*n {
		t.Errorf("the feed has %d events, want %d", got, (rounds+1)*n)
	}
}

// Events that could not be brought into the feed are brought there by the next round.
func TestEventsThatWaitForTheFeed(t *testing.T) {
	t.Parallel()
	refused := refusal{byTest: true}
	s := openBare(t, newTable(t), refused.through)
	hold(t, s, "run")
	commit(t, s, signal("run", "event"))
	refused.next(reads, codes.PermissionDenied)
	bigtable.PublishPending(t.Context(), s)
	if refused.calls() == 0 {
		t.Fatal("nothing was refused")
	}
	if n := len(whole(t, s, 0, 10, nil)); n != 0 {
		t.Fatalf("after a round that failed the feed has %d events", n)
	}
	bigtable.PublishPending(t.Context(), s)
	if n := len(whole(t, s, 0, 10, nil)); n != 1 {
		t.Errorf("after the next round the feed has %d events, want 1", n)
	}
}
