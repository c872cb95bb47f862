package telemetry

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tapestore/tapestore/runstore"
)

func TestExpiriesAreBounded(t *testing.T) {
	t.Parallel()
	var x expiries
	at := time.Unix(1e9, 0)
	for i := range 10 * generation {
		x.swap(runstore.RunID(fmt.Sprint(i)), expiry{1, "a", at})
		if n := len(x.young) + len(x.old); n > 2*generation {
			t.Fatalf("%d leases are remembered, want at most %d", n, 2*generation)
		}
	}
	if _, known := x.swap("0", expiry{1, "a", at}); known {
		t.Error("the lease seen longest ago is remembered")
	}
	if _, known := x.swap(runstore.RunID(fmt.Sprint(9*generation+1)), expiry{1, "a", at}); !known {
		t.Error("a lease seen lately is forgotten")
	}
}

func TestShownTextsAreShortAndValid(t *testing.T) {
	t.Parallel()
	if got := shown(strings.Repeat("é", maxShown)); len(got) != maxShown {
		t.Errorf("%d bytes are shown, want %d", len(got), maxShown)
	}
	if got := shown("x" + strings.Repeat("é", maxShown)); !utf8.ValidString(got) || len(got) > maxShown+len("\uFFFD") {
		t.Errorf("%q is shown of a text that is cut within a letter", got)
	}
}

// Replies overtake each other.
func TestExpiriesKeepTheLatest(t *testing.T) {
	t.Parallel()
	var x expiries
	at := time.Unix(1e9, 0)
	for _, e := range []expiry{{2, "b", at}, {1, "a", at.Add(time.Hour)}, {2, "b", at.Add(time.Minute)}, {2, "b", at.Add(time.Second)}} {
		x.swap("r", e)
	}
	if last, _ := x.swap("r", expiry{3, "c", at}); last != (expiry{2, "b", at.Add(time.Minute)}) {
		t.Errorf("the last expiry is %+v, want that of the renewed lease under token 2", last)
	}
}
