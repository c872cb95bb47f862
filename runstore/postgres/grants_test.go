package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// TestRememberedGrants checks that the database keeps exactly as many former grants of a
// run as the contract promises: the number stands in SQL twice more, in tapestore.write, which
// preempts, and in the statement that takes a free lease.
func TestRememberedGrants(t *testing.T) {
	t.Parallel()
	for _, preempt := range []string{"test", ""} {
		t.Run(fmt.Sprintf("preempt=%t", preempt != ""), func(t *testing.T) { rememberedGrants(t, preempt) })
	}
}

func rememberedGrants(t *testing.T, preempt string) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	hold(t, s, "run")
	acquire := func(grant string) error {
		if preempt == "" {
			exec(t, conn, `UPDATE tapestore.runs SET expires = granted`)
		}
		_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "owner", TTL: time.Minute, Grant: runstore.GrantID(grant)}, Preempt: preempt,
		})
		return err
	}
	last := runstore.RememberedGrants + 3
	for i := range last + 1 {
		if err := acquire(fmt.Sprint("grant ", i)); err != nil {
			t.Fatalf("grant %d: %v", i, err)
		}
	}
	if got, want := get[int](t, conn, `SELECT cardinality(former) FROM tapestore.grants`), runstore.RememberedGrants; got != want {
		t.Errorf("after %d grants %d former ones are kept, want %d", last+2, got, want)
	}
	oldest := last - runstore.RememberedGrants
	if err := acquire(fmt.Sprint("grant ", oldest)); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("the oldest grant that is kept, %d: got error %v, want ErrFenced", oldest, err)
	}
	if err := acquire(fmt.Sprint("grant ", oldest-1)); err != nil {
		t.Errorf("a grant that is not kept, %d: got error %v, want a new grant", oldest-1, err)
	}
}
