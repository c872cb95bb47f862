package tapeclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// The defaults of [Options].
const (
	// DefaultRequestTimeout is 10 s: twice the 5 s for which a server at its limit makes a call
	// wait.
	DefaultRequestTimeout = 10 * time.Second
	// DefaultRetryTimeout is the default TTL of a lease: a driver that gets no reply for longer has
	// lost its lease.
	DefaultRetryTimeout = lease.DefaultTTL

	defaultPort    = "7878"
	defaultTLSPort = "443"
)

// Options configures a [Client]. A zero field takes its default; nil Options mean all defaults.
type Options struct {
	// Owner names the process as the owner of leases and claims. The default is the environment
	// variable TAPE_LEASE_OWNER, or else "HOSTNAME:PID". The tokens of their grants distinguish two
	// processes with the same name.
	Owner string
	// Lease configures the leases of runs: TTL, heartbeats, backoff.
	Lease lease.Options
	// RequestTimeout bounds one attempt of a call, on the monotonic clock of this process. Default
	// 10 s.
	RequestTimeout time.Duration
	// RetryTimeout bounds a call with its repeats, except the SetTimer of [Client.FireTimers] after a
	// failed handler. Default 30 s.
	RetryTimeout time.Duration
	// TLS configures TLS for Dial with a tapes:// or grpcs:// URL: authorities of the server, a
	// certificate of the client. By default the authorities of the system are trusted, from TLS 1.2.
	TLS *tls.Config
	// Token returns the bearer token for a call: see TokenFile. Dial sends it only over TLS or to a
	// loopback address. New ignores TLS and Token, which belong to the connection.
	Token func(ctx context.Context) (string, error)
}

// Client is a client of one Tape server. It is safe for concurrent use.
type Client struct {
	opts   Options
	cc     grpc.ClientConnInterface
	closer func() error
	tape   tapepb.TapeClient

	claiming tapepb.TapeClient // on a claimInvoker
}

// pings is the keepalive of a connection with calls in flight: HTTP/2 pings find a connection that was lost
// silently. Without them TCP repeats what it has to send for a quarter of an hour, and a stream without
// traffic never ends.
//
//   - Time is 11 s. gRPC allows no less than 10 s, which is DefaultRequestTimeout: the first look at a connection
//     that was idle could then fall between two attempts of a call, and find no call. The server allows pings every 5 s.
//   - Timeout is 12 s, so that a connection is given up 23 s after the last byte from the server: within
//     the default TTL of a lease and the default RetryTimeout. It exceeds Time, because gRPC then checks twice
//     for an answer. A process that was stopped for longer than Timeout may check before it reads an answer
//     that came meanwhile, and has another second to read it.
//   - A connection without a call is not pinged. It outlasts an outage in which nothing is called, with
//     the grants that a server with --fence connection has stored for it.
var pings = keepalive.ClientParameters{Time: 11 * time.Second, Timeout: 12 * time.Second}

// Dial returns a client of the server at url. The forms are tape://HOST:PORT, grpc://HOST:PORT and
// HOST:PORT for plaintext, by default port 7878, and tapes://HOST:PORT and grpcs://HOST:PORT for
// TLS, by default port 443. The client connects with its first call. It gives up a connection that sends
// nothing for 23 s while a call is in flight, and connects again. On Linux gRPC has the kernel close
// it earlier (TCP_USER_TIMEOUT) if bytes that were sent are not acknowledged for 12 s. The dial options are applied
// last and override those derived from the URL and the options: credentials per call, such as those of
// package google.golang.org/grpc/credentials/oauth, other TLS settings, interceptors, keepalive. Other servers
// may allow fewer pings, by gRPC's default one in 5 minutes, and end a connection with a quiet stream
// (too_many_pings): pass [grpc.WithKeepaliveParams] for them.
//
// Errors: runstore.ErrInvalid for a malformed URL or option, which the error names.
func Dial(url string, opts *Options, dial ...grpc.DialOption) (*Client, error) {
	address, secure, err := parse(url)
	if err != nil {
		return nil, err
	}
	derived, err := opts.credentials(address, secure)
	if err != nil {
		return nil, err
	}
	derived = append(derived, grpc.WithKeepaliveParams(pings))
	conn, err := grpc.NewClient(address, append(derived, dial...)...)
	if err != nil {
		return nil, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "url", Problem: err.Error()}
	}
	c, err := New(conn, opts)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c.closer = conn.Close
	return c, nil
}

