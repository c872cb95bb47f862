package spanner

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/localclock"
	"github.com/tapestore/tapestore/runstore/outcome"
	"github.com/tapestore/tapestore/runstore/serving"
	"github.com/tapestore/tapestore/runstore/wakeup"
)

// Store is an open handle on a store in Spanner. It implements runstore.RunStore and the
// capabilities MultiCommitter, EpochManager, StaleReader and Describer.
type Store struct {
	opts    Options
	waiters wakeup.Hub
	here    localclock.Clock // of this process
	local   string           // the address of an emulator or of Spanner Omni
	client  *spanner.Client

	created string // when the database was created, RFC 3339; empty if that could not be read

	attemptTimeout time.Duration // that constant, but in tests
	ring           int64         // remembered, but in tests
	purgeBatch     int           // that constant, but in tests
	maxMutations   int           // likewise
	windows        windows       // likewise

	// attempts counts how often a transaction of a write was begun, repeats included.
	attempts atomic.Int64

	feedShards int64 // over how many this handle writes: no more than readers read

	runQueues    runQueues
	runQueueWait time.Duration // that constant, but in tests

	stale      chan []seenGrant // entries of the runnable index to be moved (places.go)
	moving     sync.WaitGroup
	background sync.WaitGroup
	stopped    context.Context // ends the work in the background
	stop       context.CancelFunc

	closeMu   sync.Mutex // guards the following
	closed    bool
	inFlight  int           // operations under way
	idle      chan struct{} // closed when the last of them has ended, after Close
	closeOnce sync.Once
}

var _ interface {
	runstore.RunStore
	runstore.MultiCommitter
	runstore.EpochManager
	runstore.RunNotifier
	runstore.StaleReader
	runstore.Describer
} = (*Store)(nil)

// Open opens the store. It creates the database and its schema as needed.
func Open(ctx context.Context, o *Options) (*Store, error) {
	s, err := open(ctx, o)
	if err != nil {
		return nil, outcome.Wrap("open spanner store", "", err)
	}
	return s, nil
}

func open(ctx context.Context, o *Options) (*Store, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{opts: opts, waiters: wakeup.Of(fmt.Sprint("spanner:", opts.Emulator, opts.Omni, "/", opts.Project, "/", opts.Instance, "/", opts.Database)), here: localclock.New(opts.Clock), attemptTimeout: attemptTimeout, runQueueWait: runQueueWait, ring: resultRing, purgeBatch: purgeBatch, windows: windows{windowBits, maxRank}, maxMutations: maxMutations, stale: make(chan []seenGrant, moveQueueCap), feedShards: shards, idle: make(chan struct{})}
	s.stopped, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.connect(ctx); err != nil {
		s.stop()
		return nil, unclassified(ctx, err)
	}
	if err := s.checkIncarnation(ctx); err != nil {
		_ = s.Close()
		return nil, unclassified(ctx, err)
	}
	if s.feedShards < opts.FeedShards {
		if err := s.growFeed(ctx); err != nil {
			_ = s.Close()
			return nil, unclassified(ctx, err)
		}
	}
	s.moving.Go(s.runMover)
	s.background.Go(func() {
		if err := s.finishPurges(s.stopped); err != nil && s.stopped.Err() == nil {
			opts.Logger.Warn("spanner: what is left of purged runs could not be deleted", "error", err)
		}
	})
	return s, nil
}

func unclassified(ctx context.Context, err error) error {
	if outcome.Definite(err) {
		return err
	}
	return outcome.Unavailable(outcome.Cause(ctx, err))
}

// connect prepares the database and makes the client.
func (s *Store) connect(ctx context.Context) (err error) {
	config := spanner.ClientConfig{DatabaseRole: s.opts.Role, UserAgent: "tapestore"}
	s.local = s.opts.Emulator + s.opts.Omni
	if s.local == "" {
		s.local = os.Getenv("SPANNER_EMULATOR_HOST")
	}
	if s.local != "" {
		config.DisableNativeMetrics = true
	}
	if s.opts.Omni != "" {
		config.Type, config.UsePlainText = spanner.OMNI, true
	}
	options := s.clientOptions()
	admin, err := database.NewDatabaseAdminClient(ctx, options...)
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }() // nothing was left undone
	if err := s.ensure(ctx, admin, options); err != nil {
		return err
	}
	// First, so that it sees what interceptors of the caller's make of an answer.
	watched := append([]option.ClientOption{option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(watchCommits, boundRollbacks))}, options...)
	if s.client, err = spanner.NewClientWithConfig(context.WithoutCancel(ctx), s.opts.database(), config, watched...); err != nil {
		return err
	}
	if err := s.retryUnbounded(ctx, func(ctx context.Context) error { return s.migrate(ctx, admin) }); err != nil {
		s.client.Close()
		return err
	}
	return nil
}

