package matcher_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
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

// TestUnreadableReactionsAreLogged checks that each reaction whose record is damaged is logged, and again once a minute
// rather than with each list.
func TestUnreadableReactionsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var runs []runstore.RunID
		for _, id := range []string{"r", "s"} {
			run, err := w.tape.OpenShard(t.Context(), w.register(reaction(id, "a", 1)), 0)
			if err != nil {
				t.Fatal(err)
			}
			runs = append(runs, run)
			b := runstore.NewBatch(run, runstore.Unguarded("test"))
			b.Put("reaction", []byte("damaged"), runstore.Place{Index: tape.IndexReactions, At: runstore.After(0)})
			if _, err := w.tape.Store().Commit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		w.register(reaction("all", "a", 1)) // so that lists are frequent
		m := w.start("one", nil)
		defer m.stop()
		time.Sleep(time.Hour)
		for _, run := range runs {
			n := 0
			for line := range strings.Lines(m.log.String()) {
				if strings.Contains(line, "leaves one out") && strings.Contains(line, string(run)) {
					n++
				}
			}
			if n < 50 || n > 61 {
				t.Errorf("%d warnings of %s in an hour, want about one a minute", n, run)
			}
		}
	})
}
