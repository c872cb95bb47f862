package engines

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/faultynetwork"
	"github.com/tapestore/tapestore/emulators"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Postgres makes a database for each case on a running server. params are parameters of a store's
// URL, with which every handle is opened.
func Postgres(server *postgresemulator.Server, params url.Values) conformance.Harness {
	h := conformance.Harness{Tier: server.Engine().Tier, New: func(t conformance.T) conformance.Instance {
		return pgStore{"postgres", NewPostgresDatabase(t, server), params}.instance()
	}}
	if server.Engine().Tier == emulators.TierLocal { // the suite may not kill a server that it did not start
		h.NewServed = func(t conformance.T) (conformance.Instance, conformance.Server) {
			own, err := postgresemulator.Start(t.Context(), nil)
			if err != nil {
				t.Fatalf("start a server: %v", err)
			}
			t.Cleanup(func() {
				if err := own.Close(); err != nil {
					t.Errorf("stop the server: %v", err)
				}
			})
			db, err := own.NewDatabase(t.Context(), "")
			if err != nil {
				t.Fatalf("create a database: %v", err)
			}
			return pgStore{"postgres", db.URL, params}.instance(), own
		}
	}
	return h
}

// NewPostgresDatabase makes a database that holds an empty store, and returns its URL. It copies a
// database that was migrated once.
func NewPostgresDatabase(t conformance.T, server *postgresemulator.Server) string {
	t.Helper()
	template, err := server.Template(t.Context(), "tapestore", func(ctx context.Context, address string) error {
		s, err := OpenPostgres(ctx, address, nil)
		if err != nil {
			return err
		}
		return s.Close()
	})
	if err != nil {
		t.Fatalf("prepare a template database: %v", err)
	}
	db, err := server.NewDatabase(t.Context(), template)
	if err != nil {
		t.Fatalf("create a database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := db.Drop(ctx); err != nil {
			t.Errorf("drop %s: %v", db.Name, err)
		}
	})
	return db.URL
}

// pgStore is the address of a store: a database, the URL parameters of its handles, and the
// URL scheme of the adapter.
type pgStore struct {
	scheme, address string
	params          url.Values
}

// url returns the store's URL, in the database at an address.
func (p pgStore) url(address string) string {
	_, rest, _ := strings.Cut(address, ":")
	return withParams(p.scheme+":"+rest, p.params)
}

// busyMachineTimeout is 5 minutes, ten times the adapters' default. The server or emulator shares
// its machine with the cases: while many of them run, a large write may wait for longer than the
// default, and Spanner's emulator runs one transaction at a time.
const busyMachineTimeout = 5 * time.Minute

func (p pgStore) instance() conformance.Instance {
	patient := p.withBusyTimeouts()
	i := patient.handles()
	i.Network = patient.link
	return i
}

// withBusyTimeouts returns p with busyMachineTimeout as each timeout that params do not set.
func (p pgStore) withBusyTimeouts() pgStore {
	params := busyTimeouts()
	maps.Copy(params, p.params)
	return pgStore{p.scheme, p.address, params}
}

// busyTimeouts returns the URL parameters that set each timeout to busyMachineTimeout.
func busyTimeouts() url.Values {
	params := url.Values{}
	for _, timeout := range []string{"retry_timeout", "statement_timeout", "lock_timeout"} {
		params.Set(timeout, busyMachineTimeout.String())
	}
	return params
}

// handles returns an Instance without a network.
func (p pgStore) handles() conformance.Instance {
	open := func(ctx context.Context) (runstore.RunStore, error) { return runstore.Open(ctx, p.url(p.address)) }
	return conformance.Instance{
		Open: open,
		OpenSkewed: func(ctx context.Context, clock func() time.Time) (runstore.RunStore, error) {
			config, opts, err := p.options()
			if err != nil {
				return nil, err
			}
			opts.Clock = clock
			return openPostgres(ctx, config, opts)
		},
		BlockWriters: func(t conformance.T) (func(ctx context.Context, n int) error, func()) {
			return StallPostgres(t, p.address, p.params.Get("schema"))
		},
		BlockPuts: func(t conformance.T) (func(ctx context.Context, n int) error, func()) {
			return stallPuts(t, p.address, p.params.Get("schema"))
		},
		URL: p.url(p.address),
	}
}

