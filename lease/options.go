package lease

import (
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The defaults of [Options].
const (
	DefaultTTL            = 30 * time.Second
	DefaultReleaseTimeout = 5 * time.Second
	DefaultMinBackoff     = time.Second
	DefaultMaxBackoff     = 10 * time.Second
)

// Options adjusts a [Keeper]. A zero field has its default; nil Options are all
// defaults.
type Options struct {
	// TTL is how long a grant or renewal lasts on the store clock, and so how
	// long a run waits for a successor when its holder dies. 30 s by default;
	// from runstore.MinTTL to runstore.MaxTTL.
	TTL time.Duration
	// Heartbeat is the longest time from one successful renewal's request to the next
	// renewal. TTL/3 by default, so that two may fail and the lease lives. Each interval is
	// drawn between 0.8 and 1.0 of it, the first one after the grant between 0.5 and 1.0:
	// leases that were granted together do not renew together.
	Heartbeat time.Duration
	// Margin is what a holder's trust is shorter than the TTL. TTL/10 by default.
	// It must cover the drift of two clocks within one TTL and the time that the
	// work needs to stop once its context has ended.
	Margin time.Duration
	// RequestTimeout bounds each attempt to acquire or renew. Heartbeat/2 by
	// default; near the end of the trusted time attempts get less.
	RequestTimeout time.Duration
	// ReleaseTimeout bounds the release, retries included. 5 s by default.
	ReleaseTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pauses of a contender that waits for a
	// lease. They grow from 1 s to 10 s by default.
	MinBackoff, MaxBackoff time.Duration
}

// resolve fills in the defaults and checks the whole, telling all faults.
func (o *Options) resolve() (Options, error) {
	r := Options{}
	if o != nil {
		r = *o
	}
	setDefault(&r.TTL, DefaultTTL)
	setDefault(&r.Heartbeat, r.TTL/3)
	setDefault(&r.Margin, r.TTL/10)
	setDefault(&r.RequestTimeout, r.Heartbeat/2)
	setDefault(&r.ReleaseTimeout, DefaultReleaseTimeout)
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
		{"release timeout", r.ReleaseTimeout}, {"min backoff", r.MinBackoff}, {"max backoff", r.MaxBackoff},
	} {
		refuse(d.value <= 0, d.field, "%v is not positive", d.value)
	}
	refuse(r.Margin >= r.TTL, "margin", "%v leaves nothing of a TTL of %v", r.Margin, r.TTL)
	refuse(r.Heartbeat+r.RequestTimeout >= r.TTL-r.Margin, "heartbeat",
		"a renewal that starts after %v and may take %v does not fit into the trusted time of %v (TTL less margin)",
		r.Heartbeat, r.RequestTimeout, r.TTL-r.Margin)
	refuse(r.MaxBackoff < r.MinBackoff, "max backoff", "%v is less than the minimum, %v", r.MaxBackoff, r.MinBackoff)
	return r, errors.Join(faults...)
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// orMax lets an unset upper bound bound nothing.
func orMax(d time.Duration) time.Duration {
	if d <= 0 {
		return DefaultMaxBackoff
	}
	return d
}
