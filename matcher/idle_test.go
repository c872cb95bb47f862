package matcher_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// While no reaction is live a replica costs the store one request every TTL/2 to TTL. It finds the first reaction, which
// another process registers, within a TTL; a reaction that it is told of, at once; and then changes within ListInterval.
func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var requests atomic.Int64
		m := w.start("one", func(ctx context.Context, _ string, do func(context.Context) error) error {
			requests.Add(1)
			return do(ctx)
		})
		defer m.stop()
		for range 20 { // the intervals are random
			before := requests.Load()
			time.Sleep(10 * ttl)
			if n := requests.Load() - before; n < 9 || n > 21 {
				t.Fatalf("within ten leases an idle replica has made %d requests, want 10 to 20", n)
			}
			r := w.register(reaction("r", "a", 1))
			time.Sleep(ttl + time.Second)
			if w.holders(r)["one"] != 1 {
				t.Fatal("a reaction that another process has registered is not found within a TTL")
			}
			w.deregister("r")
			time.Sleep(time.Second)
			w.register(r)
			m.Wake()
			time.Sleep(time.Second)
			if w.holders(r)["one"] != 1 {
				t.Fatal("a reaction that this process has registered is not found at once")
			}
			w.deregister("r")
			time.Sleep(time.Second)
			if len(w.holders(r)) > 0 {
				t.Fatal("a reaction that has ended is driven on")
			}
		}
	})
}

// A replica that is killed as soon as it has registered the first reaction is followed within a lease and a half by those
// that knew of none.
func TestTakeoverOfTheFirstReaction(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			p := &process{}
			first, idle := w.start("first", p.around), w.start("idle", nil)
			defer first.stop()
			defer idle.stop()
			time.Sleep(10 * ttl)
			w.enter("a", 1)
			r := w.register(reaction("r", "a", 2))
			if held {
				first.Wake()
				time.Sleep(time.Second / 10)
			}
			p.meet()
			time.Sleep(ttl + ttl/2)
			if n := w.holders(r)["idle"]; n != 2 {
				t.Errorf("held %t: the other replica holds %d shards, want 2", held, n)
			}
			w.await("r", 1)
			w.expectOnce("r", w.runs)
		})
	}
}
