package alloydb

import (
	"context"
	"errors"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Store is an open handle on a store in AlloyDB. It is a postgres.Store, with the same
// capabilities, over connections of the connector.
type Store struct {
	*postgres.Store
	primary route
}

// ReadPoolStore is a Store that reads from a read pool for callers that accept a state of bounded
// staleness. It also implements runstore.StaleReader.
type ReadPoolStore struct {
	*Store
	pool *readPool
}

type capabilities interface {
	runstore.RunStore
	runstore.MultiCommitter
	runstore.Notifier
	runstore.RunNotifier
	runstore.EpochManager
	runstore.TermReader
	runstore.Mover
	runstore.StrictCommitter
	runstore.Describer
}

var (
	_ capabilities         = (*Store)(nil)
	_ capabilities         = (*ReadPoolStore)(nil)
	_ runstore.StaleReader = (*ReadPoolStore)(nil)
)

// Open opens the store and creates or migrates its schema as needed. Errors of the options are
// reported together. A wrong instance name, missing rights and a wrong network path are reported at
// once. Errors that may pass are retried for postgres.Options.RetryTimeout. Options with a read
// pool are refused: see [OpenWithReadPool].
func Open(ctx context.Context, opts *Options) (*Store, error) {
	if opts != nil && opts.ReadPool != "" {
		return nil, openError(errors.Join(adapter.Invalid("read_pool", "goes with OpenWithReadPool only"), opts.check()))
	}
	s, err := open(ctx, opts)
	if err != nil {
		return nil, openError(err)
	}
	s.primary.setOpened()
	return s, nil
}

// OpenWithReadPool opens the store as [Open] does, and its read pool. A read pool that cannot be
// reached is not an error, because the primary can serve all reads.
func OpenWithReadPool(ctx context.Context, opts *Options) (*ReadPoolStore, error) {
	if opts == nil || opts.ReadPool == "" {
		return nil, openError(adapter.Invalid("read_pool", "is missing"))
	}
	s, err := open(ctx, opts)
	if err != nil {
		return nil, openError(err)
	}
	pool, err := openReadPool(ctx, opts, s.Store)
	if err != nil {
		return nil, openError(fmt.Errorf("read pool: %w", errors.Join(err, s.Close())))
	}
	s.primary.setOpened()
	return &ReadPoolStore{s, pool}, nil
}

func open(ctx context.Context, opts *Options) (*Store, error) {
	if opts == nil {
		opts = &Options{}
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	primary, err := opts.route(ctx, opts.Instance+opts.Host) // one of them is empty
	if err != nil {
		return nil, err
	}
	pg, err := postgres.Open(ctx, primary.config, opts.postgres())
	if err != nil {
		primary.close()
		return nil, err
	}
	return &Store{pg, primary}, nil
}

// openError adds the operation's name to an error of the contract. An unknown outcome becomes
// ErrUnavailable, because opening may be repeated.
func openError(err error) error {
	const op = "open alloydb store"
	var inner *runstore.OpError
	if errors.As(err, &inner) {
		return &runstore.OpError{Op: op, Err: inner.Err, Cause: inner.Cause}
	}
	if runstore.KindOf(err) == runstore.ErrUnknownOutcome {
		return &runstore.OpError{Op: op, Err: runstore.ErrUnavailable, Cause: err}
	}
	return &runstore.OpError{Op: op, Err: err}
}

// Close implements runstore.RunStore.
func (s *Store) Close() error {
	err := s.Store.Close() // waits for the operations in flight
	s.primary.close()
	return err
}

// Close implements runstore.RunStore.
func (s *ReadPoolStore) Close() error {
	s.pool.close()
	return s.Store.Close()
}

// LeaseVector describes how the engine keeps leases.
func LeaseVector() runstore.LeaseVector {
	return runstore.EngineLeases(
		"the run's row, locked by the writing statement; clock_timestamp() of the primary",
		"in the one statement of each write; in a caller's transaction by FenceTx")
}
