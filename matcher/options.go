package matcher

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// Options configures a Matcher; nil, and each zero field, means the default.
type Options struct {
	// Owner names this replica in the leases of shards. The default is the host's name with random
	// digits.
	Owner string
	// TTL is the TTL of the leases: the time for which the shards of a killed replica wait for
	// another one. Default 10 s; at least 100 ms and at most runstore.MaxTTL.
	TTL time.Duration
	// Heartbeat is the longest time between two renewals of a lease (lease.Options). Default TTL/3.
	Heartbeat time.Duration
	// ListInterval is the time between two reads of the live reactions: the time for which a
	// replica may use an outdated definition. Default 500 ms. Each read costs one request for each
	// page of reactions. While no reaction is live, the interval is TTL (up to 10 s) if that is
	// longer.
	ListInterval time.Duration
	// Requests bounds the requests to the store in flight, except renewals of leases and reads of
	// the feed. Default 16, so that a backlog leaves most of a store's connections to its writers.
	Requests int
	// MeterProvider receives the metrics of the shards' leases (lease.Options); OpenTelemetry's global
	// provider by default.
	MeterProvider metric.MeterProvider
	// Logger receives problems that no client is told about; slog.Default by default.
	Logger *slog.Logger
}

// MinTTL is the shortest Options.TTL: 100 ms, which leaves a holder about 30 ms from one renewal to
// the next.
const MinTTL = 100 * time.Millisecond

const (
	defaultTTL          = 10 * time.Second
	maxIdleInterval     = defaultTTL
	defaultListInterval = 500 * time.Millisecond
	defaultRequests     = 16
)

func (o *Options) resolve() Options {
	var r Options
	if o != nil {
		r = *o
	}
	r.TTL = min(max(cmp.Or(r.TTL, defaultTTL), MinTTL), runstore.MaxTTL)
	r.ListInterval = cmp.Or(r.ListInterval, defaultListInterval)
	r.Requests = cmp.Or(r.Requests, defaultRequests)
	r.Logger = cmp.Or(r.Logger, slog.Default())
	if r.Owner == "" {
		r.Owner = ownName()
	}
	return r
}

// idleInterval returns the time between two reads of the live reactions while there are none. A
// replica that registers a reaction lists it at once (see Matcher.Wake). If that replica is killed,
// the others find the reaction within the time in which they would also acquire its leases.
func (o Options) idleInterval() time.Duration {
	return max(o.ListInterval, min(o.TTL, maxIdleInterval))
}

// keeper returns the options of the leases' keeper.
func (o Options) keeper() *lease.Options {
	return &lease.Options{TTL: o.TTL, Heartbeat: o.Heartbeat, MeterProvider: o.MeterProvider}
}

// ownName returns a unique name for this replica.
func ownName() string {
	host, err := os.Hostname()
	if err != nil || host == "" || len(host) > runstore.MaxOwner/2 {
		host = "matcher"
	}
	b := make([]byte, 4)
	_, _ = rand.Read(b) // never fails
	return host + "/" + hex.EncodeToString(b)
}