// parse returns the address of a URL and whether the URL demands TLS.
func parse(url string) (address string, secure bool, err error) {
	invalid := func(problem string) (string, bool, error) {
		return "", false, &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: "url",
			Problem: fmt.Sprintf("%q %s; want tape://HOST:PORT, tapes://HOST:PORT or HOST:PORT", url, problem),
		}
	}
	scheme, rest, found := strings.Cut(url, "://")
	if !found {
		scheme, rest = "tape", url
	}
	port := defaultPort
	switch scheme {
	case "tape", "grpc":
	case "tapes", "grpcs":
		secure, port = true, defaultTLSPort
	default:
		return invalid("has an unknown scheme")
	}
	if strings.ContainsAny(rest, "/?#@ ") {
		return invalid("has more than a host and a port")
	}
	host := rest
	if h, p, err := net.SplitHostPort(rest); err == nil {
		host, port = h, cmp.Or(p, port)
	} else if strings.Contains(rest, ":") && !strings.HasPrefix(rest, "[") || strings.HasPrefix(rest, "[") && !strings.HasSuffix(rest, "]") {
		return invalid("has a malformed port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return invalid("has a malformed port")
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		host = strings.TrimSuffix(inner, "]")
	}
	if host == "" || strings.ContainsAny(host, "[]") {
		return invalid("has no host")
	}
	return net.JoinHostPort(host, port), secure, nil
}

// New returns a client on a connection that the caller has opened and closes. Without
// [grpc.WithKeepaliveParams] a connection that is lost silently fails calls for a quarter of an hour.
//
// Errors: runstore.ErrInvalid for an option, which the error names.
func New(cc grpc.ClientConnInterface, opts *Options) (*Client, error) {
	c := &Client{cc: cc, closer: func() error { return nil }}
	if opts != nil {
		c.opts = *opts
	}
	c.opts.RequestTimeout = cmp.Or(c.opts.RequestTimeout, DefaultRequestTimeout)
	c.opts.RetryTimeout = cmp.Or(c.opts.RetryTimeout, DefaultRetryTimeout)
	if c.opts.RequestTimeout < 0 || c.opts.RetryTimeout < 0 {
		return nil, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "timeout", Problem: "a timeout is negative"}
	}
	if _, err := lease.New(nil, &c.opts.Lease); err != nil {
		return nil, err
	}
	c.opts.Owner = cmp.Or(c.opts.Owner, os.Getenv("TAPE_LEASE_OWNER"))
	if c.opts.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("name of the owner: %w", err)
		}
		c.opts.Owner = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	c.tape = tapepb.NewTapeClient(&invoker{client: c})
	c.claiming = tapepb.NewTapeClient(&claimInvoker{invoker{client: c}})
	return c, nil
}

// Close closes the connection that [Dial] opened. Calls in flight fail with an unknown outcome.
func (c *Client) Close() error { return c.closer() }

// Owner returns the name under which the client takes leases and claims.
func (c *Client) Owner() string { return c.opts.Owner }

// Tape returns the protocol's RPCs, with repeats after lost replies and with errors of type
// [*Error]. It adds no fence to a request. Streams are those of gRPC, without repeats.
//
// The following writes are repeated only if they were surely not applied: ChargeBudget, SetBudget,
// AppendEvent, CreateSession, DeleteSession, WriteValue at any version, DeleteValue, SendSignal,
// SetTimer, CancelTimer, ListDueTimers with a claim, RegisterReaction, DeregisterReaction, NackTask
// that is not permanent, ReconcileEffect to other statuses than CONFIRMED and FAILED, observations of others
// than CONFIRMED, FAILED and DUPLICATE, EndRun and AwaitSignal without a fence, and reports of dispatches
// and obligations without a generation.
func (c *Client) Tape() tapepb.TapeClient { return c.tape }

// attempt makes one call, bounded by Options.RequestTimeout.
func (c *Client) attempt(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	if ctx.Err() != nil {
		return notSent(ctx, method, req)
	}
	bound, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	return errorOf(ctx, method, req, c.cc.Invoke(bound, method, req, reply, opts...))
}
