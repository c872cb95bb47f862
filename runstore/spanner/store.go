package spanner

import (
	"cmp"
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
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// Store is an open handle on a store in Spanner. It implements runstore.RunStore and the
// capabilities MultiCommitter, EpochManager, TermReader, Mover, RunNotifier, StaleReader and Describer.
// RunWakeups reports only writes of this process.
type Store struct {
	*adapter.Store
	adapter.MultiCommitter
	adapter.EpochManager
	adapter.Mover
	adapter.RunNotifier
	adapter.TermReader
	engine *engine
}

var _ interface {
	runstore.RunStore
	runstore.MultiCommitter
	runstore.EpochManager
	runstore.TermReader
	runstore.Mover
	runstore.RunNotifier
	runstore.StaleReader
	runstore.Describer
} = (*Store)(nil)

// engine implements adapter.Core.
type engine struct {
	opts   Options
	here   localclock.Clock // this process's clock: it measures time and judges no lease
	local  string           // address of an emulator or of Spanner Omni; empty for the service
	client *spanner.Client
	shared bool // client is the caller's, see New

	created string // when the database was created, RFC 3339; empty if that could not be read

	attemptTimeout time.Duration // the constant, except in tests
	ring           int64         // resultRing, except in tests
	purgeBatch     int           // the constant, except in tests
	purgedPage     int           // likewise
	maxMutations   int           // likewise
	windows        windows       // likewise

	// attempts counts the transactions of writes that were begun, repeats included.
	attempts atomic.Int64

	feedShards int64 // number of shards that this handle appends to, at most the number that readers read

	gaps gaps // of the feed

	runQueues    runQueues
	runQueueWait time.Duration // the constant, except in tests

	stale      chan []seenGrant // entries of the runnable index for the mover (runnable_index.go)
	purger     *purger
	background sync.WaitGroup  // the mover and the purger
	stopped    context.Context // ends background work
	stop       context.CancelFunc
}

// Open opens the store. It creates the database and its schema if they are missing.
func Open(ctx context.Context, opts *Options) (*Store, error) { return newStore(ctx, nil, opts) }

// newStore opens the store over client, or over a new client if client is nil.
func newStore(ctx context.Context, client *spanner.Client, opts *Options) (*Store, error) {
	e, err := open(ctx, client, opts)
	if err != nil {
		return nil, outcome.Wrap("open spanner store", "", err)
	}
	waiters := wakeup.Of(fmt.Sprint("spanner:", e.opts.Emulator, e.opts.Omni, "/", e.opts.database()))
	s := &Store{Store: adapter.New(e, adapter.Options{Waiters: waiters}), engine: e}
	s.MultiCommitter = adapter.NewMultiCommitter(s.Store, e)
	s.EpochManager = adapter.NewEpochManager(s.Store, e)
	s.TermReader = adapter.NewTermReader(s.Store, e)
	s.Mover = adapter.NewMover(s.Store, e)
	s.RunNotifier = adapter.NewRunNotifier(s.Store, nil)
	return s, nil
}

// newEngine returns an engine that is not connected. The caller ends it with stop.
func newEngine(ctx context.Context, client *spanner.Client, o *Options) (*engine, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &engine{
		opts: opts, here: localclock.New(opts.Clock), local: cmp.Or(opts.Emulator, opts.Omni, os.Getenv("SPANNER_EMULATOR_HOST")), attemptTimeout: attemptTimeout, runQueueWait: runQueueWait, ring: resultRing,
		purgeBatch: purgeBatch, purgedPage: purgedPage, windows: windows{windowBits, maxRank}, maxMutations: maxMutations, purger: newPurger(),
		stale: make(chan []seenGrant, moveQueueCap), feedShards: shards, client: client, shared: client != nil,
	}
	s.stopped, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

func open(ctx context.Context, client *spanner.Client, o *Options) (*engine, error) {
	s, err := newEngine(ctx, client, o)
	if err != nil {
		return nil, err
	}
	if err := s.connect(ctx); err != nil {
		s.stop()
		return nil, outcome.NotApplied(ctx, err)
	}
	s.background.Go(s.runMover)
	s.background.Go(s.runPurger)
	return s, nil
}

// connect creates the database if need be, connects the client, migrates the schema, and prepares the
// epoch and the feed.
func (s *engine) connect(ctx context.Context) error {
	admin, err := database.NewDatabaseAdminClient(ctx, s.clientOptions()...)
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }() // no call is pending
	if err := s.ensure(ctx, admin); err != nil {
		return err
	}
	if !s.shared {
		if err := s.dial(ctx); err != nil {
			return err
		}
	} else if err := s.checkClient(ctx); err != nil {
		return err
	}
	err = s.retryUnbounded(ctx, func(ctx context.Context) error { return s.migrate(ctx, admin) })
	if err == nil {
		err = s.checkIncarnation(ctx)
	}
	if err == nil && s.feedShards < s.opts.FeedShards {
		err = s.growFeed(ctx)
	}
	if err != nil {
		s.closeClient()
	}
	return err
}

// dial makes the client of the database.
func (s *engine) dial(ctx context.Context) (err error) {
	config := spanner.ClientConfig{DatabaseRole: s.opts.Role, UserAgent: "tapestore", DisableNativeMetrics: s.local != ""}
	if s.opts.Omni != "" {
		config.Type, config.UsePlainText = spanner.OMNI, true
	}
	watched := append(ClientOptions(), s.clientOptions()...)
	s.client, err = spanner.NewClientWithConfig(context.WithoutCancel(ctx), s.opts.database(), config, watched...)
	return err
}

// closeClient closes the client, unless it is the caller's.
func (s *engine) closeClient() {
	if !s.shared {
		s.client.Close()
	}
}

// clientOptions returns the connection options. Connections to an emulator are not encrypted.
func (s *engine) clientOptions() []option.ClientOption {
	var all []option.ClientOption
	if s.local != "" {
		quick := backoff.DefaultConfig
		quick.BaseDelay, quick.MaxDelay = 5*time.Millisecond, outcome.MaxPause
		all = append(all,
			option.WithEndpoint("passthrough:///"+s.local), option.WithoutAuthentication(), option.WithGRPCConnectionPool(1),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
			option.WithGRPCDialOption(grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: 20 * time.Second})))
	}
	for _, d := range s.opts.DialOptions {
		all = append(all, option.WithGRPCDialOption(d))
	}
	return all
}

