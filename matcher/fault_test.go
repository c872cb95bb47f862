package matcher_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// TestFaultsOfPredicatesAreLogged checks that the first entry on which the predicate of a reaction fails is
// logged, once, and that a definition that matches nothing is.
func TestFaultsOfPredicatesAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		fails, all := reaction("fails", "a", 2), reaction("all", "a", 1)
		fails.Predicate = `payload.missing == 1`
		w.register(fails)
		w.register(all)
		malformed := reaction("malformed", "a", 1)
		malformed.Predicate = `payload.missing ==`
		w.register(malformed)
		m := w.start("one", nil)
		defer m.stop()
		warnings := func(of ...string) (n int) {
			for line := range strings.Lines(m.log.String()) {
				if strings.Contains(line, "level=WARN") && !slices.ContainsFunc(of, func(text string) bool { return !strings.Contains(line, text) }) {
					n++
				}
			}
			return n
		}
		const fault = `error="the evaluation failed"`
		w.enter("a", 20)
		w.until("a fault is logged", func() bool { return warnings("reaction=fails", fault) > 0 })
		w.enter("a", 20)
		w.await("all", 40)
		synctest.Wait()
		if n := warnings("reaction=fails"); n != 1 {
			t.Errorf("%d warnings of faults, want 1:\n%s", n, m.log)
		}
		if n := warnings("reaction=malformed", "matches nothing"); n != 1 {
			t.Errorf("%d warnings of the malformed definition, want 1:\n%s", n, m.log)
		}
		fails.Predicate = `payload.absent == 1`
		w.register(fails)
		w.until("the new definition is in use", func() bool {
			w.enter("a", 1)
			return warnings("reaction=fails", fault) > 1
		})
	})
}
