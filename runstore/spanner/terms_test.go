package spanner_test

import (
	"testing"
	"time"

	client "cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// TestEndOfAnEarlierGrant checks that a grant has no end where the row has that of an earlier grant:
// a program of version 4 of the schema leaves the column GrantEnded as it is.
func TestEndOfAnEarlierGrant(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p)
	lease := hold(t, s, "run")
	if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lease.Fence()}); err != nil {
		t.Fatal(err)
	}
	terms, err := s.ReadTerms(t.Context(), "run")
	if err != nil || len(terms) != 1 || terms[0].EndedAt.Before(terms[0].GrantedAt) {
		t.Fatalf("the terms: %+v, error %v, want one that has ended", terms, err)
	}
	hash, _ := spanner.KeyOf("run")
	if _, err := raw(t, p).Apply(t.Context(), []*client.Mutation{
		client.Update("Runs", []string{"RunHash", "Run", "GrantEnded"}, []any{hash, []byte("run"), terms[0].GrantedAt.Add(-time.Hour)}),
	}); err != nil {
		t.Fatal(err)
	}
	if terms, err = s.ReadTerms(t.Context(), "run"); err != nil || len(terms) != 1 || !terms[0].EndedAt.IsZero() {
		t.Errorf("with the end of an earlier grant: got %+v, error %v, want one term without an end", terms, err)
	}
}
