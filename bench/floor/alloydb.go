package floor

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/url"

	"cloud.google.com/go/alloydbconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// OpenAlloyDB creates the schema in AlloyDB, over connections like the store's: through a connector
// of its own with the same options, or to the same host.
func OpenAlloyDB(ctx context.Context, opts *alloydb.Options) (*Postgres, error) {
	params := url.Values{}
	maps.Copy(params, opts.Params)
	u := url.URL{Scheme: "postgres", Host: opts.Host, Path: "/" + opts.Database}
	if opts.User != "" {
		u.User = url.User(opts.User)
	}
	if opts.Instance != "" { // the connector encrypts
		params.Set("host", "alloydb")
		params.Set("sslmode", "disable")
	}
	u.RawQuery = params.Encode()
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, errors.New("floor: the driver does not take the settings of the store's URL") // the driver's message could contain a password
	}
	switch {
	case opts.IAM:
		config.ConnConfig.Password = ""
	case opts.Password != "":
		config.ConnConfig.Password = opts.Password
	}
	switch {
	case opts.MaxConns > 0:
		config.MaxConns = opts.MaxConns
	case !params.Has("pool_max_conns"):
		config.MaxConns += postgres.ReservedConns
	}
	if opts.Instance == "" {
		return OpenPostgres(ctx, config)
	}
	dialer, err := alloydbconn.NewDialer(context.WithoutCancel(ctx), dialerOptions(opts)...)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"alloydb"}, nil }
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.Dial(ctx, opts.Instance) }
	return openPostgres(ctx, config, dialer.Close)
}

// dialerOptions returns the options derived from the fields, followed by the given ones, which
// override them.
func dialerOptions(opts *alloydb.Options) []alloydbconn.Option {
	path := alloydbconn.WithPrivateIP()
	switch opts.IP {
	case alloydb.PublicIP:
		path = alloydbconn.WithPublicIP()
	case alloydb.PSC:
		path = alloydbconn.WithPSC()
	}
	all := []alloydbconn.Option{alloydbconn.WithUserAgent("tapestore-bench"), alloydbconn.WithDefaultDialOptions(path)}
	if opts.IAM {
		all = append(all, alloydbconn.WithIAMAuthN())
	}
	if opts.Lazy {
		all = append(all, alloydbconn.WithLazyRefresh())
	}
	return append(all, opts.Dialer...)
}
