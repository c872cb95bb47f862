package spanner_test

import (
	"context"
	"errors"
	"testing"
	"time"

	client "cloud.google.com/go/spanner"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// userTables opens a store in a database with a table of a user's.
func userTables(t *testing.T) (*spanner.Store, *client.Client) {
	t.Helper()
	p := newDatabase(t, 0)
	s, c := open(t, p), raw(t, p)
	alter(t, p, `CREATE TABLE Payments (Id INT64 NOT NULL, Payee STRING(20)) PRIMARY KEY (Id)`)
	return s, c
}

// payUnder pays in a fenced transaction. A caller that ignores the error of FenceTx pays all the
// same. fenced is called after FenceTx.
func payUnder(ctx context.Context, s *spanner.Store, c *client.Client, f runstore.Fence, id int, ignore bool, fenced func()) (err, commit error) {
	_, commit = c.ReadWriteTransaction(ctx, func(ctx context.Context, tx *client.ReadWriteTransaction) error {
		if err = s.FenceTx(ctx, tx, f); err != nil && !ignore {
			return err
		}
		fenced()
		return tx.BufferWrite([]*client.Mutation{client.Insert("Payments", []string{"Id", "Payee"}, []any{id, "payee"})})
	})
	return err, commit
}

func wantPayments(t *testing.T, c *client.Client, want int64) {
	t.Helper()
	n := int64(0)
	if err := c.Single().Read(t.Context(), "Payments", client.AllKeys(), []string{"Id"}).Do(func(*client.Row) error { n++; return nil }); err != nil || n != want {
		t.Errorf("%d payments, %v; want %d", n, err, want)
	}
}

// A takeover waits for a transaction under the current grant, whose changes so come before the next
// grant. Afterwards a transaction of the former holder is refused, whether or not it looks.
func TestFencedTransaction(t *testing.T) {
	t.Parallel()
	s, c := userTables(t)
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	fence := created.Lease.Fence()
	granted := make(chan error, 1)
	begun := false
	err, commit := payUnder(t.Context(), s, c, fence, 1, false, func() {
		if begun { // the emulator aborted the first attempt
			return
		}
		begun = true
		go func() {
			_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "run", Preempt: "test", LeaseSpec: runstore.LeaseSpec{Owner: "successor", TTL: time.Minute}})
			granted <- err
		}()
		select {
		case err := <-granted:
			t.Errorf("the lease was granted (%v) while a fenced transaction was open", err)
		case <-time.After(20 * time.Millisecond): // the takeover may be this late; then it proves nothing
		}
	})
	if err := errors.Join(err, commit, <-granted); err != nil {
		t.Fatal(err)
	}
	for _, ignore := range []bool{false, true} {
		var fenced *runstore.FencedError
		err, commit := payUnder(t.Context(), s, c, fence, 2, ignore, func() {})
		if !errors.As(err, &fenced) || fenced.Holder.Owner != "successor" || fenced.Current != 2 || commit == nil {
			t.Errorf("got %v, and %v of the commit; want the successor and its token, and no commit", err, commit)
		}
	}
	for _, test := range []struct {
		fence runstore.Fence
		want  error
	}{{runstore.Fence{}, runstore.ErrInvalid}, {absent(t, s), runstore.ErrNotFound}, {expired(t, s), runstore.ErrLeaseExpired}} {
		if err, commit := payUnder(t.Context(), s, c, test.fence, 2, true, func() {}); !errors.Is(err, test.want) || commit == nil {
			t.Errorf("got %v, and %v of the commit; want %v and no commit", err, commit, test.want)
		}
	}
	wantPayments(t, c, 1)
}

// expired returns the fence of a strict lease that has expired.
func expired(t *testing.T, s *spanner.Store) runstore.Fence {
	t.Helper()
	lease := holdAs(t, s, "expired", runstore.LeaseSpec{Owner: "holder", TTL: runstore.MinTTL, Strict: true})
	past(t, s, lease.ExpiresAt)
	return lease.Fence()
}

// absent returns the fence of a run that was purged.
func absent(t *testing.T, s *spanner.Store) runstore.Fence {
	t.Helper()
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "purged", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	b := runstore.NewBatch("purged", created.Lease.Fence())
	b.Purge = true
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return created.Lease.Fence()
}
