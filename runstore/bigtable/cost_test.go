package bigtable_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
)

// One commit every 200 ms costs two requests, the commit and a page of the feed's log. What else
// happens in the background is for many commits.
func TestRequestsOfASlowWriter(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := open(t, table)
	lease := hold(t, s, "run")
	commit(t, s, appending(lease, "first"))
	feed(t, s, 0, 1)
	commits := 50
	if effort.Full() {
		commits = 300
	}
	l := keepLedger(t, table)
	var mu sync.Mutex
	kinds := map[string]int{} // by method, and the first byte of the row where there is one
	watch := server(t).Watch(func(c bigtableemulator.Call) bool {
		if c.Table == table.String() && !isServed(c) {
			mu.Lock()
			kinds[fmt.Sprintf("%s %.1s", c.Method, c.Row)]++
			mu.Unlock()
		}
		return false
	})
	t.Cleanup(watch.Stop)
	began := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := range commits {
		<-tick.C
		commit(t, s, appending(lease, fmt.Sprint(i)))
	}
	mu.Lock()
	defer mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	each := float64(len(l.all)+l.rest) / float64(commits)
	t.Logf("%d commits: %.2f requests each, %.2f of them in the background: %v", commits, each, float64(l.rest)/float64(commits), kinds)
	// The commit, its segment, and what is done every few seconds: a machine that takes longer for
	// the commits makes more of that.
	most := 2*commits + int(time.Since(began)/(200*time.Millisecond))
	if n := len(l.all) + l.rest; n > most {
		t.Errorf("%d requests for %d commits in %v, want %d at most", n, commits, time.Since(began), most)
	}
}
