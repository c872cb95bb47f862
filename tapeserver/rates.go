package tapeserver

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// maxClients is the number of clients whose rates are kept: 10,000 at about 200 bytes each. Further
// clients share one rate.
const maxClients = 10_000

// rates bounds the calls of each client by a token bucket.
type rates struct {
	limits Limits

	mu      sync.Mutex
	clients map[string]*rate.Limiter
	others  *rate.Limiter // of the clients above maxClients
	sweeps  *rate.Limiter
}

func newRates(limits Limits) *rates {
	r := &rates{limits: limits, clients: map[string]*rate.Limiter{}, sweeps: rate.NewLimiter(1, 1)}
	r.others = r.limiter()
	return r
}

func (r *rates) limiter() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(r.limits.CallsPerSecond), 2*r.limits.CallsPerSecond)
}

// wait waits until the client may begin a call, at most for QueueTimeout, and not after a drain has
// begun.
func (r *rates) wait(ctx context.Context, client string, drain context.Context) error {
	if r.limits.CallsPerSecond == 0 {
		return nil
	}
	turn := r.of(client).Reserve()
	delay := turn.Delay()
	if delay == 0 {
		return nil
	}
	if delay > r.limits.QueueTimeout {
		turn.Cancel()
		return limitError("CallsPerSecond", r.limits.CallsPerSecond, "too many calls of this client")
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-drain.Done():
		return errShuttingDown
	case <-ctx.Done():
		turn.Cancel()
		return status.FromContextError(ctx.Err()).Err()
	}
}

// charge counts a call of the client that is refused for another reason, if the client may begin one.
func (r *rates) charge(client string) {
	if r.limits.CallsPerSecond != 0 {
		r.of(client).Allow()
	}
}

// of returns the bucket of a client. When there are too many, those that are full are forgotten: a new
// one would be full too.
func (r *rates) of(client string) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.clients[client]; l != nil {
		return l
	}
	if len(r.clients) >= maxClients && r.sweeps.Allow() {
		for name, l := range r.clients {
			if l.Tokens() >= float64(l.Burst()) {
				delete(r.clients, name)
			}
		}
	}
	if len(r.clients) >= maxClients {
		return r.others
	}
	l := r.limiter()
	r.clients[client] = l
	return l
}

// clientAddress returns the IP address of a call's client.
func clientAddress(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return host
}

// network returns what the rate of an IP address counts for: the address or, of IPv6, the 64 bits that
// one host may choose its addresses in.
func network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Unmap().Is4() {
		return "address " + address
	}
	return "network " + netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
}

// refusals logs calls that are refused because of their credentials or rights: the first ten, and then
// one per second.
type refusals struct {
	some    *rate.Limiter
	skipped atomic.Int64
}

func newRefusals() *refusals { return &refusals{some: rate.NewLimiter(1, 10)} }

func (r *refusals) log(log *slog.Logger, method, client, principal string, err error) {
	if !r.some.Allow() {
		r.skipped.Add(1)
		return
	}
	log.Warn("refused a call", "method", path.Base(method), "peer", client, "principal", principal,
		"reason", err, "not_logged", r.skipped.Swap(0))
}
