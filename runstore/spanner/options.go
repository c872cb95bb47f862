package spanner

import (
	"errors"
	"log/slog"
	"regexp"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore/adapter"
)

// Options names the database that holds the store and configures access to it.
type Options struct {
	// Project, Instance and Database name the database. It must be in the GoogleSQL dialect and
	// must hold no other tables.
	Project, Instance, Database string
	// Role is the database role of all requests; empty means the account's own privileges.
	Role string
	// Priority is the priority of all requests: low, medium or high. Unspecified means high.
	Priority spannerpb.RequestOptions_Priority
	// Emulator is the host and port of an emulator, used without encryption and credentials. Empty
	// means the value of SPANNER_EMULATOR_HOST, or else the service.
	Emulator string
	// Omni is the host and port of a Spanner Omni server without encryption. It excludes Emulator.
	Omni string
	// NoCreate leaves the database and its schema as they are: opening fails if the database is
	// missing or its schema is old. It suits an account that may not change schemas.
	NoCreate bool
	// RetryTimeout is how long an operation is retried while Spanner cannot be reached, aborts it,
	// or does not answer: 30 s by default. The caller's context may end the operation earlier.
	RetryTimeout time.Duration
	// FeedShards is the number of shards that the end of the feed, to which all appends go, is
	// spread over: a power of two from 8 to 256. Zero leaves the number as it is, 8 in a new store.
	// The number only grows: the largest with which any handle was opened applies to all.
	FeedShards int64
	// Clock reads the time of day of this process; nil means time.Now. It never decides about
	// expiry and never stamps data: the store clock is Spanner's. If it jumps ahead during a write
	// under a strict lease, as after a suspend, the write may be attempted again. Tests set it wrong.
	Clock func() time.Time
	// DialOptions are further options of the connections.
	DialOptions []grpc.DialOption
	// Logger records events that no returned error reports: an epoch that was raised, rows of purged
	// runs that could not be deleted, a creation time of the database that the account may not read.
	// Nil means slog.Default.
	Logger *slog.Logger
}

// The names that Spanner's Admin API accepts:
// https://cloud.google.com/spanner/docs/reference/rpc/google.spanner.admin.database.v1
var (
	projectName  = regexp.MustCompile(`^[a-z0-9.:-]{1,100}$`)
	instanceName = regexp.MustCompile(`^[a-z][-a-z0-9]{0,62}[a-z0-9]$`)
	databaseName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,28}[a-z0-9]$`)
)

func (o *Options) withDefaults() (Options, error) {
	opts := *o
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.RetryTimeout == 0 {
		opts.RetryTimeout = 30 * time.Second
	}
	var problems []error
	for _, n := range []struct {
		field, value string
		pattern      *regexp.Regexp
	}{
		{"project", opts.Project, projectName}, {"instance", opts.Instance, instanceName}, {"database", opts.Database, databaseName},
	} {
		if !n.pattern.MatchString(n.value) {
			problems = append(problems, adapter.Invalid(n.field, "%q is none that Spanner takes; write spanner://project/instance/database", n.value))
		}
	}
	if opts.Emulator != "" && opts.Omni != "" {
		problems = append(problems, adapter.Invalid("emulator", "goes with no omni"))
	}
	if n := opts.FeedShards; n != 0 && (n < shards || n > maxFeedShards || n&(n-1) != 0) {
		problems = append(problems, adapter.Invalid("feed_shards", "%d is no power of two from %d to %d", n, shards, maxFeedShards))
	}
	if opts.RetryTimeout < time.Millisecond || opts.RetryTimeout > time.Hour {
		problems = append(problems, adapter.Invalid("retry_timeout", "%v is out of range, the limits are 1ms and 1h", opts.RetryTimeout))
	}
	return opts, errors.Join(problems...)
}

// database returns the database's full name.
func (o *Options) database() string { return o.instance() + "/databases/" + o.Database }
func (o *Options) instance() string {
	return "projects/" + o.Project + "/instances/" + o.Instance
}
