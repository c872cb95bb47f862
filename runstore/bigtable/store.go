package bigtable

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
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

// Store is an open handle on a store in Bigtable. It implements runstore.RunStore and the
// capabilities EpochManager, TermReader, Mover, RunNotifier, Describer and GarbageCollector.
type Store struct {
	*adapter.Store
	adapter.EpochManager
	adapter.Mover
	adapter.RunNotifier
	adapter.TermReader
	engine *engine
}

var _ interface {
	runstore.RunStore
	runstore.EpochManager
	runstore.TermReader
	runstore.Mover
	runstore.RunNotifier
	runstore.Describer
	runstore.GarbageCollector
} = (*Store)(nil)

// engine implements adapter.Core for one handle.
type engine struct {
	opts            Options
	emulated        bool
	cluster         string // of the app profile, if it could be read
	restored        string // the backup from which the table was restored, or empty
	client          *bigtable.Client
	shared          bool             // client is the caller's, see New
	conn            *grpc.ClientConn // to an emulator
	table           *bigtable.Table
	clock           clock
	runs            runCache
	moveLists       moveListCache
	feed            *sequencer
	upkeep          *upkeep
	purgedStretches purgedStretches
	epochCache      atomic.Pointer[epochCache] // nil until an epoch is raised
	garbage         *garbageQueue
	reported        struct { // runs whose data cannot be decoded, see skipDamaged
		mu   sync.Mutex
		runs map[runstore.RunID]bool
	}

	// The following have the values of the constants of the same names, except in tests.
	maxScanTime, ticketTimeout, attemptTimeout, closeGrace time.Duration

	hotBytes, maxTombstones int64
	rewriteRows             int

	background sync.WaitGroup
	closeMu    sync.Mutex // guards ended: after Close has begun no work begins in the background
	ended      bool
	closed     chan struct{}   // closed when Close has begun
	draining   chan struct{}   // closed when no operation is in flight any more: the background finishes its work
	stopped    context.Context // bounds the work in the background
	stop       context.CancelFunc
}

// Open opens the store and creates its table as needed.
func Open(ctx context.Context, opts *Options) (*Store, error) { return newStore(ctx, nil, opts) }

// New opens the store over client, which the caller closes after the store. opts has the same options as for
// Open: the table, and the client's app profile. New checks both with clients of the Admin API that it opens
// and closes.
func New(ctx context.Context, client *bigtable.Client, opts *Options) (*Store, error) {
	if client == nil {
		return nil, outcome.Wrap("open bigtable store", "", adapter.Invalid("client", "is missing"))
	}
	return newStore(ctx, client, opts)
}

// newStore opens the store over client, or over a new client if client is nil.
func newStore(ctx context.Context, client *bigtable.Client, opts *Options) (*Store, error) {
	s, err := open(ctx, client, opts)
	if err != nil {
		return nil, outcome.Wrap("open bigtable store", "", err)
	}
	return s, nil
}

// newEngine returns an engine that is not connected. The caller ends it with stop.
func newEngine(ctx context.Context, client *bigtable.Client, o *Options) (*engine, error) {
	opts, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &engine{
		opts: opts, clock: clock{local: localclock.New(opts.Clock)}, maxScanTime: maxScanTime, ticketTimeout: ticketTimeout, attemptTimeout: attemptTimeout,
		closeGrace: closeGrace, hotBytes: hotBytes, maxTombstones: maxTombstones, rewriteRows: rewriteRows, closed: make(chan struct{}), draining: make(chan struct{}),
		client: client, shared: client != nil,
	}
	if opts.bound > 0 {
		s.attemptTimeout, s.maxScanTime = opts.bound, opts.bound
	}
	if opts.hot > 0 {
		s.hotBytes, s.maxTombstones, s.rewriteRows = opts.hot, 10, 10
	}
	s.stopped, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.runs.all = map[runstore.RunID]*cachedRun{}
	return s, nil
}

func open(ctx context.Context, client *bigtable.Client, o *Options) (*Store, error) {
	s, err := newEngine(ctx, client, o)
	if err != nil {
		return nil, err
	}
	if err := s.connect(ctx); err != nil {
		s.stop()
		if s.conn != nil {
			_ = s.conn.Close() // nothing was sent on it
		}
		return nil, outcome.NotApplied(ctx, err)
	}
	s.feed, s.upkeep = newSequencer(s), newUpkeep(s)
	s.garbage = newGarbageQueue(s)
	handle := &Store{engine: s, Store: adapter.New(s, adapter.Options{
		Waiters: wakeup.Of(fmt.Sprint("bigtable:", s.opts.Emulator, "/", s.opts.Project, "/", s.opts.Instance, "/", s.opts.Table)),
		Before:  s.ensureClock, Classify: ofRun,
	})}
	handle.EpochManager = adapter.NewEpochManager(handle.Store, s)
	handle.Mover = adapter.NewMover(handle.Store, s)
	handle.TermReader = adapter.NewTermReader(handle.Store, s)
	handle.RunNotifier = adapter.NewRunNotifier(handle.Store, nil)
	if err := s.begin(ctx); err != nil {
		_ = handle.Close()
		return nil, outcome.NotApplied(ctx, err)
	}
	s.background.Go(s.feed.work)
	s.background.Go(s.upkeep.scanLoop)
	s.background.Go(s.upkeep.retireLoop)
	s.background.Go(s.garbage.work)
	return handle, nil
}

