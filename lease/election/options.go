package election

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// DefaultAcquireInterval is the default of Options.AcquireInterval.
const DefaultAcquireInterval = 5 * time.Second

// ReplicaVariable names the environment variable with the name of this replica.
const ReplicaVariable = "TAPESTORE_REPLICA_ID"

// Options configures a [Coordinator]. A zero field takes its default; nil Options mean all defaults.
type Options struct {
	// Replica names this replica in the lease. Default [ReplicaID].
	Replica runstore.Owner
	// Reactor names the kind of driver in the lease.
	Reactor runstore.Reactor
	// TTL is how long a grant or renewal lasts on the store clock. Default 30 s.
	TTL time.Duration
	// Heartbeat is the longest time between two renewals (lease.Options). Default TTL/3.
	Heartbeat time.Duration
	// AcquireInterval is the longest time between two requests of a standby. Default 5 s. A standby
	// also requests the lease right after its expiry and, where the store announces it, after its
	// release.
	AcquireInterval time.Duration
	// MaxStall is how long the active replica may make no progress (runstore.LeaseSpec) before it
	// loses its lease. Default none.
	MaxStall time.Duration
	// ReleaseTimeout bounds the release, retries included. Default 5 s.
	ReleaseTimeout time.Duration
	// Handoff is how the active replica answers one that requests its lease: see lease.HandoffMode.
	// Default lease.NoHandoff. It is a standby then, as after [Coordinator.StepDown].
	Handoff lease.HandoffMode
	// RequestHandoff makes this replica request the lease from the active one until it has had its
	// first term: for a new version that is to replace the active one without an idle time.
	RequestHandoff bool
	// OnChange is called after each change of [Status], in order, on the goroutine of Run. It must
	// not block. Nil means no calls.
	OnChange func(Status)
	// MeterProvider receives the metrics of the leases (lease.Options); OpenTelemetry's global provider
	// by default.
	MeterProvider metric.MeterProvider
	// Logger receives the changes of Status, and why the run could not be created. Requests for the
	// lease that fail are repeated silently. Default slog.Default().
	Logger *slog.Logger
}

// Resolve returns the options with their defaults filled in; nil means all defaults. Its error joins
// a *runstore.InputError for each invalid field.
func (o *Options) Resolve() (Options, error) {
	r, leases, err := o.resolve()
	keeper, leaseErr := leases.Resolve()
	r.Heartbeat, r.ReleaseTimeout = keeper.Heartbeat, keeper.ReleaseTimeout
	return r, errors.Join(err, leaseErr)
}

// resolve returns the options with their defaults filled in, except those that the keeper has too,
// and the options of the keeper.
func (o *Options) resolve() (Options, *lease.Options, error) {
	r := Options{}
	if o != nil {
		r = *o
	}
	if r.Replica == "" {
		r.Replica = ReplicaID()
	}
	r.TTL = cmp.Or(r.TTL, lease.DefaultTTL)
	r.AcquireInterval = cmp.Or(r.AcquireInterval, DefaultAcquireInterval)
	r.Logger = cmp.Or(r.Logger, slog.Default())
	var err error
	if r.AcquireInterval < 0 {
		err = errors.Join(err, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "acquire interval", Problem: fmt.Sprintf("%v is negative", r.AcquireInterval)})
		r.AcquireInterval = DefaultAcquireInterval
	}
	return r, &lease.Options{
		TTL: r.TTL, Heartbeat: r.Heartbeat, ReleaseTimeout: r.ReleaseTimeout, Handoff: r.Handoff, MeterProvider: r.MeterProvider,
		// The first pause is a fifth of the longest: a standby that just missed a release looks soon.
		MinBackoff: max(r.AcquireInterval/5, 1), MaxBackoff: r.AcquireInterval,
	}, err
}

// ReplicaID returns a name for this replica: the value of TAPESTORE_REPLICA_ID, or else the host's
// name, or else a random name. Replicas that share a host need distinct values of the variable:
// the store distinguishes their leases without it, but a Status does not.
func ReplicaID() runstore.Owner {
	host, _ := os.Hostname() // without one the name is random
	return runstore.Owner(cmp.Or(os.Getenv(ReplicaVariable), host, "replica-"+rand.Text()))
}
