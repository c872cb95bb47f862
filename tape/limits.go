package tape

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/tapestore/tapestore/runstore"
)

// The limits of texts, in bytes. They are chosen so that every answer, with everything else in its
// record, fits into 4 MiB, the largest message that gRPC clients accept by default. No limit
// depends on what is stored already, so an effect that was begun can always be completed and a run
// can always be ended.
const (
	// MaxRequest is the largest request of an effect.
	MaxRequest = 2_000_000
	// MaxOutcome is the largest sum of an effect's response and error.
	MaxOutcome = 2_000_000
	// MaxEffectNames is the largest journal entry that begins an effect: a JSON text
	// of the effect's tool, key, business key, connector and scope.
	MaxEffectNames = 64 << 10
	// MaxDecision is the largest decision as stored: its texts, the model and the
	// policy version as JSON.
	MaxDecision = 4_000_000
	// MaxRunNames is the largest summary of a new run as stored: a JSON text of its
	// key and identity, scopes and labels included.
	MaxRunNames = 256 << 10
	// MaxDetail is the largest detail of a run's end.
	MaxDetail = 2_000_000
)

// maxAnswer is the maximal size of a list's answer: 4 MiB, as above.
const maxAnswer = 4 << 20

// errUnanswerable: the value exceeds an answer. Only a program with other limits can have stored
// it.
var errUnanswerable = fmt.Errorf("it does not fit into an answer of %d bytes", maxAnswer)

// field is one text of a request, with its name on the wire.
type field struct {
	name string
	text string
}

// checkText returns an error for text that is not UTF-8: it could be stored but not returned,
// because the texts of the wire and of the journal are UTF-8.
func checkText(fields ...field) error {
	for _, f := range fields {
		if !utf8.ValidString(f.text) {
			return &runstore.InputError{Kind: runstore.ErrInvalid, Field: f.name, Problem: "is not valid UTF-8"}
		}
	}
	return nil
}

// checkName returns an error for an empty or overlong name.
func checkName(name, text string, limit int) error {
	if text == "" {
		return &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: name,
			Problem: fmt.Sprintf("is empty, the limits are 1 and %d bytes", limit),
		}
	}
	return checkLength(name, text, limit)
}

func checkLength(name, text string, limit int) error {
	if len(text) > limit {
		return &runstore.InputError{
			Kind: runstore.ErrTooLarge, Field: name,
			Problem: fmt.Sprintf("%d bytes, the limit is %d", len(text), limit),
		}
	}
	return nil
}

func checkRun(id runstore.RunID) error {
	return checkName("run_id", string(id), runstore.MaxRunID)
}

// checkSize returns an error if size exceeds limit. The error names the largest of the fields that
// make up the value.
func checkSize(what string, size, limit int, fields ...field) error {
	if size <= limit {
		return nil
	}
	largest := field{name: what}
	for _, f := range fields {
		if len(f.text) > len(largest.text) {
			largest = f
		}
	}
	return &runstore.InputError{
		Kind: runstore.ErrTooLarge, Field: largest.name,
		Problem: fmt.Sprintf("%d bytes make %s of %d bytes, the limit is %d", len(largest.text), what, size, limit),
	}
}

// defaultTTL is the TTL of a lease if the caller requests none.
const defaultTTL = 120 * time.Second

// leaseTTL returns the TTL that is granted for a requested one. A TTL above the maximum is reduced
// to it: the caller sees the expiry in the grant, and heartbeats. A TTL below the minimum, which is
// the unit of time on the wire, is raised to it.
func leaseTTL(ttl time.Duration) time.Duration {
	if ttl <= 0 {
		return defaultTTL
	}
	return min(max(ttl, runstore.MinTTL), runstore.MaxTTL)
}
