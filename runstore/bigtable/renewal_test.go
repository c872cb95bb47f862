package bigtable_test

import (
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// A renewal has Bigtable stamp it anew. One that arrives late, when its grant would be
// over, counts from its own time: for contenders the lease lasts as long as its holder
// was told.
func TestLateRenewalCountsFromItsOwnTime(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other := openBare(t, table), openBare(t, table)
	lease := expired(t, s, "run")
	granted := stamp(t, table)
	renewed, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MinTTL})
	if err != nil {
		t.Fatal(err)
	}
	if again := stamp(t, table); !again.After(granted) {
		t.Errorf("Bigtable's stamp is %v after the renewal, and was %v before it", again, granted)
	}
	run, err := other.GetRun(t.Context(), "run")
	if err != nil {
		t.Fatal(err)
	}
	if run.Token != lease.Token || run.ExpiresAt.Before(renewed.ExpiresAt) {
		t.Errorf("other handles see token %d until %v, want token %d until %v or later", run.Token, run.ExpiresAt, lease.Token, renewed.ExpiresAt)
	}
}

// TestShortRenewalMovesNoExpiry checks that a renewal that is too short to move the expiry moves it for no handle: not
// by the timestamp that Bigtable would give to another beat either.
func TestShortRenewalMovesNoExpiry(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other := openBare(t, table), openBare(t, table)
	hold(t, s, "run")
	const ttl = 20 * time.Second
	granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "thief", TTL: ttl}, Preempt: "test"})
	if err != nil {
		t.Fatal(err)
	}
	isPast(t, other, granted.Lease.ExpiresAt.Add(2*time.Second-ttl))
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: granted.Lease.Fence(), TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	run, err := other.GetRun(t.Context(), "run")
	if err != nil || !run.ExpiresAt.Equal(granted.Lease.ExpiresAt) {
		t.Errorf("another handle sees the expiry %v later than the grant returned, %v", run.ExpiresAt.Sub(granted.Lease.ExpiresAt), err)
	}
}
