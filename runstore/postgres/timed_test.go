package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// TestTimedLeases checks that a handle remembers, from the first append under a lease, whether the
// time matters to it.
func TestTimedLeases(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
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
		if postgres.Timed(s, b) {
			t.Errorf("%+v: timed before the first append", tc.spec)
		}
		commit(t, s, b)
		if timed := postgres.Timed(s, b); timed != tc.want {
			t.Errorf("%+v: timed: %v, want %v", tc.spec, timed, tc.want)
		}
		commit(t, s, b)
	}
}