// connect makes the clients and prepares the table.
func (s *engine) connect(ctx context.Context) error {
	clientOpts, adminOpts, err := s.transport()
	if err != nil {
		return err
	}
	tables, err := bigtable.NewAdminClient(ctx, s.opts.Project, s.opts.Instance, adminOpts...)
	if err != nil {
		return err
	}
	defer func() { _ = tables.Close() }() // nothing was left undone
	if err := s.retry(ctx, func(ctx context.Context) error { return s.prepare(ctx, tables) }); err != nil {
		return err
	}
	if err := s.readRestored(ctx, tables); err != nil {
		return err
	}
	if !s.emulated {
		if err := s.checkProfile(ctx, clientOpts); err != nil {
			return err
		}
	}
	if s.shared {
		s.table = s.client.Open(s.opts.Table)
		return nil
	}
	return s.dialData(ctx, clientOpts)
}

// transport returns the options of the data client and of the clients of the Admin API. On an emulator
// it connects both: the client library would connect to BIGTABLE_EMULATOR_HOST, even if the options name
// another emulator.
func (s *engine) transport() (clientOpts, adminOpts []option.ClientOption, err error) {
	address := s.opts.Emulator
	if address == "" {
		address = os.Getenv("BIGTABLE_EMULATOR_HOST")
	}
	if s.emulated = address != ""; !s.emulated {
		for _, d := range s.opts.DialOptions {
			clientOpts = append(clientOpts, option.WithGRPCDialOption(d))
		}
		return clientOpts, clientOpts, nil
	}
	if s.conn, err = s.dial(address); err != nil {
		return nil, nil, err
	}
	admin, err := s.dial(address) // the client closes it
	if err != nil {
		return nil, nil, err
	}
	return []option.ClientOption{option.WithGRPCConn(s.conn)}, []option.ClientOption{option.WithGRPCConn(admin)}, nil
}

// dialData makes the data client.
func (s *engine) dialData(ctx context.Context, clientOpts []option.ClientOption) (err error) {
	config := bigtable.ClientConfig{AppProfile: s.opts.AppProfile}
	if s.emulated {
		config.MetricsProvider = bigtable.NoopMetricsProvider{}
		config.DisableDynamicChannelPool, config.DisableConnectionRecycler = true, true
		config.DisableDirectAccess, config.DisableSession = true, true
	}
	if s.client, err = bigtable.NewClientWithConfig(context.WithoutCancel(ctx), s.opts.Project, s.opts.Instance, config, clientOpts...); err == nil {
		s.table = s.client.Open(s.opts.Table)
	}
	return err
}

// dial makes a connection to an emulator.
func (s *engine) dial(address string) (*grpc.ClientConn, error) {
	quick := backoff.DefaultConfig
	quick.BaseDelay, quick.MaxDelay = 5*time.Millisecond, outcome.MaxPause
	return grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: 20 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)),
	}, s.opts.DialOptions...)...)
}

// Opening reads the clock up to openingReadings times, until a reading takes less than fastReading: the times
// that the handle returns are as accurate as its best reading.
const (
	openingReadings = 5
	fastReading     = 2 * time.Millisecond
)

// begin makes sure that the epoch is right and reads the clock.
func (s *engine) begin(ctx context.Context) error {
	if err := s.ensureEpoch(ctx); err != nil {
		return err
	}
	for range openingReadings {
		began := s.clock.local.Read()
		if _, err := s.readServerClock(ctx, clockKey()); err != nil {
			return err
		}
		if s.clock.local.Since(began) < fastReading {
			break
		}
	}
	return nil
}

// Close implements adapter.Core. Operations in flight end first: those to which Bigtable does not reply
// end at their retry timeout.
func (s *engine) Close(idle <-chan struct{}) error {
	s.closeMu.Lock()
	s.ended = true
	s.closeMu.Unlock()
	close(s.closed)
	<-idle
	close(s.draining)
	defer time.AfterFunc(2*s.closeGrace, s.stop).Stop()
	s.background.Wait()
	s.stop()
	if !s.shared {
		_ = s.client.Close() // no request is under way
	}
	if s.conn != nil {
		_ = s.conn.Close() // unless the client has closed it
	}
	return nil
}

// ensureClock runs before each operation. It reads Bigtable's clock if the last reading is stale, and in the
// background if that reading is about to become stale.
func (s *engine) ensureClock(ctx context.Context) error {
	if s.clock.isStale() {
		_, err := s.readServerClock(ctx, clockKey())
		return err
	}
	if _, age := s.clock.estimate(); age > refreshAfter {
		s.refreshClock()
	}
	return nil
}

// refreshClock reads the clock in the background.
func (s *engine) refreshClock() {
	if !s.clock.refreshing.CompareAndSwap(false, true) {
		return
	}
	s.inBackground(func(ctx context.Context) error {
		defer s.clock.refreshing.Store(false)
		_, err := s.readServerClock(ctx, clockKey())
		return err
	})
}

// inBackground calls f in a goroutine, unless Close has begun. It logs f's error.
func (s *engine) inBackground(f func(ctx context.Context) error) {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.ended {
		return
	}
	s.background.Go(func() {
		ctx, cancel := context.WithTimeout(s.stopped, s.opts.RetryTimeout)
		defer cancel()
		if err := f(ctx); err != nil && s.stopped.Err() == nil {
			s.opts.Logger.Warn("bigtable: work in the background failed", "error", err)
		}
	})
}
