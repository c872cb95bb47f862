package bigtable_test

import (
	"testing"

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
