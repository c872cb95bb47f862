package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Heartbeats, appends, and leases that come and go change no index: their updates
// of a run's row are HOT, so neither the table nor its indexes grow with them.
func TestUpdatesOfRunsAreHot(t *testing.T) {
	t.Parallel()
	// A transaction of any database of the cluster that wrote and stays open keeps
	// old rows from being removed, and other tests have such.
	own := ownServer(t, nil)
	const runs = 4
	rounds := effort.Choose(150, 500)
	if !effort.Full() {
		t.Log("reduced: 150 of 500 rounds")
	}
	for _, tc := range []struct {
		name    string
		updates int // that a round makes
		do      func(s *postgres.Store, l runstore.Lease, round int) (runstore.Lease, error)
	}{
		{"heartbeats", 1, func(s *postgres.Store, l runstore.Lease, _ int) (runstore.Lease, error) {
			renewed, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL})
			return renewed.Lease, err
		}},
		{"appends", 1, func(s *postgres.Store, l runstore.Lease, round int) (runstore.Lease, error) {
			_, err := s.Commit(t.Context(), appending(l, fmt.Sprint(round)))
			return l, err
		}},
		{"commits", 1, func(s *postgres.Store, l runstore.Lease, round int) (runstore.Lease, error) {
			b := appending(l, fmt.Sprint(round))
			b.Put("state", []byte(fmt.Sprint(round)))
			status := runstore.Status(round)
			b.Status = &status
			_, err := s.Commit(t.Context(), b)
			return l, err
		}},
		{"release and acquire", 2, func(s *postgres.Store, l runstore.Lease, _ int) (runstore.Lease, error) {
			if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: l.Fence()}); err != nil {
				return l, err
			}
			granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: l.Run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}})
			return granted.Lease, err
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			address := engines.NewPostgresDatabase(t, own)
			s := open(t, address)
			leases := make([]runstore.Lease, runs)
			for i := range leases {
				leases[i] = hold(t, s, runstore.RunID(fmt.Sprint(i)))
			}
			for round := range rounds {
				for i := range leases {
					var err error
					if leases[i], err = tc.do(s, leases[i], round); err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
				}
			}
			if err := s.Close(); err != nil { // its sessions hand in their figures when they end
				t.Fatal(err)
			}
			conn := connect(t, address)
			all := func() int {
				return get[int](t, conn, `SELECT n_tup_upd::int FROM pg_stat_user_tables WHERE schemaname = 'tapestore' AND relname = 'runs'`)
			}
			want := runs * rounds * tc.updates
			await(t, "the statistics", func() bool { return all() >= want })
			hot := get[int](t, conn, `SELECT n_tup_hot_upd::int FROM pg_stat_user_tables WHERE schemaname = 'tapestore' AND relname = 'runs'`)
			// An update is not HOT when its page is full of old rows that a transaction, of the
			// server's own too, may still see: on a busy machine some tens of updates in a row. With a
			// column in an index none is.
			if updates := all(); 2*hot < updates {
				t.Errorf("%d of %d updates were HOT, want at least half", hot, updates)
			} else {
				t.Logf("%d of %d", hot, updates)
			}
			if blocks := get[int](t, conn, `SELECT (pg_relation_size('tapestore.runs') / 8192)::int`); blocks > 32 {
				t.Errorf("%d runs take %d blocks after all that", runs, blocks)
			}
		})
	}
}
