package leasecases

import (
	"testing"

	"github.com/tapestore/tapestore/conformance/harness"
)

// TestEndOfAKilledReplica checks that the end of a replica that the case has killed is no failure,
// however late it is read, and that the end of any other is.
func TestEndOfAKilledReplica(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		gone  int
		fails bool
	}{{0, false}, {2, true}} {
		var found term
		failed, messages := harness.RunPlain(t.Context(), "case", func(p harness.T) {
			c := &children{t: p, lines: make(chan line, 2), ends: map[term]string{}, dead: map[int]bool{0: true}}
			c.lines <- line{test.gone, "gone"}
			c.lines <- line{2, "active 7"}
			found = c.awaitTerm(1, 6)
		})
		if failed != test.fails || !failed && found != (term{2, 7}) {
			t.Errorf("replica %d is gone: failed %t with %q, found %v; want failed %t", test.gone, failed, messages, found, test.fails)
		}
	}
}
