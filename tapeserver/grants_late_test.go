package tapeserver

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// A reply that is handled late neither brings a former grant back nor takes a later one away.
func TestLateRepliesLeaveTheLastGrant(t *testing.T) {
	t.Parallel()
	var g grants
	var all atomic.Int64
	lease := func(token runstore.Token) runstore.Lease {
		return runstore.Lease{Run: "run", Owner: "o", Token: token, Grant: "g"}
	}
	last := func() int64 {
		grant, _ := g.get("run")
		return grant.Token
	}
	g.put(lease(3), &all)
	g.put(lease(2), &all)
	if last() != 3 {
		t.Errorf("token %d after a late grant, want 3", last())
	}
	g.forget("run", 2)
	if last() != 3 {
		t.Errorf("token %d after a late release, want 3", last())
	}
	g.forget("run", 3)
	if last() != 0 || all.Load() != 0 {
		t.Errorf("token %d, %d grants after the release, want none", last(), all.Load())
	}
}

func TestGrantsOfAllConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	var full, other grants
	var all atomic.Int64
	all.Store(maxGrantsInAll - 2)
	for i := range 4 {
		full.put(runstore.Lease{Run: runstore.RunID(fmt.Sprint(i)), Token: 1}, &all)
	}
	other.put(runstore.Lease{Run: "other", Token: 1}, &all)
	if len(full.order) != 2 || len(other.order) != 0 || all.Load() != maxGrantsInAll {
		t.Errorf("%d and %d grants, %d in all; want 2 and 0, and no more than %d", len(full.order), len(other.order), all.Load(), maxGrantsInAll)
	}
	full.close()
	full.put(runstore.Lease{Run: "late", Token: 1}, &all) // by a call that was under way
	if all.Load() != maxGrantsInAll-2 {
		t.Errorf("%d grants in all after a connection closed, want %d", all.Load(), maxGrantsInAll-2)
	}
}
