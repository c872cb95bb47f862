package bigtable

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// ColdKey is the key of a cold record's row.
func ColdKey(id runstore.RunID, generation int64, key runstore.RecordKey, rev int64, nonce uint64) string {
	return coldKey(id, generation, key, coldMove{rev, nonce})
}

// ScanPage is how many rows a scan reads or deletes with one request.
const ScanPage = scanPage

// DeleteOneByOne has a handle without workers delete one row with each request.
func DeleteOneByOne(s *Store) { s.engine.garbage.perRequest = 1 }

// Retire retires the marks that scans of a handle without workers have queued.
func Retire(ctx context.Context, s *Store) { s.engine.upkeep.retirePending(byTest(ctx)) }

// LoseClaims has a handle without workers know that it has no claims.
func LoseClaims(s *Store) { s.engine.upkeep.claimed.Store(0) }

// SetMaxMoves changes how many moves the list of a run has before a handle rewrites its cold rows.
func SetMaxMoves(s *Store, n int64) { s.engine.moveLists.maxMoves = n }

// MoveAsking moves records out of a run's row, and reports whether the cold rows should be rewritten.
func MoveAsking(ctx context.Context, s *Store, id runstore.RunID) (rewrites bool, err error) {
	return s.engine.withLock(byTest(ctx), id, func(ctx context.Context, r *cachedRun, t *outcome.Backoff) (bool, error) {
		return s.engine.moveRecords(ctx, r, t)
	})
}
