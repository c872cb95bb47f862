package engines

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tapestore/tapestore/conformance"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Target is a running server of a user, on which the suite makes the stores of its cases.
type Target struct {
	Harness conformance.Harness

	about string
	close func() error
}

// String describes the target, as in "postgres 15.18 (service), a database for each case".
func (t *Target) String() string { return t.about }

// Close removes what the cases left and closes the connections.
func (t *Target) Close() error { return t.close() }

// reachBound, 10 s, bounds the first requests to the server. Tests raise it.
var reachBound = 10 * time.Second

// At returns the Target of a store's URL of scheme postgres, alloydb with a host, bigtable or
// spanner. On PostgreSQL, each case gets a database if the user may create databases, or else a
// schema in the URL's database if the user may create schemas. On Bigtable each case gets a table,
// on Spanner a database. At fails if the user may create none of these. The store at the URL itself
// is not touched.
func At(ctx context.Context, u runstore.URL) (*Target, error) {
	switch u.Scheme {
	case "bigtable":
		return bigtableAt(ctx, u)
	case "spanner":
		return spannerAt(ctx, u)
	}
	if err := checkTarget(u); err != nil {
		return nil, err
	}
	address, params := splitURL(u)
	ctx, cancel := context.WithTimeout(ctx, reachBound)
	defer cancel()
	server, err := postgresemulator.At(ctx, address)
	if err != nil {
		return nil, err
	}
	about, err := inspectServer(ctx, address)
	if err != nil {
		return nil, err
	}
	scheme, each := cmp.Or(map[string]string{"postgresql": "postgres"}[u.Scheme], u.Scheme), ""
	var where func(t conformance.T) pgStore
	switch {
	case about.databases:
		each, where = "database", func(t conformance.T) pgStore { return pgStore{scheme, NewPostgresDatabase(t, server), params} }
	case about.schemas:
		each, where = "schema", func(t conformance.T) pgStore { return pgStore{scheme, address, newSchema(t, address, params)} }
	default:
		return nil, fmt.Errorf("%s may create neither databases nor schemas in %s, and each case needs one of its own", about.user, about.database)
	}
	engine := server.Engine()
	engine.Name = scheme
	return &Target{
		Harness: conformance.Harness{Tier: engine.Tier, New: func(t conformance.T) conformance.Instance {
			i := where(t).instance()
			if !about.plainTCP {
				i.Network = nil // faults need to tell answers apart, which is impossible in TLS
			}
			return i
		}},
		about: fmt.Sprintf("%s, a %s for each case", engine, each),
		close: server.Close,
	}, nil
}

// checkTarget returns an error for a URL that names no server on which the cases could have stores.
func checkTarget(u runstore.URL) error {
	if u.Scheme != "alloydb" {
		_, _, err := postgres.ParseURL(u)
		return err
	}
	o, err := alloydb.ParseURL(u)
	if err == nil && o.Instance != "" {
		err = errors.New("an instance is reached through its connector, which cannot say on which server the cases could have databases; " +
			"give a host instead, alloydb://user@host:port/database: the instance's address or that of the Auth Proxy")
	}
	return err
}

// storeKeys are the URL parameters of the adapters, as opposed to the driver's. Those that begin
// with "pool_" are the adapters' too.
var storeKeys = []string{
	"auth", "instance", "ip", "lock_timeout", "migrate", "retry_timeout", "pooled", "read_pool", "refresh", "schema", "statement_timeout",
}

// splitURL splits a URL into the address of the database, with the driver's parameters, and the
// parameters that handles are opened with. The cases' stores are new, so migrate is dropped: they
// are always migrated.
func splitURL(u runstore.URL) (address string, params url.Values) {
	driver, params := url.Values{}, url.Values{"pool_max_conns": {"4"}}
	for key, values := range u.Params {
		if slices.Contains(storeKeys, key) || strings.HasPrefix(key, "pool_") {
			params[key] = values
		} else {
			driver[key] = values
		}
	}
	delete(params, "migrate")
	return withParams("postgres:"+u.Address, driver), params
}

// serverFacts are the user's rights on a server, and how the user is connected.
type serverFacts struct {
	user, database     string
	databases, schemas bool // whether the user may create databases, and schemas
	plainTCP           bool
}

// inspectServer returns the facts about the server at address, for the user that address names.
func inspectServer(ctx context.Context, address string) (s serverFacts, err error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var tls bool
	err = conn.QueryRow(ctx, `SELECT current_user::text, current_database()::text, rolcreatedb OR rolsuper,
		has_database_privilege(current_database(), 'CREATE'), inet_server_addr() IS NOT NULL,
		coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)
		FROM pg_roles WHERE rolname = current_user`).Scan(&s.user, &s.database, &s.databases, &s.schemas, &s.plainTCP, &tls)
	s.plainTCP = s.plainTCP && !tls
	return s, err
}

// newSchema returns params with the name of a new schema for one case. The first handle creates the
// schema; the end of the case drops it.
func newSchema(t conformance.T, address string, params url.Values) url.Values {
	t.Helper()
	name := "tapestore_case_" + strings.ToLower(rand.Text()[:16])
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		conn, err := pgx.Connect(ctx, address)
		if err == nil {
			_, err = conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+name+" CASCADE")
			err = errors.Join(err, conn.Close(ctx))
		}
		if err != nil {
			t.Errorf("drop schema %s: %v", name, err)
		}
	})
	own := maps.Clone(params)
	own.Set("schema", name)
	return own
}
