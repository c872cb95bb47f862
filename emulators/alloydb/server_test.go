package alloydb

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/alloydbconn"
	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
	"github.com/tapestore/tapestore/emulators/postgres"
)

// behind is the server that the tests which run at a time have in common.
var behind struct {
	sync.Mutex
	server *postgres.Server
	users  int
}

// commonPostgres starts the common server, or joins those who use it. The
// last one to leave ends it.
func commonPostgres(t *testing.T) *postgres.Server {
	t.Helper()
	b := &behind
	b.Lock()
	defer b.Unlock()
	if b.users == 0 {
		server, err := postgres.Start(t.Context(), nil)
		emulators.Require(t, err)
		b.server = server
	}
	b.users++
	t.Cleanup(func() {
		b.Lock()
		defer b.Unlock()
		if b.users--; b.users == 0 {
			if err := b.server.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return b.server
}

// startServer starts a stand-in that ends with the test.
func startServer(t *testing.T, opts Options) *Server {
	t.Helper()
	if opts.Postgres == nil && opts.address == "" {
		opts.Postgres = commonPostgres(t)
	}
	s, err := Start(t.Context(), &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func newDialer(t *testing.T, s *Server, opts ...alloydbconn.Option) *alloydbconn.Dialer {
	t.Helper()
	d, err := alloydbconn.NewDialer(t.Context(), append(s.DialerOptions(), opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// connect opens a connection as a user of the connector does.
func connect(t *testing.T, s *Server, d *alloydbconn.Dialer, instance string, opts ...alloydbconn.DialOption) (*pgx.Conn, error) {
	t.Helper()
	url := "postgres://postgres@" + s.address + "/postgres"
	if s.Postgres() != nil {
		url = s.Postgres().URL()
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.TLSConfig, config.Fallbacks = nil, nil
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return d.Dial(ctx, instance, opts...) }
	ctx, cancel := context.WithTimeout(t.Context(), hosttest.Hang)
	defer cancel()
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c, nil
}

// mustConnect connects and runs a query.
func mustConnect(t *testing.T, s *Server, d *alloydbconn.Dialer, instance string, opts ...alloydbconn.DialOption) *pgx.Conn {
	t.Helper()
	c, err := connect(t, s, d, instance, opts...)
	if err != nil {
		t.Fatal(err)
	}
	mustQuery(t, c)
	return c
}

func mustQuery(t *testing.T, c *pgx.Conn) {
	t.Helper()
	var got int
	if err := c.QueryRow(t.Context(), "SELECT 40 + 2").Scan(&got); err != nil || got != 42 {
		t.Fatalf("query: got %d, %v, want 42", got, err)
	}
}

// A Dialer asks the Admin API twice, whatever the login and however many
// connections it makes, and each connection is counted once.
func TestLogin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []alloydbconn.Option
		want Stats
	}{
		"password": {nil, Stats{Password: 2}},
		"IAM":      {[]alloydbconn.Option{alloydbconn.WithIAMAuthN()}, Stats{IAM: 2}},
		"lazy":     {[]alloydbconn.Option{alloydbconn.WithLazyRefresh()}, Stats{Password: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, Options{})
			d := newDialer(t, s, c.opts...)
			mustConnect(t, s, d, s.Instance())
			mustConnect(t, s, d, s.Instance())
			c.want.ConnectionInfo, c.want.Certificates = 1, 1
			c.want.Primary, c.want.PrivateIP, c.want.Open = 2, 2, 2
			if got := s.Stats(); got != c.want {
				t.Errorf("stats:\n got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	for _, c := range []struct {
		name  string
		opt   alloydbconn.DialOption
		count func(Stats) int
	}{
		{"private", alloydbconn.WithPrivateIP(), func(n Stats) int { return n.PrivateIP }},
		{"public", alloydbconn.WithPublicIP(), func(n Stats) int { return n.PublicIP }},
		{"PSC", alloydbconn.WithPSC(), func(n Stats) int { return n.PSC }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDialer(t, s)
			for _, instance := range []string{s.Instance(), s.ReadPool()} {
				mustConnect(t, s, d, instance, c.opt)
			}
			if got := c.count(s.Stats()); got != 2 {
				t.Errorf("connections by this address: %d, want 2", got)
			}
		})
	}
}

func TestReadPoolIsCountedApart(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	d := newDialer(t, s)
	primary := mustConnect(t, s, d, s.Instance())
	pool := mustConnect(t, s, d, s.ReadPool())
	mustConnect(t, s, d, s.ReadPool())
	if got := s.Stats(); got.Primary != 1 || got.ReadPool != 2 {
		t.Errorf("connections: %d to the primary, %d to the read pool, want 1 and 2", got.Primary, got.ReadPool)
	}
	if got := s.Stats(); got.ConnectionInfo != 2 || got.Certificates != 2 {
		t.Errorf("Admin calls: %d and %d, want 2 and 2, one for each instance", got.ConnectionInfo, got.Certificates)
	}
	// Both are the same server.
	if _, err := primary.Exec(t.Context(), "SELECT pg_advisory_lock(7134)"); err != nil {
		t.Fatal(err)
	}
	var free bool
	if err := pool.QueryRow(t.Context(), "SELECT pg_try_advisory_lock(7134)").Scan(&free); err != nil || free {
		t.Errorf("lock that the primary holds, seen from the pool: free %v, %v", free, err)
	}
}

// The version in Engine is a constant; this is what keeps it true.
func TestEngine(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	mustConnect(t, s, newDialer(t, s), s.Instance())
	s.mu.Lock()
	agent := s.userAgent
	s.mu.Unlock()
	if want := "alloydb-go-connector/" + connectorVersion; agent != want {
		t.Errorf("the connector calls itself %q, Engine tells of %q", agent, want)
	}
	got := s.Engine()
	if got.Name != "alloydb" || got.Tier != "emulator" || !strings.HasSuffix(got.Version, " over postgres "+s.Postgres().Engine().Version) {
		t.Errorf("engine: %+v", got)
	}
}
