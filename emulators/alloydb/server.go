package alloydb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"cloud.google.com/go/alloydbconn"
	"golang.org/x/oauth2"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/postgres"
)

const (
	// cluster is the only cluster of a stand-in.
	cluster = "projects/tapestore/locations/local/clusters/emulator"
	// connectorVersion is the version of the connector that the stand-in was written for. A test
	// fails if the module requires another.
	connectorVersion = "1.19.3"
	// proxyPort is the port at which the connector dials every instance.
	proxyPort = "5433"
)

// Options adjusts a stand-in; nil means the defaults.
type Options struct {
	// Postgres is the server behind the stand-in; Close leaves it running. Nil starts one with its
	// defaults, which Close ends.
	Postgres *postgres.Server
	// CertificateTTL is the lifetime of the client certificates that are signed; zero means what
	// the connector asks for, an hour. A connector that is not lazy refreshes its certificate four
	// minutes before the end. With a TTL below that it refreshes continuously, bounded only by its
	// own rate limit: two at once, then one in 30 s.
	CertificateTTL time.Duration

	exchangeTimeout time.Duration // for tests; default 10 s
	address         string        // for tests: of the server behind; default that of Postgres
}

// Server is a running stand-in for AlloyDB. Its methods are safe for concurrent use.
type Server struct {
	postgres        *postgres.Server
	owned           bool   // the stand-in started postgres
	address         string // of the server behind
	token           string
	ttl             time.Duration
	ca              *authority
	admin           net.Listener
	http            *http.Server
	doors           []*door
	exchangeTimeout time.Duration // for the handshake, the metadata exchange and each reply
	serving         sync.WaitGroup

	mu          sync.Mutex
	conns       *connSet // what CutConnections cuts; nil once closed
	stats       Stats
	adminStatus int
	reason      string // why connections are refused, or ""
	userAgent   string // of the last connector whose metadata exchange was read

	closing  sync.Once
	closeErr error
}

// Start starts a stand-in for AlloyDB in front of a PostgreSQL server, so that the real
// connector, cloud.google.com/go/alloydbconn, runs against it with DialerOptions. ctx bounds the
// start only. Errors: those of postgres.Start, if it has to start one.
//
// The stand-in is one cluster with a primary and a read pool. It consists of the two methods of the
// Admin API that the connector calls, over plain HTTP, and of the proxy that AlloyDB puts in front
// of the database. Real are the connector itself, its OAuth2 token on every call, the certificate
// that it has signed and refreshes, TLS 1.3 with both sides checked, private, public and PSC
// addresses, the metadata exchange that announces the kind of login, errors of each step, and cut
// connections.
//
// Not real, and not proved by any test against it:
//
//   - The engine is plain PostgreSQL. AlloyDB's own memory, planner, columnar
//     engine, vacuum, parameters and limits are absent.
//   - Who may log in. A private server trusts every role and password that comes
//     from the loopback interface. With IAM the token is checked, but any token
//     admits to any role; on AlloyDB the role must be the token's principal, and
//     exist.
//   - The read pool is the primary under another name: no lag, no refused writes.
//   - Failover, maintenance and switchover. CutConnections is their first moment;
//     on AlloyDB the next connection then fails for up to a minute.
//   - Network paths. All addresses lead to the loopback interface, through the
//     dial function of DialerOptions; no DNS name is looked up.
//   - Policies of the service: quotas, IAM conditions, how certificates are made,
//     managed connection pooling on port 6432.
func Start(ctx context.Context, opts *Options) (_ *Server, err error) {
	if opts == nil {
		opts = &Options{}
	}
	if opts.CertificateTTL < 0 {
		return nil, fmt.Errorf("emulators: alloydb: CertificateTTL is %v, want zero or more", opts.CertificateTTL)
	}
	s := &Server{
		postgres:        opts.Postgres,
		address:         opts.address,
		token:           newToken(),
		ttl:             opts.CertificateTTL,
		conns:           newConnSet(),
		exchangeTimeout: cmp.Or(opts.exchangeTimeout, 10*time.Second),
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("emulators: alloydb: %w", err), s.Close())
		}
	}()
	if s.ca, err = newAuthority(); err != nil {
		return nil, err
	}
	if s.postgres == nil && s.address == "" {
		if s.postgres, err = postgres.Start(ctx, nil); err != nil {
			return nil, err
		}
		s.owned = true
	}
	if s.address == "" {
		s.address = s.postgres.Address()
	}
	if err := s.listenAll(); err != nil {
		return nil, err
	}
	if err := s.serveAdmin(); err != nil {
		return nil, err
	}
	return s, nil
}

