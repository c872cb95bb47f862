package tapeserver

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/runstore"
)

// A reply that is handled late neither brings a former grant back nor takes a later one away.
func TestLateRepliesLeaveTheLastGrant(t *testing.T) {
	t.Parallel()
	var g grants
	pool := newGrantPool()
	lease := func(token runstore.Token) runstore.Lease {
		return runstore.Lease{Run: "run", Owner: "o", Token: token, Grant: "g"}
	}
	last := func() int64 {
		grant, _ := g.get("run")
		return grant.Token
	}
	g.put(lease(3), "client", pool)
	g.put(lease(2), "client", pool)
	if last() != 3 {
		t.Errorf("token %d after a late grant, want 3", last())
	}
	g.forget("run", 2)
	if last() != 3 {
		t.Errorf("token %d after a late release, want 3", last())
	}
	g.forget("run", 3)
	if last() != 0 || pool.total != 0 {
		t.Errorf("token %d, %d grants after the release, want none", last(), pool.total)
	}
}

// TestGrantsAreCountedByClient checks the room for grants: the bound of all connections together, and the
// share of one client.
func TestGrantsAreCountedByClient(t *testing.T) {
	t.Parallel()
	var one, other grants
	pool := newGrantPool()
	share := clientlimit.Share(maxGrantsInAll)
	pool.add("a", share-1)
	for i, limit := range []string{"", "GrantsPerClient"} {
		if got := limitIn(one.room("a", pool)); got != limit {
			t.Errorf("%d grants above the share: limit %q, want %q", i, got, limit)
		}
		one.put(runstore.Lease{Run: runstore.RunID(fmt.Sprint(i)), Token: 1}, "a", pool) // the second by a call that was under way
	}
	if err := other.room("b", pool); err != nil {
		t.Errorf("another client: %v", err)
	}
	pool.add("b", maxGrantsInAll-share-1)
	if got := limitIn(other.room("b", pool)); got != "Grants" {
		t.Errorf("another client without room: limit %q, want Grants", got)
	}
	one.close()
	one.put(runstore.Lease{Run: "late", Token: 1}, "a", pool) // by a call that was under way
	if err := one.room("a", pool); err != nil || pool.total != maxGrantsInAll-2 {
		t.Errorf("%d grants in all after a connection closed, room: %v; want %d", pool.total, err, maxGrantsInAll-2)
	}
	pool.add("a", 1-share)
	if n, ok := pool.byClient["a"]; ok {
		t.Errorf("%d grants of a client without any, want no entry", n)
	}
}

// limitIn returns the limit that a status names; "" if it names none.
func limitIn(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetMetadata()["limit"]
		}
	}
	return ""
}

// TestAllGrantsAreCheckedInTurn checks that the runs of all grants are read before one is read again.
func TestAllGrantsAreCheckedInTurn(t *testing.T) {
	t.Parallel()
	var g grants
	pool := newGrantPool()
	for _, run := range []runstore.RunID{"a", "b", "c"} {
		g.put(runstore.Lease{Run: run, Token: 1}, "client", pool)
	}
	var got []runstore.RunID
	for range 2 {
		for _, grant := range g.check(2) {
			got = append(got, grant.Run)
		}
	}
	g.forget("c", 1)
	for _, grant := range g.check(4) {
		got = append(got, grant.Run)
	}
	if want := []runstore.RunID{"a", "b", "c", "a", "b", "a"}; !slices.Equal(got, want) {
		t.Errorf("checked %q, want %q", got, want)
	}
}
