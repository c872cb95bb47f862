package lease

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/runstore"
)

// The defaults of [Options]. Heartbeat, Margin and RequestTimeout are derived from the TTL.
const (
	DefaultTTL            = 30 * time.Second
	DefaultReleaseTimeout = 5 * time.Second
	DefaultMinBackoff     = time.Second
	DefaultMaxBackoff     = 10 * time.Second
)

// Options configures a [Keeper]. A zero field takes its default; nil Options mean all defaults.
type Options struct {
	// TTL is how long a grant or renewal lasts on the store clock. It is also how long a run waits
	// for a successor when its holder dies. Default 30 s; between runstore.MinTTL and
	// runstore.MaxTTL.
	TTL time.Duration
	// Heartbeat is the longest time between sending a renewal that succeeds and sending the next.
	// Default TTL/3, so that the lease survives two failed renewals. Each interval is drawn from
	// 0.8 to 1.0 of Heartbeat, the first after a grant from 0.5 to 1.0, so that leases granted
	// together do not renew together.
	Heartbeat time.Duration
	// Margin is how much the trusted time is shorter than the TTL. Default TTL/10. It must cover
	// the drift between two clocks within one TTL, plus the time that the work needs to stop once
	// its context has ended. On Bigtable, whose clock a handle knows from replies only, a TTL may begin
	// before the request, by up to a round trip: at most 1 s or TTL/16, whichever is less. A strict
	// lease may end up to TTL/4 early there, so with a TTL under 10 s it needs a Margin of TTL/4.
	Margin time.Duration
	// RequestTimeout bounds each attempt to acquire or renew. Default Heartbeat/2; attempts near
	// the end of the trusted time get less.
	RequestTimeout time.Duration
	// ReleaseTimeout bounds the release, retries included. Default 5 s.
	ReleaseTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pauses between the requests of a waiting contender.
	// Defaults 1 s and 10 s.
	MinBackoff, MaxBackoff time.Duration
	// Handoff is how [Keeper.Hold] answers a successor that requests the lease
	// ([Keeper.RequestHandoff]). Default NoHandoff. Otherwise the keeper looks for a request at
	// least once in each Heartbeat, and soon after writes to the run where the store announces them
	// (runstore.RunNotifier); each look is one read.
	Handoff HandoffMode
	// DrainTimeout bounds how long a Gap handoff waits for the work: after that the lease is handed
	// off while the work runs, as in Overlap. Default TTL.
	DrainTimeout time.Duration
	// MeterProvider receives the metrics of the leases that the keeper holds: which are held, how
	// each ended, failed renewals and handoffs, by reactor (docs/observability.md). Default
	// OpenTelemetry's global provider.
	MeterProvider metric.MeterProvider
	// Grace lets leases survive an outage of the store. Default 0, none.
	//
	// A holder whose renewals fail because the store cannot be reached goes on for Grace after its
	// trusted time: [Held.Trusted] is false, its heartbeats go on, and a renewal that succeeds makes
	// the lease trusted again. Its work may then run while another holder's does, whose contender
	// has no Grace or began after the outage; the store refuses its writes from that grant on. The
	// holder of a strict lease has no grace.
	//
	// A contender that was refused a live lease reads the head of the run from then on, and requests the
	// lease only when the head shows that it is free or has expired: a server that was frozen would
	// perform a request of before the outage after it.
	//
	// A contender that could not reach the store for a quarter of the TTL leaves an expired lease to its
	// holder at first: for Grace or the TTL, the shorter of both, and up to half more, from the first
	// answer. It acquires a lease at once that is free, or that the holder has renewed and let
	// expire since.
	Grace time.Duration
}

// Resolve returns the options with their defaults filled in; nil means all defaults. Its error joins
// a *runstore.InputError for each invalid field. [New] returns that error, too.
func (o *Options) Resolve() (Options, error) {
	r := Options{}
	if o != nil {
		r = *o
	}
	setDefault(&r.TTL, DefaultTTL)
	setDefault(&r.Heartbeat, r.TTL/3)
	setDefault(&r.Margin, r.TTL/10)
	setDefault(&r.RequestTimeout, r.Heartbeat/2)
	setDefault(&r.ReleaseTimeout, DefaultReleaseTimeout)
	setDefault(&r.DrainTimeout, r.TTL)
	setDefault(&r.MinBackoff, min(DefaultMinBackoff, orMax(r.MaxBackoff)))
	setDefault(&r.MaxBackoff, max(DefaultMaxBackoff, r.MinBackoff))

	var faults []error
	refuse := func(bad bool, field, format string, args ...any) {
		if bad {
			faults = append(faults, &runstore.InputError{
				Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...),
			})
		}
	}
	refuse(r.TTL < runstore.MinTTL || r.TTL > runstore.MaxTTL, "ttl",
		"%v is out of range, the limits are %v and %v", r.TTL, runstore.MinTTL, runstore.MaxTTL)
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"heartbeat", r.Heartbeat}, {"margin", r.Margin}, {"request timeout", r.RequestTimeout},
		{"release timeout", r.ReleaseTimeout}, {"drain timeout", r.DrainTimeout}, {"min backoff", r.MinBackoff}, {"max backoff", r.MaxBackoff},
	} {
		refuse(d.value <= 0, d.field, "%v is not positive", d.value)
	}
	refuse(r.Grace < 0, "grace", "%v is negative", r.Grace)
	refuse(r.Margin >= r.TTL, "margin", "%v leaves nothing of a TTL of %v", r.Margin, r.TTL)
	refuse(r.RequestTimeout >= r.TTL-r.Margin-r.Heartbeat, "heartbeat",
		"a renewal that starts after %v and may take %v does not fit into the trusted time of %v (TTL less margin)",
		r.Heartbeat, r.RequestTimeout, r.TTL-r.Margin)
	refuse(r.MaxBackoff < r.MinBackoff, "max backoff", "%v is less than the minimum, %v", r.MaxBackoff, r.MinBackoff)
	refuse(r.Handoff < NoHandoff || r.Handoff > Overlap, "handoff", "%d is none of NoHandoff, Gap and Overlap", int(r.Handoff))
	return r, errors.Join(faults...)
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// orMax returns d, or DefaultMaxBackoff if d is not set.
func orMax(d time.Duration) time.Duration {
	if d <= 0 {
		return DefaultMaxBackoff
	}
	return d
}
