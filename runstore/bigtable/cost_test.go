package bigtable_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
)

// One commit every 200 ms costs at most 2.5 requests, with all that happens in the background: the
// commit, and a segment of the feed's log. The rest is for many commits.
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
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := range commits {
		<-tick.C
		commit(t, s, appending(lease, fmt.Sprint(i)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	each := float64(len(l.all)+l.rest) / float64(commits)
	t.Logf("%d commits: %.2f requests each, %.2f of them in the background", commits, each, float64(l.rest)/float64(commits))
	if each > 2.5 {
		t.Errorf("%.2f requests for each of %d commits, want 2.5", each, commits)
	}
}
