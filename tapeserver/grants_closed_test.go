package tapeserver

import (
	"log/slog"
	"net"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// TestAClosedConnectionHasNoGrants checks that the grants of a connection do not count any longer once it is
// closed, and that a call which was in flight then adds none.
func TestAClosedConnectionHasNoGrants(t *testing.T) {
	t.Parallel()
	lis := newListener(nil, "test", Limits{}.withDefaults(), slog.New(slog.DiscardHandler))
	server, client := net.Pipe()
	defer func() { _ = client.Close() }()
	c := lis.add(server)
	if c == nil {
		t.Fatal("the listener refuses its first connection")
	}
	pool := newGrantPool()
	for i, run := range []runstore.RunID{"a", "b"} {
		c.grants.put(runstore.Lease{Run: run, Token: 1}, "client", pool)
		if pool.total != i+1 {
			t.Fatalf("%d grants, want %d", pool.total, i+1)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c.grants.put(runstore.Lease{Run: "late", Token: 1}, "client", pool)
	if _, ok := c.grants.get("a"); ok || pool.total != 0 {
		t.Errorf("%d grants after the connection closed, the first among them: %v; want none", pool.total, ok)
	}
}
