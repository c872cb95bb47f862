package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
)

// BenchmarkLease is one client that takes a free lease and releases it: of a run in the index of
// runnable runs, which moves twice in it, of a run that is in no index, and the same by hand,
// by a row lock, a read and an update in a transaction each.
func BenchmarkLease(b *testing.B) {
	r := newRig(b)
	hand := r.runs(b, 1)[0]
	for _, spec := range []runstore.RunSpec{{ID: "indexed", Runnable: runstore.After(0)}, {ID: "apart"}} {
		if _, err := r.store.CreateRun(b.Context(), spec); err != nil {
			b.Fatal(err)
		}
	}
	cycle := func(id runstore.RunID) func(int) error {
		return func(int) error {
			lease, err := r.store.AcquireLease(b.Context(), runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "bench", TTL: time.Minute}})
			if err == nil {
				_, err = r.store.ReleaseLease(b.Context(), runstore.ReleaseRequest{Fence: lease.Fence()})
			}
			return err
		}
	}
	swap := func(ctx context.Context, owner *string) error {
		return pgx.BeginFunc(ctx, r.raw, func(tx pgx.Tx) error {
			var token int64
			if err := tx.QueryRow(ctx, `SELECT token FROM hand_runs WHERE id = $1 FOR UPDATE`, []byte(hand.Run)).Scan(&token); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE hand_runs SET owner = $2, token = $3, expires = clock_timestamp() + interval '1 minute' WHERE id = $1`,
				[]byte(hand.Run), owner, token+1)
			return err
		})
	}
	owner := "bench"
	compare(b, 1, side{"indexed", cycle("indexed")}, side{"apart", cycle("apart")}, side{"row-lock", func(int) error {
		if err := swap(b.Context(), &owner); err != nil {
			return err
		}
		return swap(b.Context(), nil)
	}})
}

// BenchmarkScanLeases is a page of 20 runnable runs, of a store with 100 live leases beside them and of
// one with 100,000, in turn.
func BenchmarkScanLeases(b *testing.B) {
	server, err := postgresemulator.Start(b.Context(), nil)
	emulators.Require(b, err)
	b.Cleanup(func() { _ = server.Close() })
	scan := func(leases int) func(int) error {
		db, err := server.NewDatabase(b.Context(), "")
		if err != nil {
			b.Fatal(err)
		}
		s, conn := open(b, db.URL), connect(b, db.URL)
		for i := range dueNow.Limit {
			if _, err := s.CreateRun(b.Context(), runstore.RunSpec{ID: runstore.RunID(fmt.Sprint(i)), Runnable: runstore.After(0)}); err != nil {
				b.Fatal(err)
			}
		}
		exec(b, conn, fillLeased, leases, time.Now().Add(time.Hour))
		exec(b, conn, "VACUUM ANALYZE")
		return func(int) error {
			found, err := s.ScanIndex(b.Context(), dueNow)
			if err == nil && len(found) != dueNow.Limit {
				err = fmt.Errorf("%d entries", len(found))
			}
			return err
		}
	}
	compare(b, 1, side{"at-100000", scan(100_000)}, side{"at-100", scan(100)})
}
