package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// An append is progress by every statement that makes it.
func TestAppendsAreProgress(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	const day = 24 * time.Hour
	var leases []runstore.Lease
	for _, id := range []runstore.RunID{"run", "other"} {
		created, err := s.CreateRun(t.Context(), runstore.RunSpec{
			ID: id, Lease: &runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL, MaxStall: day},
		})
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, created.Lease)
	}
	for _, l := range leases { // then the handle knows that the lease has a bound
		commit(t, s, appending(l, "first"))
	}
	renew := func(l runstore.Lease) error {
		_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL})
		return err
	}
	for what, append := range map[string]func() error{
		"one event": func() error {
			for _, l := range leases {
				commit(t, s, appending(l, "event"))
			}
			return nil
		},
		"several events": func() error {
			for _, l := range leases {
				commit(t, s, appending(l, "one", "two"))
			}
			return nil
		},
		"events of several runs": func() error {
			return postgres.AppendMulti(t.Context(), s, appending(leases[0], "event"), appending(leases[1], "one", "two"))
		},
	} {
		exec(t, conn, `UPDATE tapestore.runs SET progressed = progressed - interval '2 days'`)
		for _, l := range leases {
			if err := renew(l); !errors.Is(err, runstore.ErrNoProgress) {
				t.Errorf("%s: a renewal before: got error %v, want ErrNoProgress", what, err)
			}
		}
		if err := append(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for _, l := range leases {
			if err := renew(l); err != nil {
				t.Errorf("%s: a renewal of %s after: %v", what, l.Run, err)
			}
		}
	}
}
