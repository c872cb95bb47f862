package matcher_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// One replica handles each entry once, those from before the registration too, and those of other shards.
func TestMatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.enter("a", 300)
		w.enter("b", 3)
		r := w.register(reaction("r", "a", 3))
		m := w.start("one", nil)
		defer m.stop()
		w.await("r", 300)
		w.expectOnce("r", w.runs[:300])
		w.enter("a", 1)
		w.await("r", 301)
		w.expectOnce("r", append(w.runs[:300:300], w.runs[303]))
		if held := w.holders(r); held["one"] != 3 {
			t.Errorf("the shards are held by %v, want all by one", held)
		}
		if strings.Contains(m.log.String(), "level=WARN") {
			t.Errorf("the log has warnings:\n%s", m.log)
		}
	})
}

// An entry has its task within the second in which it should.
func TestLatency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m := w.start("one", nil)
		defer m.stop()
		for i := range 5 {
			w.register(reaction("r"+strings.Repeat("'", i), "a", 1))
			m.Wake() // else the first one is found within a TTL
			w.enter("a", 1)
			began := time.Now()
			w.await("r"+strings.Repeat("'", i), len(w.runs))
			if took := time.Since(began); took > time.Second {
				t.Errorf("the task of a new reaction is there after %v", took)
			}
			w.enter("a", 1)
			began = time.Now()
			w.await("r", len(w.runs))
			if took := time.Since(began); took > time.Second/2 {
				t.Errorf("the task of a known reaction is there after %v", took)
			}
		}
	})
}

// A replica that is shut down releases its shards, and Run returns when it has.
func TestDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.register(reaction("r", "a", 8))
		m := w.start("one", nil)
		w.awaitHeld(r, "one", 8)
		m.stop()
		if held := w.holders(r); len(held) > 0 {
			t.Errorf("after the end of Run shards are held: %v", held)
		}
		began := time.Now()
		next := w.start("two", nil)
		defer next.stop()
		w.awaitHeld(r, "two", 8)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the next replica took over after %v", took)
		}
	})
}
