package bigtable

import (
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// The end of a grant counts for no other: a program that does not keep ends has ended that one.
func TestEndOfAnotherGrant(t *testing.T) {
	t.Parallel()
	stored := []byte(be64(7) + be64(1e15))
	if got := endOf(7, stored); !got.Equal(runstore.FromMicros(1e15)) {
		t.Errorf("got %v", got)
	}
	for _, other := range []struct {
		token runstore.Token
		cell  []byte
	}{{8, stored}, {7, nil}, {7, stored[:15]}, {0, nil}} {
		if got := endOf(other.token, other.cell); !got.IsZero() {
			t.Errorf("the end of token %v by %x: got %v", other.token, other.cell, got)
		}
	}
}
