package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

const engineName = "postgres"

// minVersion (13) is the oldest major version that is used: it is the first that can drop a
// database together with its sessions, and older ones are out of support.
const minVersion = 13

// Options adjusts a server; nil means the defaults.
type Options struct {
	// Durable makes a commit wait for the disk, as a server does by default, and keeps the data on
	// a disk: for benchmarks. Without it an acknowledged commit survives the end of the server,
	// Kill included, but not that of the machine, and the data may be in memory.
	Durable bool
	// Settings are further server settings, by name. A server that this process did not start must
	// have them already.
	Settings map[string]string
	// Dir is the directory in which the data is kept for the next start. Empty means a temporary
	// directory, which Close removes.
	Dir string
}

// Server is a running PostgreSQL server. Its methods are safe for concurrent use.
type Server struct {
	engine emulators.Engine
	url    *url.URL
	// local is the private server; nil if this process did not start the server.
	local     *localServer
	container emulators.ContainerServer

	sessions  sessions
	databases databases
	templates templates
	closing   sync.Once
	closeErr  error
}

// Start starts a PostgreSQL server, or finds the one that the environment names:
// EMULATORS_POSTGRES_URL, else the programs of this machine, else a container. EMULATORS_POSTGRES
// or EMULATORS force one of these. A started server is private: it listens on the loopback
// interface and on a socket in its own directory, trusts every client, and ends with this process.
//
// The programs are looked for in the directory EMULATORS_POSTGRES_BIN if it is set, else where
// pg_config says, on the search path, and in the directories of the distributions' packages.
//
// Errors: emulators.ErrMissing if no tier is available. ctx bounds the start only.
func Start(ctx context.Context, opts *Options) (*Server, error) {
	return startOn(ctx, thisMachine(), opts)
}

func startOn(ctx context.Context, m *host.Machine, opts *Options) (*Server, error) {
	if opts == nil {
		opts = &Options{}
	}
	tier, how, err := chooseTier(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("emulators: postgres: %w", err)
	}
	var s *Server
	switch tier {
	case emulators.TierService:
		s, err = useService(ctx, how.url, opts)
	case emulators.TierContainer:
		s, err = startContainer(ctx, how.container, opts)
	default:
		s, err = startLocal(ctx, how.bin, opts)
	}
	if err != nil {
		return nil, fmt.Errorf("emulators: postgres (%s): %w", tier, err)
	}
	return s, nil
}

// useService uses a running server that this process does not own.
func useService(ctx context.Context, address string, opts *Options) (*Server, error) {
	if opts.Dir != "" {
		return nil, errors.New("a server that is not ours cannot keep its data in " + opts.Dir)
	}
	u, err := parseURL(address)
	if err != nil {
		return nil, err
	}
	s := &Server{engine: emulators.Engine{Name: engineName, Tier: emulators.TierService}, url: u}
	if err := s.admin(ctx, func(c *pgx.Conn) error {
		if s.engine.Version, err = serverVersion(ctx, c); err != nil {
			return err
		}
		return checkSettings(ctx, c, opts)
	}); err != nil {
		return nil, err
	}
	return s, nil
}

// startContainer starts a server in a container.
func startContainer(ctx context.Context, start host.ContainerStart, opts *Options) (*Server, error) {
	container, err := start(ctx)
	if err != nil {
		return nil, err
	}
	s, err := useService(ctx, container.URL(), opts)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", container.Image(), err), container.Close())
	}
	s.engine.Tier, s.container = emulators.TierContainer, container
	return s, nil
}

// parseURL parses the address of a server. It refuses the other form of a connection
// string, with spaces, because the database name cannot be replaced in it safely.
func parseURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return nil, errors.New("the address of the server must have the form postgres://user@host:port/database")
	}
	if _, err := pgx.ParseConfig(address); err != nil {
		return nil, err
	}
	return u, nil
}

// Engine describes the running server.
func (s *Server) Engine() emulators.Engine { return s.engine }

// URL returns the address of the maintenance database, over TCP.
func (s *Server) URL() string { return s.url.String() }

// Address returns the server's host and port, for proxies.
func (s *Server) Address() string {
	config, err := pgx.ParseConfig(s.URL())
	if err != nil { // impossible: the URL was checked at the start
		return s.url.Host
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// databaseURL returns the address of a database of the server.
func (s *Server) databaseURL(name string) string {
	u := *s.url
	query := u.Query()
	query.Del("dbname") // it would override the path
	u.RawQuery = query.Encode()
	u.Path, u.RawPath = "/"+name, ""
	return u.String()
}

// admin runs f on a session of the maintenance database, which is then kept for the next call.
func (s *Server) admin(ctx context.Context, f func(c *pgx.Conn) error) error {
	c, err := s.sessions.take(ctx, s.URL())
	if err != nil {
		return err
	}
	err = f(c)
	return errors.Join(err, s.sessions.put(ctx, c))
}
