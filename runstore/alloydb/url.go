package alloydb

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/postgres"
)

func init() {
	runstore.Register("alloydb", func(ctx context.Context, u runstore.URL) (runstore.RunStore, error) {
		opts, err := ParseURL(u)
		if err != nil {
			return nil, err
		}
		var s runstore.RunStore
		if opts.ReadPool != "" {
			s, err = OpenWithReadPool(ctx, opts)
		} else {
			s, err = Open(ctx, opts)
		}
		if err != nil {
			return nil, err
		}
		return s, nil
	})
}

var (
	// ownKeys are the keys of AlloyDB.
	ownKeys = []string{"auth", "instance", "ip", "read_pool", "refresh"}
	// storeKeys are the keys of postgres.Options.
	storeKeys = []string{"schema", "migrate", "pooled", "retry_timeout", "statement_timeout", "lock_timeout"}
	// poolKeys are the driver's keys that do not locate the server.
	poolKeys = []string{
		"application_name", "connect_timeout",
		"default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity",
		"pool_max_conns", "pool_min_conns", "pool_min_idle_conns", "pool_max_conn_lifetime", "pool_max_conn_lifetime_jitter",
		"pool_max_conn_idle_time", "pool_health_check_period",
	}
	// hostKeys are the driver's keys that apply to a host only, because the connector does their
	// work.
	hostKeys = []string{
		"channel_binding", "max_protocol_version", "min_protocol_version", "passfile", "require_auth",
		"sslcert", "sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "sslsni",
	}
)

// errForm is returned if the parts of a URL cannot be recognized. It repeats none of them, because
// any may be part of the password.
var errForm = adapter.Invalid("store URL", "of scheme alloydb is not of a known form; write "+
	"alloydb://user@projects/PROJECT/locations/REGION/clusters/CLUSTER/instances/INSTANCE/database?auth=iam or "+
	"alloydb://user:password@host:port/database; in a password write / as %%2F, ? as %%3F, # as %%23, %% as %%25")

// ParseURL parses a store's URL. Its forms are
//
//	alloydb://user@projects/P/locations/R/clusters/C/instances/I/database?auth=iam
//	alloydb://user@/database?instance=projects/P/locations/R/clusters/C/instances/I
//	alloydb://user:password@host:port/database
//
// The first two use the connector. The third is for the Auth Proxy and for an address that the
// caller provides. A host with the name projects needs its port. The keys are those of [Options]
// (auth=iam, ip=public, refresh=lazy, read_pool), of postgres.Options and of the driver. All
// problems are reported together, and never with the password.
func ParseURL(u runstore.URL) (*Options, error) {
	authority, path, _ := strings.Cut(strings.TrimPrefix(u.Address, "//"), "/")
	parsed, err := url.Parse("alloydb:" + u.Address)
	if err != nil || !strings.HasPrefix(u.Address, "//") || strings.ContainsAny(path, "@# =&;") || strings.Contains(authority, "#") {
		return nil, errForm
	}
	for key := range u.Params {
		if strings.ContainsAny(key, "@/:") { // the rest of a password with a question mark
			return nil, errForm
		}
	}
	opts := &Options{Params: url.Values{}}
	problems := []error{
		u.RejectUnknownParams(slices.Concat(ownKeys, storeKeys, poolKeys, hostKeys)...),
		opts.setTarget(parsed, u.Params.Get("instance")),
	}
	if parsed.User != nil {
		opts.User = parsed.User.Username()
		opts.Password, _ = parsed.User.Password()
	}
	problems = append(problems, opts.setKeys(u.Params), opts.check())
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return opts, nil
}

// setTarget sets Instance or Host, and Database, from the URL.
func (o *Options) setTarget(u *url.URL, instance string) error {
	parts := strings.Split(strings.TrimPrefix(u.Path, "/"), "/")
	switch {
	case u.Host == "projects":
		if instance != "" {
			return adapter.Invalid("instance", "is there already, before the question mark")
		}
		if len(parts) != len(instanceForm) { // the first word is the host; the database follows the name
			return errForm
		}
		last := len(parts) - 1
		o.Instance, o.Database = "projects/"+strings.Join(parts[:last], "/"), parts[last]
	case len(parts) != 1:
		return errForm
	default:
		o.Host, o.Instance, o.Database = u.Host, instance, parts[0]
	}
	return nil
}

// setKeys sets the options that the URL's query contains.
func (o *Options) setKeys(params url.Values) error {
	var problems []error
	choose := func(key string, values map[string]func()) {
		v := params.Get(key)
		if set, ok := values[v]; ok {
			set()
		} else if params.Has(key) {
			problems = append(problems, adapter.Invalid(key, "%q is none; write %s", v, strings.Join(slices.Sorted(maps.Keys(values)), " or ")))
		}
	}
	choose("auth", map[string]func(){"iam": func() { o.IAM = true }, "password": func() {}})
	choose("refresh", map[string]func(){"lazy": func() { o.Lazy = true }, "ahead": func() {}})
	o.IP, o.ReadPool = IPPath(params.Get("ip")), params.Get("read_pool")
	store := url.Values{}
	for key, values := range params {
		switch {
		case slices.Contains(storeKeys, key):
			store[key] = values
		case slices.Contains(poolKeys, key), slices.Contains(hostKeys, key):
			o.Params[key] = values
		}
	}
	_, pg, err := postgres.ParseURL(runstore.URL{Scheme: "alloydb", Address: "//localhost/", Params: store})
	o.Postgres = pg
	return errors.Join(append(problems, err)...)
}
