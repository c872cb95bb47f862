package postgres

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Options adjusts a store; nil means the defaults.
type Options struct {
	// Schema is the database schema that holds the store: "tapestore" by default.
	Schema string
	// NoMigrate leaves the schema as it is; opening is refused when it is not this
	// program's. For a role that may not create tables.
	NoMigrate bool
	// Pooled is for connections that go through a proxy which hands each
	// transaction to another session (PgBouncer in transaction mode, AlloyDB's
	// managed pooling): no session settings, no prepared statements, no LISTEN.
	Pooled bool
	// RetryTimeout is how long an operation tries again while the server cannot be
	// reached, or turns it away for a moment (a restart, a failover, a deadlock):
	// 30 seconds by default. The caller's context may end it earlier.
	RetryTimeout time.Duration
	// StatementTimeout and LockTimeout end statements on the server that a caller
	// without a deadline would wait for: 30 and 10 seconds by default. They are not
	// sent through a proxy (see Pooled).
	StatementTimeout, LockTimeout time.Duration
	// Logger hears of what a caller is not told: an epoch that was raised, a
	// connection for notifications that was lost. Nil means slog.Default.
	Logger *slog.Logger
	// Clock reads the time of day as this process has it; nil means time.Now. Nothing is
	// judged or stamped by it: the store clock is the server's. Tests set it wrong.
	Clock func() time.Time
	// Engine is what Describe calls the engine: "postgres" by default.
	Engine string
}

// schemaName keeps out what would need care in every statement, channel and
// message.
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
		problems = append(problems, badOption("schema", "%q is no plain name; it takes up to 40 small letters, digits and underscores", opts.Schema))
	}
	for field, d := range map[string]time.Duration{
		"retry_timeout": opts.RetryTimeout, "statement_timeout": opts.StatementTimeout, "lock_timeout": opts.LockTimeout,
	} {
		if d < time.Millisecond || d > time.Hour {
			problems = append(problems, badOption(field, "%v is out of range, the limits are 1ms and 1h", d))
		}
	}
	return opts, errors.Join(problems...)
}

func badOption(field, format string, args ...any) error {
	return &runstore.InputError{Kind: runstore.ErrInvalid, Field: field, Problem: fmt.Sprintf(format, args...)}
}
