package postgres

import (
	"context"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

func init() {
	for _, scheme := range []string{"postgres", "postgresql"} {
		runstore.Register(scheme, func(ctx context.Context, u runstore.URL) (runstore.RunStore, error) {
			config, opts, err := ParseURL(u)
			if err != nil {
				return nil, err
			}
			s, err := Open(ctx, config, opts)
			if err != nil {
				return nil, err
			}
			return s, nil
		})
	}
}

// driverKeys are the keys that pgx handles. pgx sends other keys to the server as settings, so a
// misspelt one would fail late or never.
var driverKeys = []string{
	"host", "port", "user", "password", "passfile", "dbname", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword", "sslsni",
	"sslnegotiation", "channel_binding", "krbspn", "krbsrvname", "service", "servicefile", "connect_timeout",
	"application_name", "target_session_attrs", "require_auth", "min_protocol_version", "max_protocol_version",
	"default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity",
	"pool_max_conns", "pool_min_conns", "pool_min_idle_conns", "pool_max_conn_lifetime", "pool_max_conn_lifetime_jitter",
	"pool_max_conn_idle_time", "pool_health_check_period",
}

// ParseURL parses postgres://user:password@host:port/database?key=value&… The keys are those of pgx
// and those of [Options]: schema, migrate=no, pooled=yes, retry_timeout, statement_timeout,
// lock_timeout. Its errors never contain the URL.
func ParseURL(u runstore.URL) (*pgxpool.Config, *Options, error) {
	opts, rest := &Options{}, url.Values{}
	params := map[string]func(value string) error{
		"schema":            adapter.Text(&opts.Schema),
		"migrate":           adapter.YesNo("migrate", &opts.NoMigrate, "no"),
		"pooled":            adapter.YesNo("pooled", &opts.Pooled, "yes"),
		"retry_timeout":     adapter.Duration("retry_timeout", &opts.RetryTimeout),
		"statement_timeout": adapter.Duration("statement_timeout", &opts.StatementTimeout),
		"lock_timeout":      adapter.Duration("lock_timeout", &opts.LockTimeout),
	}
	for _, key := range driverKeys {
		params[key] = func(value string) error {
			rest.Set(key, value)
			return nil
		}
	}
	if err := adapter.ReadParams(u, params); err != nil {
		return nil, nil, err
	}
	// pgx, like libpq, reads a plus sign literally and not as a space.
	address := "postgres:" + u.Address + "?" + strings.ReplaceAll(rest.Encode(), "+", "%20")
	authority, ok := strings.CutPrefix(u.Address, "//")
	// A database name with these characters is more likely a misplaced password, which the driver's
	// messages would repeat.
	_, database, _ := strings.Cut(authority, "/")
	ok = ok && !strings.ContainsAny(database, "@ =&;")
	if _, err := url.Parse(address); err != nil || !ok { // its message might repeat part of a password
		return nil, nil, adapter.Invalid("store URL", "write postgres://user:password@host:port/database?key=value, "+
			"with special characters percent-encoded")
	}
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, nil, adapter.Invalid("store URL", "%s: %s", u, withoutURL(err))
	}
	if !rest.Has("pool_max_conns") {
		config.MaxConns += ReservedConns // the driver's default is for commits
	}
	return config, opts, nil
}

// withoutURL returns the part of a pgx error that does not repeat the URL.
func withoutURL(err error) string {
	_, words, found := strings.Cut(err.Error(), "`: ")
	if !found {
		return "the driver cannot read it"
	}
	return words
}
