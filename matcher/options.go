package matcher

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"os"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// Options adjusts a Matcher; nil, and each zero field, means the default.
type Options struct {
	// Owner names this replica in the leases of shards. By default it is the host's name with random digits.
	Owner string
	// TTL is that of the leases, and so how long the shards of a replica that was killed wait for another
	// one. 10 s by default; at least 100 ms and at most runstore.MaxTTL.
	TTL time.Duration
	// ListInterval is the time between two reads of the live reactions, and so how long a replica may go
	// on with a definition that has changed. 500 ms by default. Each read costs one request to the store for each
	// page of reactions. While no reaction is live, the time is that of TTL if it is longer, but 10 s at most.
	ListInterval time.Duration
	// Requests bounds the requests to the store in flight, renewals of leases and reads of the feed excepted: 16 by
	// default, so that a backlog leaves most of a store's connections to its writers.
	Requests int
	// Logger records what no client sees; slog.Default by default.
	Logger *slog.Logger
}

// MinTTL is the shortest Options.TTL: 100 ms, which leaves a holder 30 ms from one renewal to the next.
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

// idleInterval is the time between two reads of the live reactions while there are none. A replica that registers a
// reaction has it listed at once (see Matcher.Wake). If it is killed then, the others find the reaction within the time after which
// they get its leases.
func (o Options) idleInterval() time.Duration {
	return max(o.ListInterval, min(o.TTL, maxIdleInterval))
}

// keeper returns the options of the keeper of the shards' leases.
func (o Options) keeper() *lease.Options { return &lease.Options{TTL: o.TTL} }

// ownName returns a name that no other replica has.
func ownName() string {
	host, err := os.Hostname()
	if err != nil || host == "" || len(host) > runstore.MaxOwner/2 {
		host = "matcher"
	}
	b := make([]byte, 4)
	_, _ = rand.Read(b) // it never fails
	return host + "/" + hex.EncodeToString(b)
}
