package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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
