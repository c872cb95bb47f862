package emulators

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tapestore/tapestore/emulators/forward"
)

const (
	engineSpanner = "spanner"
	// spannerServiceVariable is the one that Google's own programs read.
	spannerServiceVariable = "SPANNER_EMULATOR_HOST"
	// spannerIdle is for how long the service keeps a transaction alive in which
	// nothing is asked.
	spannerIdle = 10 * time.Second
	// spannerAnswerTimeout is for one answer of an emulator that is well, on a machine that is
	// busy.
	spannerAnswerTimeout = time.Minute
)

// SpannerOptions adjusts an emulator; nil means the defaults.
type SpannerOptions struct {
	// Tier chooses where it comes from, as EMULATORS_SPANNER does; empty leaves that
	// to the environment.
	Tier string
	// AbortProbability is how probable it is, in percent, that a transaction that
	// meets another one in the same database aborts that other one, and not itself.
	// With 100 whoever comes last wins; with 0 whoever comes first. nil is the
	// emulator's default, 20. Only an emulator that is started here (TierLocal) can be
	// told.
	AbortProbability *int
	// Idle is for how long a read-write transaction in which nothing is asked stays
	// alive: it is then rolled back, and its client told ABORTED. 0 means 10 s, as on
	// the service, which however need not do it. A client that died blocks its
	// database for no longer than this.
	Idle time.Duration
}

// SpannerServer is a running emulator of Spanner. Its methods may be called
// concurrently.
type SpannerServer struct {
	engine        Engine
	opts          SpannerOptions
	proxy         *spannerProxy
	answerTimeout time.Duration // with one answer of an emulator that may hang

	// life is held for writing by what replaces the emulator, and for reading by what
	// must not meet that.
	lifeMu    sync.RWMutex
	program   string // of a local one
	process   *process
	container ContainerServer
	stopped   bool

	databases spannerDatabases

	closing  sync.Once
	closeErr error
}

// Spanner starts an emulator of Spanner, or finds the one that the environment names.
// All are the same program, which Google gives away in its Cloud SDK and as an image;
// what it holds is in memory:
//
//   - service: the one at SPANNER_EMULATOR_HOST, if that is set;
//   - local: emulator_main, found by EMULATORS_SPANNER_BIN, on the search path, in the
//     Cloud SDK and where the packages put that;
//   - container: what RegisterContainer was given.
//
// The first that can be had is taken; EMULATORS_SPANNER or EMULATORS force one. What is
// started listens on the loopback interface only, lets everybody in, and ends with this
// process.
//
// Clients connect to a proxy in front of it. Where a probe shows that the emulator
// loses transactions of multiplexed sessions, which are all that today's clients have,
// the proxy runs them on sessions of its own; Shimmed tells. In either case it aborts,
// delays, refuses and loses calls for tests. What still differs from the service is
// told by SpannerKnownGaps.
//
// Errors: ErrMissing when no tier can be had. ctx bounds the start only.
func Spanner(ctx context.Context, opts *SpannerOptions) (*SpannerServer, error) {
	return spannerOn(ctx, thisMachine(), opts)
}

// SpannerAt uses an emulator that somebody else runs, as SPANNER_EMULATOR_HOST does:
// address is host:port. Its tier is TierService. Close drops the databases that were
// made by NewDatabase with their instances, and leaves all else as it is.
func SpannerAt(ctx context.Context, address string) (*SpannerServer, error) {
	return spannerAt(ctx, address, SpannerOptions{})
}

func spannerAt(ctx context.Context, address string, opts SpannerOptions) (*SpannerServer, error) {
	s := newSpannerServer(opts)
	s.engine = Engine{Name: engineSpanner, Version: spannerUnknownVersion, Tier: TierService}
	err := s.cannotChoose()
	if err == nil {
		err = s.behindProxy(ctx, address)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("emulators: spanner (%s): %w", TierService, err), s.Close())
	}
	return s, nil
}

