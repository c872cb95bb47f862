package bigtable_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// The terms, the former grants and the end of the last grant arrive from a history that the store has lost, for a
// run that had been leased so many times. They are not the run's.
func TestLateTermsAreNotTheRuns(t *testing.T) {
	t.Parallel()
	for grants := range 4 {
		for _, created := range []string{"before", "after"} {
			t.Run(fmt.Sprintf("%d grants, created %s the failover", grants, created), func(t *testing.T) {
				t.Parallel()
				lateTerms(t, grants, created == "before")
			})
		}
	}
}

func lateTerms(t *testing.T, grants int, created bool) {
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	create := func(s *bigtable.Store) {
		t.Helper()
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
			t.Fatal(err)
		}
	}
	grant := func(s *bigtable.Store, id string, releases bool) {
		t.Helper()
		got, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(id), TTL: time.Minute, Grant: runstore.GrantID(id)},
		})
		if err == nil && releases {
			_, err = s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: got.Lease.Fence()})
		}
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	terms := func(s *bigtable.Store) []runstore.Term {
		t.Helper()
		found, err := s.ReadTerms(t.Context(), "run")
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	survived := snapshot(t, tbl)
	create(old)
	if created {
		for i := range grants {
			grant(old, fmt.Sprint("common ", i), i < grants-1) // the raise ends the last
		}
		survived = snapshot(t, tbl)
		if grants > 0 {
			lease := takeOver(t, old, "run")
			if _, err := old.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 3 {
		grant(old, fmt.Sprint("lost ", i), true)
	}
	late := snapshot(t, tbl)
	survived.rollBack(t, tbl)
	s := openBare(t, table)
	if _, err := s.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	s = openBare(t, table)
	if !created {
		create(s)
		for i := range grants {
			grant(s, fmt.Sprint("common ", i), true)
		}
	}
	before := terms(s)
	if len(before) != grants {
		t.Fatalf("got %d terms, want %d: %+v", len(before), grants, before)
	}
	for _, term := range before {
		if term.EndedAt.IsZero() {
			t.Errorf("the term of %q has no end", term.Owner)
		}
	}
	if n := late.put(t, tbl, func(k cellKey) bool { return k.row[0] == 'r' }); n == 0 {
		t.Fatal("nothing arrives late")
	}
	if after := terms(s); !reflect.DeepEqual(after, before) {
		t.Errorf("the terms are\n%+v\nafter late cells, and were\n%+v", after, before)
	}
	s = openBare(t, table)
	grant(s, "lost 1", true) // which the history that goes on does not have
	if after := terms(s); len(after) != grants+1 {
		t.Errorf("got %d terms, want %d: %+v", len(after), grants+1, after)
	}
}

// A run is created whose row has cells of the history that the store has lost, and no head yet. They are not the
// run's.
func TestCreationIgnoresLateTerms(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	survived := snapshot(t, tbl)
	hold(t, old, "run")
	takeOver(t, old, "run")
	late := snapshot(t, tbl)
	survived.rollBack(t, tbl)
	s := openBare(t, table)
	if _, err := s.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	if n := late.put(t, tbl, func(k cellKey) bool { return k.row[0] == 'r' && k.column[0] == 'x' }); n == 0 {
		t.Fatal("nothing arrives late")
	}
	hold(t, openBare(t, table), "run") // under an id of the lost history
	if terms, err := s.ReadTerms(t.Context(), "run"); err != nil || len(terms) != 1 {
		t.Errorf("got the terms %+v, %v, want the present one", terms, err)
	}
}
