package spanner

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

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/internal/grpcproxy"
)

const (
	engineName = "spanner"
	// serviceVariable is the variable that Google's own programs read.
	serviceVariable = "SPANNER_EMULATOR_HOST"
	// defaultIdle (10 s) is how long the service keeps an idle transaction alive.
	defaultIdle = 10 * time.Second
	// answerTimeout (1 min) bounds one reply of a healthy emulator on a busy machine.
	answerTimeout = time.Minute
)

// Options adjusts an emulator; nil means the defaults.
type Options struct {
	// Tier chooses where the emulator comes from, as EMULATORS_SPANNER does; empty leaves the
	// choice to the environment.
	Tier string
	// AbortProbability is the probability, in percent, that a transaction that conflicts with
	// another one in the same database aborts the other, and not itself. With 100 the later
	// transaction wins; with 0 the earlier. nil is the emulator's default, 20. Only an emulator
	// that is started here (emulators.TierLocal) accepts it.
	AbortProbability *int
	// Idle is how long an idle read-write transaction stays alive. It is then rolled back, and its
	// client gets ABORTED. 0 means 10 s, after which the service may do the same. A client that
	// died blocks its database for no longer than this.
	Idle time.Duration
}

// Server is a running emulator of Spanner. Its methods are safe for concurrent use.
type Server struct {
	engine        emulators.Engine
	opts          Options
	proxy         *proxy
	answerTimeout time.Duration // for one reply of an emulator that may hang

	// lifeMu is held for writing while the emulator is replaced, and for reading by calls that must
	// not run meanwhile.
	lifeMu    sync.RWMutex
	program   string // of a local emulator
	process   *host.Process
	container emulators.ContainerServer
	stopped   bool

	databases databases

	closing  sync.Once
	closeErr error
}

// Start starts an emulator of Spanner, or finds the one that the environment names. All are the
// same program, which Google publishes in its Cloud SDK and as an image. It keeps its data in
// memory:
//
//   - service: the emulator at SPANNER_EMULATOR_HOST, if that is set;
//   - local: emulator_main, found by EMULATORS_SPANNER_BIN, on the search path, in the
//     Cloud SDK and in the directories of its packages;
//   - container: by the function that emulators.RegisterContainer was given.
//
// The first available tier is used; EMULATORS_SPANNER or EMULATORS force one. A started emulator
// listens on the loopback interface only, admits every client, and ends with this process.
//
// Clients connect to a proxy in front of the emulator. The proxy aborts, delays, refuses and loses
// calls for tests. Current client libraries have only multiplexed sessions; if a probe shows that
// the emulator loses transactions of such sessions, the proxy runs transactions on sessions of its
// own, and Shimmed reports that. KnownGaps lists the remaining differences from the service.
//
// Errors: emulators.ErrMissing if no tier is available. ctx bounds the start only.
func Start(ctx context.Context, opts *Options) (*Server, error) {
	return startOn(ctx, thisMachine(), opts)
}

// At uses a running emulator that this process does not own, as SPANNER_EMULATOR_HOST does: address
// is host:port. Its tier is emulators.TierService. Close drops the databases that NewDatabase made,
// with their instances, and leaves everything else as it is.
func At(ctx context.Context, address string) (*Server, error) {
	return useService(ctx, address, Options{})
}

func useService(ctx context.Context, address string, opts Options) (*Server, error) {
	s := newServer(opts)
	s.engine = emulators.Engine{Name: engineName, Version: unknownVersion, Tier: emulators.TierService}
	err := s.cannotChoose()
	if err == nil {
		err = s.behindProxy(ctx, address)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("emulators: spanner (%s): %w", emulators.TierService, err), s.Close())
	}
	return s, nil
}

func startOn(ctx context.Context, m *host.Machine, opts *Options) (_ *Server, err error) {
	if opts == nil {
		opts = &Options{}
	}
	tier, how, err := chooseTier(ctx, m, opts.Tier)
	if err != nil {
		return nil, fmt.Errorf("emulators: spanner: %w", err)
	}
	if tier == emulators.TierService {
		return useService(ctx, how.address, *opts)
	}
	s := newServer(*opts)
	s.engine = emulators.Engine{Name: engineName, Tier: tier}
	if tier == emulators.TierContainer {
		var container emulators.ContainerServer
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

func newServer(opts Options) *Server {
	if opts.Idle <= 0 {
		opts.Idle = defaultIdle
	}
	return &Server{opts: opts, proxy: newProxy(), answerTimeout: answerTimeout, databases: newDatabases()}
}

// cannotChoose returns an error if the options need an emulator that is started here.
func (s *Server) cannotChoose() error {
	if s.opts.AbortProbability != nil {
		return errors.New("the option AbortProbability is for an emulator that is started here, of tier local")
	}
	return nil
}

// behindProxy starts the proxy in front of an emulator, once the emulator answers.
func (s *Server) behindProxy(ctx context.Context, target string) error {
	if err := s.connect(ctx, target); err != nil {
		return err
	}
	return s.proxy.listen(ctx)
}

// connect waits until an emulator answers, probes whether it needs the shim, and directs the proxy
// to it.
func (s *Server) connect(ctx context.Context, target string) error {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return fmt.Errorf("the address of an emulator must have the form host:port: %w", err)
	}
	conn, err := grpc.NewClient("passthrough:///"+target, grpcproxy.DialOptions()...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("no answer from %s within %v", target, answerTimeout))
	defer cancel()
	needed, err := s.databases.probe(ctx, conn)
	if err != nil {
		err = fmt.Errorf("no emulator of Spanner answers at %s: %w", target, err)
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
		}
		return errors.Join(err, conn.Close())
	}
	s.proxy.use(newBackend(conn, needed, s.opts.Idle))
	return nil
}

// Engine describes the running emulator.
func (s *Server) Engine() emulators.Engine { return s.engine }

// Address returns the host and port for clients, which connect without TLS and credentials. It
// stays the same across Restart.
func (s *Server) Address() string { return s.proxy.address() }

// ClientOptions returns the options with which Google's clients, for data and for administration,
// connect to Address. A client that has only the address bypasses the proxy where
// SPANNER_EMULATOR_HOST is set, as it is for the tier service.
func (s *Server) ClientOptions() []option.ClientOption {
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

// Shimmed reports whether the proxy runs transactions on sessions of its own, because the emulator
// loses those of multiplexed sessions.
func (s *Server) Shimmed() bool {
	b := s.proxy.backend.Load()
	return b != nil && b.shim != nil
}

// Close ends all faults and the emulator with all its data. An emulator that this process did not
// start keeps running, without the databases of NewDatabase. A second Close does nothing.
func (s *Server) Close() error {
	s.closing.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Server) close() error {
	s.lifeMu.Lock()
	defer s.lifeMu.Unlock()
	s.stopped = true
	s.proxy.stop()
	var errs []error
	if b := s.proxy.backend.Load(); b != nil {
		if s.engine.Tier == emulators.TierService {
			ctx, cancel := context.WithTimeout(context.Background(), host.DropBound)
			defer cancel()
			errs = append(errs, b.deleteSessions(ctx), s.databases.dropAll(ctx, b.conn))
		}
		errs = append(errs, b.close())
	}
	if s.process != nil {
		errs = append(errs, s.process.Kill())
	}
	if s.container != nil {
		errs = append(errs, s.container.Close())
	}
	return errors.Join(errs...)
}
