package tapeserver

import (
	"context"
	"log/slog"
	"path"
	"sync/atomic"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"

	"github.com/tapestore/tapestore/internal/clientlimit"
)

// clientAddress returns the IP address of a call's client.
func clientAddress(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return clientlimit.Host(p.Addr.String())
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
