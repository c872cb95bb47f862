package takeover

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// The defaults of [Options].
const (
	DefaultMaxInFlight = 8
	DefaultMinBackoff  = time.Second
	DefaultMaxBackoff  = 10 * time.Second
)

// MaxInFlight bounds Options.MaxInFlight: each piece of work holds a lease that is renewed.
const MaxInFlight = 10_000

// Options configures a [Worker]. A zero field takes its default; nil Options mean all defaults.
type Options struct {
	// Index is the index that the worker scans. Default runstore.IndexRunnable: runs that want a
	// driver and that no live lease covers. In an index of records, the run of each due record is
	// claimed, unless a live lease covers it.
	Index runstore.IndexName
	// Reactor names the kind of driver in the leases.
	Reactor runstore.Reactor
	// Want reports whether the worker drives a run; nil means every run. It sees the head of the
	// run as of the scan, and must not block.
	Want func(runstore.Run) bool
	// MaxInFlight bounds the pieces of work that run at a time. Default 8, at most [MaxInFlight].
	MaxInFlight int
	// MinBackoff and MaxBackoff bound the pauses between scans that yield nothing, and those before
	// a run whose work has failed is claimed again. Defaults 1 s and 10 s.
	MinBackoff, MaxBackoff time.Duration
	// Cooldown is how long the worker leaves a run alone after it has lost the run's lease: another
	// driver has it, or this process is too slow to keep it. Default MaxBackoff.
	Cooldown time.Duration
	// MaxStall is the MaxStall of the leases (runstore.LeaseSpec): a worker whose work makes no
	// progress for that long loses its lease. Default none.
	MaxStall time.Duration
	// Lease configures the keeper of the leases; nil means its defaults.
	Lease *lease.Options
	// Logger receives what the worker cannot return: scans and claims that failed, and the errors
	// of work. Default slog.Default().
	Logger *slog.Logger
}

// Resolve returns the options with their defaults filled in, except those of Lease; nil means all
// defaults. Its error joins a *runstore.InputError for each invalid field, those of Lease among
// them.
func (o *Options) Resolve() (Options, error) {
	r := Options{}
	if o != nil {
		r = *o
	}
	r.Index = cmp.Or(r.Index, runstore.IndexRunnable)
	r.MaxInFlight = cmp.Or(r.MaxInFlight, DefaultMaxInFlight)
	r.MinBackoff = cmp.Or(r.MinBackoff, min(DefaultMinBackoff, cmp.Or(r.MaxBackoff, DefaultMaxBackoff)))
	r.MaxBackoff = cmp.Or(r.MaxBackoff, max(DefaultMaxBackoff, r.MinBackoff))
	r.Cooldown = cmp.Or(r.Cooldown, r.MaxBackoff)
	r.Logger = cmp.Or(r.Logger, slog.Default())

	var faults []error
	refuse := func(bad bool, field, format string, args ...any) {
		if bad {
			faults = append(faults, &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)})
		}
	}
	refuse(r.Index == runstore.IndexRuns, "index", "%q contains runs that want no driver", r.Index)
	refuse(r.MaxInFlight < 1 || r.MaxInFlight > MaxInFlight, "max in flight", "%d is out of range, the limits are 1 and %d", r.MaxInFlight, MaxInFlight)
	refuse(r.MinBackoff <= 0, "min backoff", "%v is not positive", r.MinBackoff)
	refuse(r.MaxBackoff < r.MinBackoff, "max backoff", "%v is less than the minimum, %v", r.MaxBackoff, r.MinBackoff)
	refuse(r.Cooldown < 0, "cooldown", "%v is negative", r.Cooldown)
	_, leaseErr := r.Lease.Resolve()
	return r, errors.Join(append(faults, leaseErr)...)
}
