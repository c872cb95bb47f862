package group

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// The limits of a group (I12).
const (
	// MaxName is the longest name of a group or a member, in bytes: the ids of their runs stay within
	// runstore.MaxRunID.
	MaxName = 96
	// MaxAttributes is the largest size of a member's attributes, in bytes.
	MaxAttributes = 4 << 10
	// MaxShards is the largest number of shards.
	MaxShards = 4096
	// MaxInFlight bounds Options.MaxInFlight.
	MaxInFlight = 1000
)

// The defaults of [Options].
const (
	DefaultInterval    = 5 * time.Second
	DefaultHysteresis  = time.Second
	DefaultMaxInFlight = 16
)

// Options configures a [Group]. A zero field takes its default; nil Options mean all defaults.
type Options struct {
	// TTL is how long a lease lasts on the store clock, that of a member and those of its shards.
	// Default 30 s.
	TTL time.Duration
	// Interval is the longest time between two reads of the members. Default 5 s or a third of the TTL,
	// the shorter of both. The members are also read right after an expiry and, where the store announces
	// writes to a run (runstore.RunNotifier), after a change.
	Interval time.Duration
	// Hysteresis is how long, on the store clock, a member has to be present or absent without a
	// break before its shards move. Default 1 s. It adds to the time in which the shards of a dead
	// member have no owner.
	Hysteresis time.Duration
	// MaxInFlight bounds the requests for leases that are in flight at a time. Default 16, at most
	// [MaxInFlight].
	MaxInFlight int
	// ReleaseTimeout bounds each release, retries included. Default 5 s.
	ReleaseTimeout time.Duration
	// MeterProvider receives the metrics of the leases (lease.Options); OpenTelemetry's global provider
	// by default.
	MeterProvider metric.MeterProvider
	// Logger receives what a member cannot return: reads and removals that failed, and the errors of
	// the work on shards. Default slog.Default().
	Logger *slog.Logger
}

// resolve returns the options with their defaults filled in, and the options of the keeper. Its error
// lists every invalid field that the keeper does not check.
func (o *Options) resolve() (Options, *lease.Options, error) {
	r := Options{}
	if o != nil {
		r = *o
	}
	r.TTL = cmp.Or(r.TTL, lease.DefaultTTL)
	r.Interval = cmp.Or(r.Interval, max(min(DefaultInterval, r.TTL/3), 1))
	r.Hysteresis = cmp.Or(r.Hysteresis, DefaultHysteresis)
	r.MaxInFlight = cmp.Or(r.MaxInFlight, DefaultMaxInFlight)
	r.Logger = cmp.Or(r.Logger, slog.Default())

	err := errors.Join(
		invalidIf(r.Interval < 0, "interval", "%v is negative", r.Interval),
		invalidIf(r.Hysteresis < 0, "hysteresis", "%v is negative", r.Hysteresis),
		invalidIf(r.MaxInFlight < 1 || r.MaxInFlight > MaxInFlight, "max in flight", "%d is out of range, the limits are 1 and %d", r.MaxInFlight, MaxInFlight),
	)
	interval := max(r.Interval, 1)
	return r, &lease.Options{
		TTL: r.TTL, ReleaseTimeout: r.ReleaseTimeout, MeterProvider: r.MeterProvider,
		// The request after an expiry comes up to half of the minimum later: 125 ms by default.
		MinBackoff: max(interval/20, 1), MaxBackoff: interval,
	}, err
}

// invalidIf returns an error that names an invalid field.
func invalidIf(bad bool, field, format string, args ...any) error {
	if !bad {
		return nil
	}
	return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}

// tooLargeIf returns an error that names a field beyond its limit.
func tooLargeIf(bad bool, field, format string, args ...any) error {
	if !bad {
		return nil
	}
	return &runstore.InputError{Kind: runstore.ErrTooLarge, Field: field, Problem: fmt.Sprintf(format, args...)}
}
