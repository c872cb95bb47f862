package postgres

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
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

// ownKeys are the URL's keys for [Options].
var ownKeys = map[string]func(o *Options, v string) error{
	"schema":            func(o *Options, v string) error { o.Schema = v; return nil },
	"migrate":           func(o *Options, v string) error { return yesNo("migrate", v, &o.NoMigrate, "no") },
	"pooled":            func(o *Options, v string) error { return yesNo("pooled", v, &o.Pooled, "yes") },
	"retry_timeout":     func(o *Options, v string) error { return duration("retry_timeout", v, &o.RetryTimeout) },
	"statement_timeout": func(o *Options, v string) error { return duration("statement_timeout", v, &o.StatementTimeout) },
	"lock_timeout":      func(o *Options, v string) error { return duration("lock_timeout", v, &o.LockTimeout) },
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
	if err := u.RejectUnknownParams(append(slices.Sorted(maps.Keys(ownKeys)), driverKeys...)...); err != nil {
		return nil, nil, err
	}
	opts := &Options{}
	rest := url.Values{}
	for key, values := range u.Params {
		set, own := ownKeys[key]
		if !own {
			rest[key] = values
			continue
		}
		if err := set(opts, values[0]); err != nil {
			return nil, nil, err
		}
	}
	// pgx, like libpq, reads a plus sign literally and not as a space.
	address := "postgres:" + u.Address + "?" + strings.ReplaceAll(rest.Encode(), "+", "%20")
	authority, ok := strings.CutPrefix(u.Address, "//")
	// A database name with these characters is more likely a misplaced password, which the driver's
	// messages would repeat.
	_, database, _ := strings.Cut(authority, "/")
	ok = ok && !strings.ContainsAny(database, "@ =&;")
	if _, err := url.Parse(address); err != nil || !ok { // its message might repeat part of a password
		return nil, nil, badOption("store URL", "write postgres://user:password@host:port/database?key=value, "+
			"with special characters percent-encoded")
	}
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, nil, badOption("store URL", "%s: %s", u, withoutURL(err))
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

// yesNo sets *field to whether v equals sets. It refuses values other than yes and no.
func yesNo(key, v string, field *bool, sets string) error {
	if v != "yes" && v != "no" {
		return badOption(key, "%q is neither yes nor no", v)
	}
	*field = v == sets
	return nil
}

func duration(key, v string, field *time.Duration) error {
	d, err := time.ParseDuration(v)
	if err != nil || d == 0 {
		return badOption(key, "%q is no duration such as 10s", v)
	}
	*field = d
	return nil
}