// transaction returns the options of all read-write transactions. SERIALIZABLE and pessimistic
// locks are set explicitly and not left to defaults of the client or the database: under REPEATABLE
// READ, reading the lease and writing the journal would allow write skew
// (https://cloud.google.com/spanner/docs/isolation-levels).
func (s *engine) transaction(tag string) spanner.TransactionOptions {
	return spanner.TransactionOptions{
		TransactionTag: "tapestore-" + tag,
		CommitPriority: s.opts.Priority,
		IsolationLevel: spannerpb.TransactionOptions_SERIALIZABLE,
		ReadLockMode:   spannerpb.TransactionOptions_ReadWrite_PESSIMISTIC,
	}
}

// query returns the options of a statement.
func (s *engine) query(tag string) spanner.QueryOptions {
	return spanner.QueryOptions{Priority: s.opts.Priority, RequestTag: "tapestore-" + tag}
}

// Close implements adapter.Core. It waits for operations in flight; one that Spanner does not
// answer ends at its retry timeout.
func (s *engine) Close(idle <-chan struct{}) error {
	s.stop()
	s.background.Wait()
	<-idle
	s.closeClient()
	return nil
}

// Describe implements runstore.Describer.
func (s *Store) Describe(context.Context) (runstore.Description, error) {
	d := runstore.Description{Engine: "spanner", Version: "v1 API, GoogleSQL", Tier: "service"}
	if s.engine.local != "" && s.engine.opts.Omni == "" {
		d.Tier = "emulator"
	}
	return d, nil
}

// LeaseVector describes how the engine keeps leases.
func LeaseVector() runstore.LeaseVector {
	return runstore.EngineLeases(
		"the run's row, in a read-write transaction; CURRENT_TIMESTAMP() and commit timestamps",
		"in the transaction of each write; in a caller's transaction by FenceTx")
}
