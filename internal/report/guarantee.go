package report

import (
	"cmp"
	"strings"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/protocol"
)

// Title returns the short name of a guarantee, or of another group of cases.
func Title(group string) string { return cmp.Or(conformance.Title(group), protocol.Title(group)) }

// sentences are the guarantees in the short words of the README.
var sentences = map[string]string{
	"I1":  "at most one live grant of a run's lease, on the store clock",
	"I2":  "across release, takeover, purge and re-creation, restarts and, with a raised epoch, restores",
	"I3":  "a write is applied only under the current grant, checked in the same atomic step",
	"I4":  "events, records, index entries and status of a batch apply together or not at all",
	"I5":  "dense seq, immutable events, one order per run",
	"I6":  "reads need no lease, wait for no writer, and see what was acknowledged before them",
	"I7":  "a caller whose clock is wrong neither steals a live lease nor loses its own",
	"I8":  "a batch repeated with its id gets the first result",
	"I9":  "index entries of acknowledged batches are found; stale ones are never returned",
	"I10": "a reader of all runs that resumes from its last position misses nothing; positions stay below 2^53",
	"I11": "after any error but `ErrUnknownOutcome` nothing is stored",
	"I12": "oversized or malformed input is refused before it reaches the engine, with the field and the limit",
	"I13": "a holder that renews for longer than its bound without committing an event or a record is refused",
}

// name returns a guarantee's title without its explanation; empty for a group that is not a
// guarantee.
func name(guarantee string) string {
	name, _, _ := strings.Cut(Title(guarantee), ":")
	return name
}