// options returns the options that the store's URL stands for.
func (p pgStore) options() (*pgxpool.Config, *postgres.Options, error) {
	u, err := runstore.ParseURL(p.url(p.address))
	if err != nil {
		return nil, nil, err
	}
	return postgres.ParseURL(u)
}

// link puts a network with faults in front of the server.
func (p pgStore) link(t conformance.T) conformance.Network {
	t.Helper()
	u, err := url.Parse(p.address)
	if err != nil {
		t.Fatalf("the database's URL: %v", err)
	}
	config, err := pgx.ParseConfig(p.address)
	if err != nil {
		t.Fatalf("the database's URL: %v", err)
	}
	network := newLink(t, net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))))
	query := u.Query()
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable") // a TLS negotiation would be a request of its own
	u.Host, u.RawQuery = network.Address(), query.Encode()
	return conformance.Network{
		Open:   func(ctx context.Context) (runstore.RunStore, error) { return runstore.Open(ctx, p.url(u.String())) },
		Faults: network,
	}
}

// newLink returns a proxy with faults in front of host:port.
func newLink(t conformance.T, target string) *faultynetwork.Link {
	t.Helper()
	network, err := faultynetwork.New(t.Context(), target)
	if err != nil {
		t.Fatalf("a network to harm: %v", err)
	}
	t.Cleanup(func() {
		if err := network.Close(); err != nil {
			t.Errorf("end the network: %v", err)
		}
	})
	return network
}

// OpenPostgres opens the store at a database's URL. Its connection pool is small, because a suite
// opens many stores.
func OpenPostgres(ctx context.Context, address string, params url.Values) (runstore.RunStore, error) {
	u, err := runstore.ParseURL(withParams(address, params))
	if err != nil {
		return nil, err
	}
	config, opts, err := postgres.ParseURL(u)
	if err != nil {
		return nil, err
	}
	return openPostgres(ctx, config, opts)
}

func openPostgres(ctx context.Context, config *pgxpool.Config, opts *postgres.Options) (runstore.RunStore, error) {
	s, err := postgres.Open(ctx, config, opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func withParams(address string, params url.Values) string {
	if len(params) == 0 {
		return address
	}
	separator := "?"
	if strings.Contains(address, "?") {
		separator = "&"
	}
	return address + separator + params.Encode()
}

// StallPostgres takes a lock that every writer of a store needs and no reader, as a transaction
// that was left open would, until resume is called. held waits until n transactions wait for the
// lock.
func StallPostgres(t conformance.T, address, schema string) (held func(ctx context.Context, n int) error, resume func()) {
	t.Helper()
	return stallTable(t, address, tableOf(schema, "runs"))
}

// stallPuts does the same with a lock that a write of records needs after it has locked its run's
// row.
func stallPuts(t conformance.T, address, schema string) (held func(ctx context.Context, n int) error, resume func()) {
	t.Helper()
	return stallTable(t, address, tableOf(schema, "records"))
}

func stallTable(t conformance.T, address, table string) (held func(ctx context.Context, n int) error, resume func()) {
	t.Helper()
	conn, resume := lockTable(t, address, table)
	return func(ctx context.Context, n int) error {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			var waiting int
			err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE relation = $1::text::regclass AND NOT granted", table).Scan(&waiting)
			if err != nil || waiting >= n {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}, resume
}

// tableOf returns the qualified name of a table in the store's schema.
func tableOf(schema, table string) string { return cmp.Or(schema, "tapestore") + "." + table }

// lockTable locks a table against writers, in a transaction that stays open until resume is called.
func lockTable(t conformance.T, address, table string) (conn *pgx.Conn, resume func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	resume = sync.OnceFunc(func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Errorf("let the lock go: %v", err)
		}
	})
	t.Cleanup(resume) // a case that fails early must not leave its writers blocked
	for _, statement := range []string{"BEGIN", "LOCK TABLE " + table + " IN EXCLUSIVE MODE"} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return conn, resume
}
