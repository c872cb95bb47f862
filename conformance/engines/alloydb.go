// Package engines makes the stores of this module's server-based engines for the conformance suite,
// in tests and in the command. It can block the writers of a store, set the clocks of processes
// wrong and inject network faults. Package embedded holds the engines that need no server.
package engines

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/alloydbconn"

	"github.com/tapestore/tapestore/conformance"
	alloydbemulator "github.com/tapestore/tapestore/emulators/alloydb"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// AlloyDB makes a database for each case on the server behind a stand-in for AlloyDB. Every handle
// is opened through the connector; opts, if not nil, changes the options of every handle. Other
// processes cannot get the stand-in's connector options, which hold a token and a dial function.
// They open the same store by the server's host, as behind the Auth Proxy.
func AlloyDB(server *alloydbemulator.Server, opts func(o *alloydb.Options)) conformance.Harness {
	// Below the connector everything is the Postgres adapter, whose own suite repeats as often as
	// necessary. A quick run should not pay for that twice.
	return conformance.Harness{Costly: true, Tier: server.Engine().Tier, New: func(t conformance.T) conformance.Instance {
		address := NewPostgresDatabase(t, server.Postgres())
		o, err := AlloyDBOptions(server, address)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if opts != nil {
			opts(o)
		}
		if o.Postgres == nil {
			o.Postgres = &postgres.Options{}
		}
		schema, patient := o.Postgres.Schema, *o.Postgres
		patient.RetryTimeout = cmp.Or(patient.RetryTimeout, busyMachineTimeout)
		patient.StatementTimeout = cmp.Or(patient.StatementTimeout, busyMachineTimeout)
		patient.LockTimeout = cmp.Or(patient.LockTimeout, busyMachineTimeout)
		o.Postgres = &patient
		far := *o
		open := func(ctx context.Context) (runstore.RunStore, error) { return OpenAlloyDB(ctx, o) }
		return conformance.Instance{
			Open: open,
			OpenSkewed: func(ctx context.Context, clock func() time.Time) (runstore.RunStore, error) {
				behind, wrong := *o, patient
				behind.Postgres, wrong.Clock = &wrong, clock
				return OpenAlloyDB(ctx, &behind)
			},
			BlockWriters: func(t conformance.T) (func(ctx context.Context, n int) error, func()) {
				return StallPostgres(t, address, schema)
			},
			BlockPuts: func(t conformance.T) (func(ctx context.Context, n int) error, func()) {
				return stallPuts(t, address, schema)
			},
			URL:     alloydbHostURL(address, schema),
			Network: func(t conformance.T) conformance.Network { return linkToAlloyDB(t, server, far) },
		}
	}}
}

// linkToAlloyDB puts a network with faults between the connector and the primary's proxy. The
// traffic is TLS.
func linkToAlloyDB(t conformance.T, server *alloydbemulator.Server, far alloydb.Options) conformance.Network {
	t.Helper()
	network := newLink(t, "127.0.0.1:1") // placeholder: each dial sets the target
	far.ReadPool = ""
	far.Dialer = append(slices.Clone(far.Dialer), alloydbconn.WithDialFunc(func(ctx context.Context, kind, address string) (net.Conn, error) {
		door, err := server.Door(address)
		if err != nil {
			return nil, err
		}
		network.Retarget(door)
		var dialer net.Dialer
		return dialer.DialContext(ctx, kind, network.Address())
	}))
	return conformance.Network{
		Open:   func(ctx context.Context) (runstore.RunStore, error) { return OpenAlloyDB(ctx, &far) },
		Faults: network,
	}
}

// AlloyDBOptions returns options for a database behind a stand-in, given its URL on the server.
func AlloyDBOptions(server *alloydbemulator.Server, address string) (*alloydb.Options, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	o := &alloydb.Options{
		Instance: server.Instance(), Database: strings.TrimPrefix(u.Path, "/"), User: u.User.Username(),
		Dialer: server.DialerOptions(),
	}
	o.Password, _ = u.User.Password()
	return o, nil
}

// OpenAlloyDB opens the store, with the capabilities that the options enable.
func OpenAlloyDB(ctx context.Context, o *alloydb.Options) (runstore.RunStore, error) {
	if o.ReadPool != "" {
		s, err := alloydb.OpenWithReadPool(ctx, o)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	s, err := alloydb.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func alloydbHostURL(address, schema string) string {
	_, rest, _ := strings.Cut(address, "://")
	params := busyTimeouts()
	if schema != "" {
		params.Set("schema", schema)
	}
	return withParams("alloydb://"+rest, params)
}