func spannerOn(ctx context.Context, m *machine, opts *SpannerOptions) (_ *SpannerServer, err error) {
	if opts == nil {
		opts = &SpannerOptions{}
	}
	tier, how, err := m.spannerTier(ctx, opts.Tier)
	if err != nil {
		return nil, fmt.Errorf("emulators: spanner: %w", err)
	}
	if tier == TierService {
		return spannerAt(ctx, how.address, *opts)
	}
	s := newSpannerServer(*opts)
	s.engine = Engine{Name: engineSpanner, Tier: tier}
	if tier == TierContainer {
		var container ContainerServer
		if err = s.cannotChoose(); err == nil {
			container, err = how.container(ctx)
		}
		if err == nil {
			s.container, s.engine.Version = container, container.Image()
			err = s.behindProxy(ctx, container.URL())
		}
	} else {
		err = s.startLocal(ctx, how.program)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("emulators: spanner (%s): %w", tier, err), s.Close())
	}
	return s, nil
}

func newSpannerServer(opts SpannerOptions) *SpannerServer {
	if opts.Idle <= 0 {
		opts.Idle = spannerIdle
	}
	return &SpannerServer{opts: opts, proxy: newSpannerProxy(), answerTimeout: spannerAnswerTimeout, databases: newSpannerDatabases()}
}

// cannotChoose refuses what only an emulator that we start can be told.
func (s *SpannerServer) cannotChoose() error {
	if s.opts.AbortProbability != nil {
		return errors.New("the option AbortProbability is for an emulator that is started here, of tier local")
	}
	return nil
}

// behindProxy puts the proxy in front of an emulator once that answers.
func (s *SpannerServer) behindProxy(ctx context.Context, target string) error {
	if err := s.connect(ctx, target); err != nil {
		return err
	}
	return s.proxy.listen(ctx)
}

// connect waits until an emulator answers, asks what it needs, and lets the proxy pass
// calls to it from now on.
func (s *SpannerServer) connect(ctx context.Context, target string) error {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return fmt.Errorf("the address of an emulator must have the form host:port: %w", err)
	}
	conn, err := grpc.NewClient("passthrough:///"+target, forward.DialOptions()...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, spannerAnswerTimeout, fmt.Errorf("no answer from %s within %v", target, spannerAnswerTimeout))
	defer cancel()
	needed, err := s.databases.probe(ctx, conn)
	if err != nil {
		err = fmt.Errorf("no emulator of Spanner answers at %s: %w", target, err)
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
		}
		return errors.Join(err, conn.Close())
	}
	s.proxy.use(newSpannerBackend(conn, needed, s.opts.Idle))
	return nil
}

// Engine says what runs here.
func (s *SpannerServer) Engine() Engine { return s.engine }

// Address is the host and port to give to clients. They connect without TLS and
// without credentials. It stays the same across Restart.
func (s *SpannerServer) Address() string { return s.proxy.address() }

// ClientOptions are those with which Google's clients, for data and for administration,
// connect to Address. A client that is given that address alone goes elsewhere where
// SPANNER_EMULATOR_HOST is set, as it is for the tier service: past the proxy.
func (s *SpannerServer) ClientOptions() []option.ClientOption {
	address := s.Address()
	return []option.ClientOption{
		option.WithEndpoint("passthrough:///" + address),
		option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		option.WithGRPCDialOption(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		})),
	}
}

// Shimmed tells whether transactions run on sessions of the proxy's, because the
// emulator cannot do them on those of today's clients.
func (s *SpannerServer) Shimmed() bool {
	b := s.proxy.backend.Load()
	return b != nil && b.shim != nil
}

// Close ends all faults and the emulator, with all that it held. One that is not ours
// stays, without the databases of NewDatabase. Closing again does nothing.
func (s *SpannerServer) Close() error {
	s.closing.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *SpannerServer) close() error {
	s.lifeMu.Lock()
	defer s.lifeMu.Unlock()
	s.stopped = true
	s.proxy.stop()
	var errs []error
	if b := s.proxy.backend.Load(); b != nil {
		if s.engine.Tier == TierService {
			ctx, cancel := context.WithTimeout(context.Background(), stopBound)
			defer cancel()
			errs = append(errs, b.deleteSessions(ctx), s.databases.dropAll(ctx, b.conn))
		}
		errs = append(errs, b.close())
	}
	if s.process != nil {
		errs = append(errs, s.process.kill())
	}
	if s.container != nil {
		errs = append(errs, s.container.Close())
	}
	return errors.Join(errs...)
}
