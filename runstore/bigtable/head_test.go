package bigtable_test

import (
	"math"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore/bigtable"
)

// A lease ends at the expiry that the grant returned, unless Bigtable's own stamp of the grant says
// that this was wrong by more than a request takes, or early by more than keepers allow for.
func TestExpiry(t *testing.T) {
	t.Parallel()
	granted := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name    string
		ttl     time.Duration
		told    time.Duration // when the holder was told that it ends, after the grant
		stamped time.Duration // when Bigtable stamped the grant
		unknown bool          // the stamp was not read
		ends    time.Duration
		strict  bool
	}{
		{"as told", time.Minute, time.Minute, 0, false, time.Minute, false},
		{"a request later", time.Minute, time.Minute, 300 * time.Millisecond, false, time.Minute, false},
		{"at the slack", time.Minute, time.Minute, time.Second, false, time.Minute, false},
		{"a holder that was suspended", time.Minute, time.Minute, 10 * time.Second, false, 70 * time.Second, false},
		{"a holder that took the clock to be ahead", time.Minute, time.Minute, -10 * time.Second, false, 50 * time.Second, false},
		{"without a stamp", time.Minute, time.Minute, 0, true, time.Minute, false},
		{"a short one, a request later", 100 * time.Millisecond, 100 * time.Millisecond, 6 * time.Millisecond, false, 100 * time.Millisecond, false},
		{"a short one, a slow request later", 2 * time.Second, 2 * time.Second, 200 * time.Millisecond, false, 2200 * time.Millisecond, false},
		{"a short strict one, a slow request later", 2 * time.Second, 2 * time.Second, 200 * time.Millisecond, false, 2 * time.Second, true},
		{"a short one of a holder that took the clock to be ahead", 2 * time.Second, 2 * time.Second, -400 * time.Millisecond, false, 2 * time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			beat := granted.Add(tc.stamped)
			if tc.unknown {
				beat = time.Time{}
			}
			if got := bigtable.Expiry(granted.Add(tc.told), beat, tc.ttl, tc.strict); !got.Equal(granted.Add(tc.ends)) {
				t.Errorf("it ends %v after the grant, want %v", got.Sub(granted), tc.ends)
			}
		})
	}
	if got := bigtable.Expiry(time.Time{}, granted, 0, false); !got.IsZero() {
		t.Errorf("a lease that nobody has ends at %v", got)
	}
}

// A head shows which writes made its last revisions, which did not, and that it does not know.
func TestHeadKnowsWhoMadeIt(t *testing.T) {
	t.Parallel()
	var nonces []uint64
	for n := range 3 * bigtable.MaxNonces {
		nonces = append(nonces, uint64(1000+n))
		made := bigtable.Revisions(nonces...)
		for i, nonce := range nonces {
			rev := int64(i + 1)
			recent := len(nonces)-i <= bigtable.MaxNonces
			if by, known := made(rev, nonce); known != recent || by != recent {
				t.Fatalf("of %d revisions, revision %d: by its maker %v, known %v", len(nonces), rev, by, known)
			}
			if by, known := made(rev, nonce+500); known != recent || by {
				t.Fatalf("of %d revisions, revision %d: by another %v, known %v", len(nonces), rev, by, known)
			}
		}
		if by, known := made(int64(len(nonces)+1), 1); by || !known {
			t.Fatalf("a revision to come: made %v, known %v", by, known)
		}
	}
}

// TestNoncesCountTheSame checks that what a record counts does not depend on the digits of the nonces in its cell.
// Otherwise a repeat could be refused because the row is full, and an earlier copy of the same request, from the same
// revision, could be applied after that.
func TestNoncesCountTheSame(t *testing.T) {
	t.Parallel()
	for _, inPack := range []bool{false, true} {
		want := bigtable.RecordSize(math.MaxUint64, inPack)
		for _, nonce := range []uint64{0, 9, 10, 1 << 62, 9_999_999_999_999_999_999, 10_000_000_000_000_000_000} {
			if got := bigtable.RecordSize(nonce, inPack); got != want {
				t.Errorf("a record with the nonce %d, in a pack: %t, counts %d bytes, want %d", nonce, inPack, got, want)
			}
		}
	}
}
