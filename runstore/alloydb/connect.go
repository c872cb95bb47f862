package alloydb

import (
	"context"
	"maps"
	"net"
	"net/url"

	"cloud.google.com/go/alloydbconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// route is the way to one instance: through a connector, or by a host.
type route struct {
	*connector // nil for a host
	config     *pgxpool.Config
}

// route prepares the way to the primary or to the read pool. It dials nothing.
func (o *Options) route(ctx context.Context, target string) (route, error) {
	config, err := o.config(target)
	if err != nil || o.Instance == "" {
		return route{config: config}, err
	}
	c, err := newConnector(ctx, target, o.dialerOptions(), o.logger(), o.clock())
	if err != nil {
		return route{}, err
	}
	config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"alloydb"}, nil }
	config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) }
	return route{c, config}, nil
}

// config returns the driver's configuration. It adds the password last, so that no error of the
// driver can contain it.
func (o *Options) config(target string) (*pgxpool.Config, error) {
	params := url.Values{}
	maps.Copy(params, o.Params)
	u := url.URL{Scheme: "postgres", Path: "/" + o.Database}
	if o.User != "" {
		u.User = url.User(o.User)
	}
	if o.Instance == "" {
		u.Host = target
	} else {
		// The connector encrypts. The name only appears in messages.
		params.Set("host", target)
		params.Set("sslmode", "disable")
	}
	u.RawQuery = params.Encode()
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		if params.Has("sslpassword") {
			return nil, adapter.Invalid("store URL", "the driver does not take one of its settings")
		}
		return nil, adapter.Invalid("store URL", "%v", err)
	}
	switch {
	case o.IAM:
		config.ConnConfig.Password = "" // including one that the driver found elsewhere
	case o.Password != "":
		config.ConnConfig.Password = o.Password
	}
	switch {
	case o.MaxConns > 0:
		config.MaxConns = o.MaxConns
	case !params.Has("pool_max_conns"):
		config.MaxConns += postgres.ReservedConns
	}
	return config, nil
}

// dialerOptions returns the options derived from the fields, followed by o.Dialer.
func (o *Options) dialerOptions() []alloydbconn.Option {
	path := alloydbconn.WithPrivateIP()
	switch o.IP {
	case PublicIP:
		path = alloydbconn.WithPublicIP()
	case PSC:
		path = alloydbconn.WithPSC()
	}
	opts := []alloydbconn.Option{alloydbconn.WithUserAgent("tapestore"), alloydbconn.WithDefaultDialOptions(path)}
	if o.IAM {
		opts = append(opts, alloydbconn.WithIAMAuthN())
	}
	if o.Lazy {
		opts = append(opts, alloydbconn.WithLazyRefresh())
	}
	return append(opts, o.Dialer...)
}
