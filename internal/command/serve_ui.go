package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tapestore/tapestore/inspector"
	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/auth"
)

// listenUI listens on the address of the inspector's page; nil if there is none.
func listenUI(cfg serveConfig, log *slog.Logger) (net.Listener, error) {
	if cfg.ui == "" {
		return nil, nil
	}
	lis, err := net.Listen("tcp", cfg.ui)
	if err != nil {
		return nil, fmt.Errorf("--ui-listen: %w", err)
	}
	if err := cfg.security.checkListener("--ui-listen", lis, log); err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	return lis, nil
}

// serveUI serves the page in the background until stop is called, which closes the listener and
// waits, until its context ends, for the requests that read the store.
func serveUI(lis net.Listener, conns *clientlimit.Conns, store runstore.RunStore, opts tapeserver.Options) (stop func(context.Context)) {
	if lis == nil {
		return func(context.Context) {}
	}
	waits, endWaits := context.WithCancel(context.Background())
	server := newUIServer(store, opts)
	server.BaseContext = func(net.Listener) context.Context { return waits }
	scheme := "http"
	if opts.TLS != nil {
		scheme, server.TLSConfig = "https", browserTLS(opts)
	}
	opts.Logger.Info("inspector", scheme, lis.Addr().String())
	lis = conns.Listen(lis)
	go func() {
		err := error(nil)
		if opts.TLS != nil {
			err = server.ServeTLS(lis, "", "")
		} else {
			err = server.Serve(lis)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			opts.Logger.Warn("the inspector ended", "error", err)
		}
	}()
	return func(ctx context.Context) {
		endWaits()
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // requests are cut; a break of a lease has an unknown outcome then
		}
	}
}

// newUIServer returns the server of the page. The page waits for up to 30 s for a change, and a read
// may take 10 s.
func newUIServer(store runstore.RunStore, opts tapeserver.Options) *http.Server {
	in := &inspector.Options{Authorize: uiAccess(opts), Logger: opts.Logger}
	if opts.Auth != nil {
		// The browser shows its token to this server only, so another name for it exposes nothing.
		in.AllowHost = func(string) bool { return true }
	} else {
		// Without a token, a name that another site points at this address would open the store to
		// that site's scripts. An IP address is no name.
		in.AllowHost = func(host string) bool { return onlyLocal(host) || net.ParseIP(host) != nil }
	}
	return &http.Server{
		Handler: inspector.New(store, in),
		// ReadHeaderTimeout bounds the handshake of TLS too. The defaults are those of tapeserver.Limits.
		ReadHeaderTimeout: cmp.Or(opts.Limits.HandshakeTimeout, 5*time.Second), ReadTimeout: cmp.Or(opts.Limits.ReceiveTimeout, 10*time.Second),
		WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(opts.Logger.Handler(), slog.LevelDebug),
	}
}

// browserTLS returns the TLS of the gRPC port for browsers, some of whose requests use HTTP/1.1.
func browserTLS(opts tapeserver.Options) *tls.Config {
	forBrowsers := func(c *tls.Config) *tls.Config {
		c = c.Clone()
		c.NextProtos = []string{"h2", "http/1.1"}
		return c
	}
	config := forBrowsers(opts.TLS.TLSConfig())
	current := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := current(hello)
		if err != nil {
			return nil, err
		}
		return forBrowsers(c), nil
	}
	return config
}

// requestQueue bounds the time that a request to the page's API waits for its turn, like
// tapeserver.Limits.QueueTimeout that of a call.
const requestQueue = 5 * time.Second

// The reasons in the log for refusals of principals that are known.
var (
	errUILimited = errors.New("the page shows the runs of all tenants, and the principal is limited to some")
	errUIRole    = errors.New("the page needs the role read, and the principal has none")
)

// uiAccess returns the check of a request to the page: the role operate may break leases, read and
// drive may read. A principal that is limited to tenants is refused, because the page shows the runs
// of all. Without authentication every request may read, and none may break a lease. Refusals are
// logged: the first ten, and then one per second.
//
// The requests of a client have the rate of its calls, counted apart from them: those of a principal or,
// without authentication, of an address. A request that is refused counts for its address, and does not
// wait.
func uiAccess(opts tapeserver.Options) func(*http.Request) (inspector.Access, error) {
	some, skipped := rate.NewLimiter(1, 10), &atomic.Int64{}
	rates := clientlimit.NewRates(opts.Limits.CallsPerSecond, requestQueue)
	refuse := func(r *http.Request, principal string, kind, reason error) (inspector.Access, error) {
		rates.Charge(clientlimit.Network(clientlimit.Host(r.RemoteAddr)))
		if !some.Allow() {
			skipped.Add(1)
			return inspector.Access{}, kind
		}
		opts.Logger.Warn("the inspector refused a request", "peer", clientlimit.Host(r.RemoteAddr), "principal", principal,
			"reason", reason, "not_logged", skipped.Swap(0))
		return inspector.Access{}, kind
	}
	return func(r *http.Request) (inspector.Access, error) {
		given := auth.Credentials{Headers: r.Header.Values("Authorization")}
		if opts.TLS != nil && r.TLS != nil {
			if err := opts.TLS.CheckClient(*r.TLS); err != nil { // revoked since the handshake
				return refuse(r, "", inspector.ErrUnauthenticated, err)
			}
			if opts.TLS.Mutual() && len(r.TLS.VerifiedChains) > 0 {
				given.Certificate = r.TLS.PeerCertificates[0]
			}
		}
		if opts.Auth == nil {
			return inTurn(r, rates, clientlimit.Network(clientlimit.Host(r.RemoteAddr)), inspector.Access{Permission: inspector.Read})
		}
		p, err := opts.Auth.Authenticate(r.Context(), given)
		switch {
		case errors.Is(err, auth.ErrUnauthenticated):
			return refuse(r, "", inspector.ErrUnauthenticated, err)
		case err != nil:
			return inspector.Access{}, err
		case p.Limited():
			return refuse(r, p.Name, inspector.ErrForbidden, errUILimited)
		case p.Role < auth.Read:
			return refuse(r, p.Name, inspector.ErrForbidden, errUIRole)
		case p.Role < auth.Operate:
			return inTurn(r, rates, "principal "+p.Name, inspector.Access{Permission: inspector.Read, Operator: p.Name})
		default:
			return inTurn(r, rates, "principal "+p.Name, inspector.Access{Permission: inspector.Break, Operator: p.Name})
		}
	}
}
