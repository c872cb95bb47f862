package spanner

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore"
)

// Options says which database holds the store, and how to reach it.
type Options struct {
	// Project, Instance and Database name the database. It must be in the GoogleSQL
	// dialect, and hold nothing else.
	Project, Instance, Database string
	// Role is the database role of the requests; empty means what the account has.
	Role string
	// Priority is that of all requests: low, medium or high. Unspecified means high.
	Priority spannerpb.RequestOptions_Priority
	// Emulator is the host and port of an emulator: no encryption, no credentials.
	// Empty means the service, or what SPANNER_EMULATOR_HOST says.
	Emulator string
	// Omni is the host and port of a Spanner Omni server without encryption. It goes
	// with no Emulator.
	Omni string
	// NoCreate leaves the database and its schema as they are; opening is refused when
	// one is missing or old. For an account that may not change schemas.
	NoCreate bool
	// RetryTimeout is how long an operation tries again while Spanner cannot be reached,
	// aborts it, or does not answer: 30 seconds by default. The caller's context may end
	// it earlier.
	RetryTimeout time.Duration
	// FeedShards is over how many parts of a table the ends of the feed are spread, which all
	// appends go to: a power of two from 8 to 256. Zero leaves the number as it is, 8 in a new
	// store. It only grows: the highest that a handle was ever opened with counts for all.
	FeedShards int64
	// Clock reads the time of day as this process has it; nil means time.Now. Nothing is
	// judged or stamped by it: the store clock is Spanner's. Tests set it wrong.
	Clock func() time.Time
	// DialOptions are further options of the connections.
	DialOptions []grpc.DialOption
	// Logger hears of what a caller is not told: an epoch that was raised, a purge that
	// another handle left unfinished. Nil means slog.Default.
	Logger *slog.Logger
}

// names are what Spanner's Admin API accepts:
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
			problems = append(problems, badOption(n.field, "%q is none that Spanner takes; write spanner://project/instance/database", n.value))
		}
	}
	if opts.Emulator != "" && opts.Omni != "" {
		problems = append(problems, badOption("emulator", "goes with no omni"))
	}
	if n := opts.FeedShards; n != 0 && (n < shards || n > maxFeedShards || n&(n-1) != 0) {
		problems = append(problems, badOption("feed_shards", "%d is no power of two from %d to %d", n, shards, maxFeedShards))
	}
	if opts.RetryTimeout < time.Millisecond || opts.RetryTimeout > time.Hour {
		problems = append(problems, badOption("retry_timeout", "%v is out of range, the limits are 1ms and 1h", opts.RetryTimeout))
	}
	return opts, errors.Join(problems...)
}

// database is the full name.
func (o *Options) database() string { return o.instance() + "/databases/" + o.Database }
func (o *Options) instance() string {
	return "projects/" + o.Project + "/instances/" + o.Instance
}

func badOption(field, format string, args ...any) error {
	return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}
