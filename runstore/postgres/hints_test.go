package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// TestHints checks that a handle learns from the first append under a lease that the time matters
// to it, and that of results it is reminded once, after every 128.
func TestHints(t *testing.T) {
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
		if timed, _ := postgres.HintsOf(s, b); timed {
			t.Errorf("%+v: timed before the first append", tc.spec)
		}
		commit(t, s, b)
		if timed, _ := postgres.HintsOf(s, b); timed != tc.want {
			t.Errorf("%+v: timed: %v, want %v", tc.spec, timed, tc.want)
		}
		commit(t, s, b)
	}
	lease := hold(t, s, "run")
	for i := range 129 {
		b := appending(lease, "event")
		b.ID = runstore.BatchID(fmt.Sprint(i))
		if i < 128 {
			commit(t, s, b)
		} else if _, forgets := postgres.HintsOf(s, b); !forgets {
			t.Error("after 128 results there is no hint to forget the oldest")
		} else if _, again := postgres.HintsOf(s, b); again {
			t.Error("the hint to forget is given twice")
		}
	}
}
