package bigtable

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/bttest"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/internal/grpcproxy"
)

const (
	engineName = "bigtable"
	// moduleVersion is the version of the module whose package bttest is the in-process emulator.
	// A test fails if another version is built in.
	moduleVersion = "1.58.0"
	// serviceVariable is the variable that Google's own programs read.
	serviceVariable = "BIGTABLE_EMULATOR_HOST"
	// project is the project of all test tables.
	project = "tapestore"
)

// Options adjusts an emulator; nil means the defaults.
type Options struct {
	// Tier chooses where the emulator comes from, as EMULATORS_BIGTABLE does; empty leaves the
	// choice to the environment.
	Tier string
}

// Server is a running emulator of Bigtable. Its methods are safe for concurrent use.
type Server struct {
	engine  emulators.Engine
	address string
	gate    *gate

	// At most one of these is set: the emulator that this server started, if any.
	memory    *bttest.Server
	process   *host.Process
	container emulators.ContainerServer

	proxy    *grpc.Server // in front of every emulator except memory
	conn     *grpc.ClientConn
	running  sync.WaitGroup
	instance string
	tables   atomic.Int64

	closing  sync.Once
	closeErr error
}

// Start starts an emulator of Bigtable, or finds the one that the environment names. All are the
// same program, which Google publishes with its Go client and in its Cloud SDK. It keeps its data
// in memory:
//
//   - service: the emulator at BIGTABLE_EMULATOR_HOST, if that is set;
//   - emulator: the Go client's package bttest, in this process. It is always available and
//     costs nothing, so the tiers below are used only when they are forced;
//   - local: cbtemulator of the Cloud SDK, found by EMULATORS_BIGTABLE_BIN, on the
//     search path, beside gcloud and in the directories of the SDK's packages;
//   - container: by the function that emulators.RegisterContainer was given.
//
// EMULATORS_BIGTABLE or EMULATORS force one of these. A started emulator listens on the loopback
// interface only, admits every client, and ends with this process.
//
// In front of the emulator is a gate, which is part of a proxy if the emulator runs in another
// process. The gate refuses what the service would refuse, before the emulator has done half of it,
// and it delays, refuses and loses calls for tests. KnownGaps lists the remaining
// differences from the service.
//
// Errors: never emulators.ErrMissing, because the tier emulator is always available. ctx bounds the
// start only.
func Start(ctx context.Context, opts *Options) (*Server, error) {
	return startOn(ctx, thisMachine(), opts)
}

// At uses a running emulator that this process does not own, as BIGTABLE_EMULATOR_HOST does:
// address is host:port. Its tier is emulators.TierService. Close deletes the tables that were
// created under the names of NewTable, and leaves everything else as it is.
func At(ctx context.Context, address string) (*Server, error) {
	s := newServer()
	if err := s.behindProxy(ctx, address); err != nil {
		return nil, errors.Join(fmt.Errorf("emulators: bigtable (%s): %w", emulators.TierService, err), s.Close())
	}
	s.engine = emulators.Engine{Name: engineName, Version: "emulator of unknown version", Tier: emulators.TierService}
	return s, nil
}

func startOn(ctx context.Context, m *host.Machine, opts *Options) (_ *Server, err error) {
	if opts == nil {
		opts = &Options{}
	}
	tier, how, err := chooseTier(ctx, m, opts.Tier)
	if err != nil {
		return nil, fmt.Errorf("emulators: bigtable: %w", err)
	}
	if tier == emulators.TierService {
		return At(ctx, how.address)
	}
	s := newServer()
	s.engine = emulators.Engine{Name: engineName, Tier: tier}
	switch tier {
	case emulators.TierContainer:
		var container emulators.ContainerServer
		if container, err = how.container(ctx); err == nil {
			s.container, s.engine.Version = container, container.Image()
			err = s.behindProxy(ctx, container.URL())
		}
	case emulators.TierLocal:
		err = s.startLocal(ctx, how.program)
	default:
		s.engine.Version = "bttest " + moduleVersion
		err = s.startInProcess()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("emulators: bigtable (%s): %w", tier, err), s.Close())
	}
	return s, nil
}

func newServer() *Server {
	return &Server{gate: newGate(), instance: "test-" + strings.ToLower(rand.Text()[:10])}
}

// startInProcess starts the emulator in this process.
func (s *Server) startInProcess() (err error) {
	options := append(grpcproxy.ServerOptions(),
		grpc.ChainUnaryInterceptor(s.gate.unary),
		grpc.ChainStreamInterceptor(s.gate.stream(nil)))
	if s.memory, err = bttest.NewServer("127.0.0.1:0", options...); err != nil {
		return err
	}
	s.address = s.memory.Addr
	s.conn, err = grpc.NewClient("passthrough:///"+s.address, grpcproxy.DialOptions()...)
	return err
}

// behindProxy starts a proxy with the gate in front of an emulator in another process, once the
// emulator answers.
func (s *Server) behindProxy(ctx context.Context, target string) (err error) {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return fmt.Errorf("the address of an emulator must have the form host:port: %w", err)
	}
	if s.conn, err = grpc.NewClient("passthrough:///"+target, grpcproxy.DialOptions()...); err != nil {
		return err
	}
	if err := s.answers(ctx, target); err != nil {
		return err
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.address = listener.Addr().String()
	s.proxy = grpc.NewServer(append(grpcproxy.ServerOptions(),
		grpc.ForceServerCodec(grpcproxy.Frames()),
		grpc.UnknownServiceHandler(grpcproxy.Handler(s.conn)),
		grpc.ChainStreamInterceptor(s.gate.stream(proxiedEmulator{adminpb.NewBigtableTableAdminClient(s.conn)})))...)
	s.running.Go(func() { _ = s.proxy.Serve(listener) }) // until it is stopped
	return nil
}

// answers waits until the emulator answers an RPC.
func (s *Server) answers(ctx context.Context, target string) error {
	const bound = time.Minute // generous, for a busy machine
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("no answer from %s within %v", target, bound))
	defer cancel()
	if _, err := s.list(ctx, grpc.WaitForReady(true)); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
		}
		return fmt.Errorf("no emulator of Bigtable answers at %s: %w", target, err)
	}
	return nil
}

// proxiedEmulator is the tableGetter of an emulator behind a proxy.
type proxiedEmulator struct {
	adminpb.BigtableTableAdminClient
}

func (e proxiedEmulator) GetTable(ctx context.Context, req *adminpb.GetTableRequest) (*adminpb.Table, error) {
	return e.BigtableTableAdminClient.GetTable(ctx, req)
}

// Engine describes the running emulator.
func (s *Server) Engine() emulators.Engine { return s.engine }

// Address returns the host and port for clients, which connect without TLS and credentials.
func (s *Server) Address() string { return s.address }

// Close ends all faults and the emulator with all its data. An emulator that this process did not
// start keeps running, without the tables of NewTable. A second Close does nothing.
func (s *Server) Close() error {
	s.closing.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Server) close() error {
	var errs []error
	s.gate.faults.Close()
	if s.proxy != nil {
		s.proxy.Stop()
		s.running.Wait()
		if s.engine.Tier == emulators.TierService {
			errs = append(errs, s.dropAll())
		}
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	if s.memory != nil {
		s.memory.Close()
	}
	if s.process != nil {
		errs = append(errs, s.process.Kill())
	}
	if s.container != nil {
		errs = append(errs, s.container.Close())
	}
	return errors.Join(errs...)
}