// clientOptions say how to reach Spanner.
func (s *Store) clientOptions() []option.ClientOption {
	var all []option.ClientOption
	if s.local != "" {
		quick := backoff.DefaultConfig
		quick.BaseDelay, quick.MaxDelay = 5*time.Millisecond, outcome.MaxPause
		all = append(all,
			option.WithEndpoint("passthrough:///"+s.local), option.WithoutAuthentication(), option.WithGRPCConnectionPool(1),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
			option.WithGRPCDialOption(grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second})))
	}
	for _, d := range s.opts.DialOptions {
		all = append(all, option.WithGRPCDialOption(d))
	}
	return all
}

// transaction are the options of all read-write transactions. SERIALIZABLE and
// pessimistic are said here, and not left to defaults of the client or the database:
// under REPEATABLE READ, reading the lease and writing the journal is write skew
// (https://cloud.google.com/spanner/docs/isolation-levels).
func (s *Store) transaction(tag string) spanner.TransactionOptions {
	return spanner.TransactionOptions{
		TransactionTag: "tapestore-" + tag,
		CommitPriority: s.opts.Priority,
		IsolationLevel: spannerpb.TransactionOptions_SERIALIZABLE,
		ReadLockMode:   spannerpb.TransactionOptions_ReadWrite_PESSIMISTIC,
	}
}

// query are the options of a statement.
func (s *Store) query(tag string) spanner.QueryOptions {
	return spanner.QueryOptions{Priority: s.opts.Priority, RequestTag: "tapestore-" + tag}
}

// Close implements runstore.RunStore. Operations under way end first: those that Spanner
// leaves without an answer by their retry timeout.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.closeMu.Lock()
		s.closed = true
		if s.inFlight == 0 {
			close(s.idle)
		}
		s.closeMu.Unlock()
		s.stop()
		s.moving.Wait()
		s.background.Wait()
		<-s.idle
		s.client.Close()
	})
	return nil
}

// op is the frame of every operation: input is checked before anything else, and
// nothing happens on a closed handle or after the context's end.
func (s *Store) op(ctx context.Context, op string, id runstore.RunID, invalid error, f func(ctx context.Context) error) error {
	if invalid != nil {
		return outcome.Wrap(op, id, invalid)
	}
	if !s.enter() {
		return outcome.Wrap(op, id, runstore.ErrClosed)
	}
	defer s.leave()
	if err := ctx.Err(); err != nil {
		return outcome.Wrap(op, id, outcome.Unavailable(err))
	}
	return outcome.Wrap(op, id, f(serving.With(ctx, op)))
}

// RunWakeups implements runstore.RunNotifier: of writes of this process.
func (s *Store) RunWakeups(ctx context.Context, id runstore.RunID, on runstore.WakeOn) (ch <-chan struct{}, err error) {
	err = s.op(ctx, "run wakeups", id, runstore.CheckRunID(id), func(context.Context) error {
		ch = s.waiters.Add(ctx, id, on)
		return nil
	})
	return ch, err
}

// enter begins an operation, unless the handle was closed.
func (s *Store) enter() bool {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.closed {
		return false
	}
	s.inFlight++
	return true
}

func (s *Store) leave() {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.inFlight--; s.inFlight == 0 && s.closed {
		close(s.idle)
	}
}

// Describe implements runstore.Describer.
func (s *Store) Describe(context.Context) (runstore.Description, error) {
	d := runstore.Description{Engine: "spanner", Version: "v1 API, GoogleSQL", Tier: "service"}
	if s.local != "" && s.opts.Omni == "" {
		d.Tier = "emulator"
	}
	return d, nil
}
