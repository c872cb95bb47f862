package bigtable

import (
	"errors"
	"log/slog"
	"regexp"
	"time"

	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/runstore/adapter"
)

// Options are the options of Open and New: which table holds the store, and how to reach it.
type Options struct {
	// Project, Instance and Table name the table.
	Project, Instance, Table string
	// AppProfile is the app profile of the requests: "default" if empty. It must
	// route to a single cluster and allow single-row transactions.
	AppProfile string
	// Emulator is the host and port of an emulator: no encryption, no credentials.
	// Empty means the service, or what BIGTABLE_EMULATOR_HOST says.
	Emulator string
	// NoCreate leaves the table as it is; opening is refused when it, or one of its
	// families, is missing. For an account that may not change tables.
	NoCreate bool
	// RetryTimeout is how long an operation tries again while Bigtable cannot be
	// reached, or does not answer: 30 seconds by default. The caller's context may
	// end it earlier. Writes of one run wait for each other longer only while
	// Bigtable answers.
	RetryTimeout time.Duration
	// Clock returns the wall-clock time of this process; nil means time.Now. It stamps nothing and
	// decides nothing, because the store clock is Bigtable's; if it jumps ahead during a write under a
	// strict lease, Bigtable's clock is asked again. Tests set it wrong.
	Clock func() time.Time
	// DialOptions are further options of the connections.
	DialOptions []grpc.DialOption
	// Logger receives what no call returns: an epoch that was raised, work in the background that failed.
	// Nil means slog.Default.
	Logger *slog.Logger

	// bound replaces attemptTimeout and maxScanTime in tests, which may run on a slow machine.
	bound time.Duration
	// hot replaces hotBytes in tests, and has cold records rewritten early.
	hot int64
}

// The names that Bigtable's Admin API accepts:
// https://cloud.google.com/bigtable/docs/reference/admin/rpc
var (
	projectName  = regexp.MustCompile(`^[a-z0-9.:-]{1,100}$`)
	instanceName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,32}$`)
	tableName    = regexp.MustCompile(`^[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}$`)
	profileName  = regexp.MustCompile(`^[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}$`)
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
		{"project", opts.Project, projectName}, {"instance", opts.Instance, instanceName}, {"table", opts.Table, tableName},
	} {
		if !n.pattern.MatchString(n.value) {
			problems = append(problems, adapter.Invalid(n.field, "%q is none that Bigtable takes; write bigtable://project/instance/table", n.value))
		}
	}
	if opts.AppProfile != "" && !profileName.MatchString(opts.AppProfile) {
		problems = append(problems, adapter.Invalid("app_profile", "%q is none that Bigtable takes", opts.AppProfile))
	}
	if opts.RetryTimeout < time.Millisecond || opts.RetryTimeout > time.Hour {
		problems = append(problems, adapter.Invalid("retry_timeout", "%v is out of range, the limits are 1ms and 1h", opts.RetryTimeout))
	}
	return opts, errors.Join(problems...)
}
