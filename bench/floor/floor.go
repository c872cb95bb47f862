// Package floor holds the hand-written sides of the commit benchmark: for each engine the best
// statement that keeps the guarantees of a fenced commit, and a bare insert of the same payload,
// through the same client as the store.
//
// The statement of Commit keeps these guarantees, on every engine:
//
//   - It is applied only under the run's token and grant id, which are checked in the same atomic
//     step.
//   - The run's events are numbered without gaps, starting after the run's last seq.
//   - Each event has the time of the commit, by the store's clock, and the token and the owner.
//   - A batch id is stored, and a second write under the same id is refused.
//   - A record has a version, which every put raises. A put that is guarded to be new is refused if
//     the record exists.
//
// The statement omits the following. Outside PostgreSQL, events get no position in the feed of all
// runs. On every engine, watchers are not notified, records have no entries in queues, the holder's
// progress is not recorded (I13), a repeat under a batch id gets an error instead of the first
// result, ids are never deleted, deleted records leave no version behind, the outcome of a write
// whose reply was lost is not determined, and input is not checked. The comment of each type
// describes its particular differences.
package floor

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/postgres"
	"github.com/tapestore/tapestore/runstore/spanner"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// ErrStale reports that the run has a later grant. Nothing of the write is stored.
var ErrStale = errors.New("floor: the token of the run is stale")

// Floor is a bench.Floor that also counts records and allows takeovers of its runs.
type Floor interface {
	bench.Floor
	bench.RecordCounter
	// TakeOver grants the run's lease to another holder. Commit keeps using the former token, and
	// is refused.
	TakeOver(ctx context.Context, run int) error
}

// The kind and the owner of every event.
const (
	kind  = "bench"
	owner = "bench"
)

// firstToken is the token of the lease under which Hold creates a run.
const firstToken = 1

// plain numbers the rows that Insert adds to a run.
type plain struct{ rows atomic.Int64 }

// take reserves n numbers and returns the first.
func (p *plain) take(n int) int64 { return p.rows.Add(int64(n)) - int64(n) + 1 }

func newGrant() string { return rand.Text() }

// At returns a function that opens the floor of the store at a URL, or nil if that engine has none:
// it is in memory, or unknown. The store must have been opened before, so that its database exists.
func At(url string) (func(ctx context.Context) (bench.Floor, error), error) {
	u, err := runstore.ParseURL(url)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "sqlite":
		path, opts, err := sqlite.ParseURL(u)
		if err != nil || path == sqlite.Memory {
			return nil, err
		}
		return Opener(func(ctx context.Context) (*SQLite, error) { return OpenSQLite(ctx, path, opts) }), nil
	case "postgres", "postgresql":
		if _, _, err := postgres.ParseURL(u); err != nil {
			return nil, err
		}
		return Opener(func(ctx context.Context) (*Postgres, error) {
			config, _, err := postgres.ParseURL(u) // a configuration makes one pool
			if err != nil {
				return nil, err
			}
			return OpenPostgres(ctx, config)
		}), nil
	case "alloydb":
		opts, err := alloydb.ParseURL(u)
		if err != nil {
			return nil, err
		}
		return Opener(func(ctx context.Context) (*Postgres, error) { return OpenAlloyDB(ctx, opts) }), nil
	case "bigtable":
		opts, err := bigtable.ParseURL(u)
		if err != nil {
			return nil, err
		}
		return Opener(func(ctx context.Context) (*Bigtable, error) { return OpenBigtable(ctx, opts) }), nil
	case "spanner":
		opts, err := spanner.ParseURL(u)
		if err != nil {
			return nil, err
		}
		return Opener(func(ctx context.Context) (*Spanner, error) { return OpenSpanner(ctx, opts) }), nil
	}
	return nil, nil
}

// Opener adapts open to bench.Store.Floor.
func Opener[F Floor](open func(ctx context.Context) (F, error)) func(ctx context.Context) (bench.Floor, error) {
	return func(ctx context.Context) (bench.Floor, error) {
		f, err := open(ctx)
		if err != nil {
			return nil, err // not a nil pointer in an interface
		}
		return f, nil
	}
}

// runName returns the id of a run. It has the length of a UUID, as ids of other programs do.
func runName(grant string, run int) string {
	number := strconv.Itoa(run)
	return grant[:min(len(grant), 36-len(number))] + number
}
