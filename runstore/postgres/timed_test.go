package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// TestTimedLeases checks that a handle knows whether the time matters to a lease: from its own grant, or from the
// first append under a lease that another handle took.
func TestTimedLeases(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, other := open(t, address), open(t, address)
	for i, tc := range []struct {
		spec runstore.LeaseSpec
		want bool
	}{
		{runstore.LeaseSpec{}, false},
		{runstore.LeaseSpec{Strict: true}, true},
		{runstore.LeaseSpec{MaxStall: time.Minute}, true},
	} {
		tc.spec.Owner, tc.spec.TTL = "holder", time.Minute
		created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: runstore.RunID(fmt.Sprint(i)), Lease: &tc.spec})
		if err != nil {
			t.Fatal(err)
		}
		b := appending(created.Lease, "event")
		if timed := postgres.Timed(s, b); timed != tc.want {
			t.Errorf("%+v: timed by the grant: %v, want %v", tc.spec, timed, tc.want)
		}
		if postgres.Timed(other, b) {
			t.Errorf("%+v: timed for another handle before its first append", tc.spec)
		}
		commit(t, other, b)
		if timed := postgres.Timed(other, b); timed != tc.want {
			t.Errorf("%+v: timed by the first append: %v, want %v", tc.spec, timed, tc.want)
		}
		commit(t, s, b)
		commit(t, other, b)
	}
}
