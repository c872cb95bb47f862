package postgres

import (
	"errors"
	"log/slog"
	"regexp"
	"time"

	"github.com/tapestore/tapestore/runstore/adapter"
)

// Options adjusts a store; nil means the defaults.
type Options struct {
	// Schema is the database schema that holds the store: "tapestore" by default.
	Schema string
	// NoMigrate leaves the schema as it is. Opening fails if the schema's version is not this
	// program's. It is meant for roles that may not create tables.
	NoMigrate bool
	// Pooled adapts to a proxy that may run each transaction in another session (PgBouncer in
	// transaction mode, AlloyDB's managed pooling): no session settings, no prepared statements, no
	// LISTEN. Every write checks that the server is the one that the epoch belongs to, because the
	// proxy keeps its clients' connections through a failover.
	Pooled bool
	// RetryTimeout is how long an operation retries while the server is unreachable or rejects it
	// temporarily (a restart, a failover, a deadlock): 30 seconds by default. The caller's context
	// may end it earlier.
	RetryTimeout time.Duration
	// StatementTimeout and LockTimeout end statements on the server, also for a caller without a
	// deadline: after 30 and 10 seconds by default. They are not sent through a proxy (see Pooled)
	// or over a caller's pool (see New). In any case a handle cuts a connection on which a statement
	// has no answer one second after StatementTimeout.
	StatementTimeout, LockTimeout time.Duration
	// Logger receives what no caller gets as an error: a raised epoch, a lost connection for
	// notifications. Nil means slog.Default.
	Logger *slog.Logger
	// Clock returns this process's time of day; nil means time.Now. Nothing is judged or stamped by
	// it, because the store clock is the server's. Tests set it wrong.
	Clock func() time.Time
	// Engine is the name that Describe returns: "postgres" by default.
	Engine string
}

// schemaName allows only names that need no escaping in statements, channels and messages.
var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)

func (o *Options) withDefaults() (Options, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Schema == "" {
		opts.Schema = defaultSchema
	}
	if opts.Engine == "" {
		opts.Engine = "postgres"
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&opts.RetryTimeout, 30 * time.Second}, {&opts.StatementTimeout, 30 * time.Second}, {&opts.LockTimeout, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	var problems []error
	if !schemaName.MatchString(opts.Schema) {
		problems = append(problems, adapter.Invalid("schema", "%q is no plain name; it takes up to 40 small letters, digits and underscores", opts.Schema))
	}
	for field, d := range map[string]time.Duration{
		"retry_timeout": opts.RetryTimeout, "statement_timeout": opts.StatementTimeout, "lock_timeout": opts.LockTimeout,
	} {
		if d < time.Millisecond || d > time.Hour {
			problems = append(problems, adapter.Invalid(field, "%v is out of range, the limits are 1ms and 1h", d))
		}
	}
	return opts, errors.Join(problems...)
}