// Engine describes the running stand-in.
func (s *Server) Engine() emulators.Engine {
	return emulators.Engine{
		Name:    "alloydb",
		Version: fmt.Sprintf("connector %s over postgres %s", connectorVersion, s.postgres.Engine().Version),
		Tier:    emulators.TierEmulator,
	}
}

// Postgres returns the server behind the proxy, on which callers create databases.
func (s *Server) Postgres() *postgres.Server { return s.postgres }

// Instance returns the URI of the primary, for the connector's Dial.
func (s *Server) Instance() string { return instanceURI("primary") }

// ReadPool returns the URI of the read pool, for the connector's Dial.
func (s *Server) ReadPool() string { return instanceURI("pool") }

func instanceURI(name string) string { return cluster + "/instances/" + name }

// AdminEndpoint returns the address of the Admin API.
func (s *Server) AdminEndpoint() string { return "http://" + s.admin.Addr().String() }

// DialerOptions returns the options that connect a Dialer to this stand-in. Further options may
// follow: WithIAMAuthN, WithLazyRefresh, and by WithDefaultDialOptions WithPublicIP or WithPSC. A
// pgx configuration needs sslmode=disable and a DialFunc that calls Dial with Instance or ReadPool;
// the host, any IP address, and the port are not used.
//
// All Dialers of the process share one RSA key: generating one takes long, and nothing here depends
// on it. The connector creates a client for Google's monitoring even if telemetry is off, and never
// closes it: each Dialer looks up monitoring.googleapis.com, without effect, and leaves a few
// goroutines behind.
func (s *Server) DialerOptions() []alloydbconn.Option {
	return []alloydbconn.Option{
		alloydbconn.WithAdminAPIEndpoint(s.AdminEndpoint()),
		alloydbconn.WithTokenSource(s.TokenSource()),
		alloydbconn.WithDialFunc(s.dial),
		alloydbconn.WithOptOutOfBuiltInTelemetry(),
		alloydbconn.WithRSAKey(clientKey()),
	}
}

// TokenSource returns the only token that the Admin API and the proxy accept. DialerOptions
// includes it.
func (s *Server) TokenSource() oauth2.TokenSource { return tokenSource(s.token) }

// SkewClock sets how far the stand-in's clock is ahead of the machine's, or behind it if negative.
// The stand-in signs and checks certificates by that clock, so a test can let a certificate expire
// without waiting. The connector uses the machine's clock.
func (s *Server) SkewClock(ahead time.Duration) { s.ca.skew.Store(int64(ahead)) }

// RefuseAdmin makes the Admin API answer every call with an HTTP error status, 400 to 599; 0 ends
// that. The connector itself repeats a call that got 503, for up to a minute; any other status
// fails the dial at once.
func (s *Server) RefuseAdmin(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adminStatus = status
}

// RefuseConnections makes the proxy refuse new connections with this reason, which is the client's
// error; "" ends that.
func (s *Server) RefuseConnections(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason = reason
}

// CutConnections cuts every connection, including those being opened, and returns when they are
// gone: a failover as clients see it. A statement in flight may or may not be executed. New
// connections are accepted.
func (s *Server) CutConnections() {
	s.mu.Lock()
	cut := s.conns
	if cut != nil {
		s.conns = newConnSet()
	}
	s.mu.Unlock()
	if cut != nil {
		cut.cutAll()
	}
}

// Close cuts every connection, ends the stand-in and, if the stand-in started it, the PostgreSQL
// server. Close Dialers first, because they keep refreshing.
func (s *Server) Close() error {
	s.closing.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Server) close() error {
	s.mu.Lock()
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	var errs []error
	for _, d := range s.doors {
		errs = append(errs, d.listener.Close())
	}
	if s.http != nil {
		errs = append(errs, s.http.Close())
	}
	conns.cutAll()
	s.serving.Wait()
	if s.owned {
		errs = append(errs, s.postgres.Close())
	}
	return errors.Join(errs...)
}
