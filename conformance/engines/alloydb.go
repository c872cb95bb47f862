// Package engines makes stores of this module's engines that need a server, for the
// conformance suite, in tests and in the command. It has the means to hold up their
// writers, to set their processes' clocks wrong and to harm their networks. The engines
// without a server are in package embedded.
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
	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// AlloyDB makes a database for each case on the server behind a stand-in for AlloyDB.
// Every handle is opened through the connector; opts, if not nil, changes what it is
// opened with. Other processes cannot have the stand-in's options of the connector,
// which hold a token and a way of dialling, so they open the same store as behind the
// Auth Proxy: by the server's host.
func AlloyDB(server *emulators.AlloyDBServer, opts func(o *alloydb.Options)) conformance.Harness {
	// Below the connector all is Postgres's own adapter, whose suite repeats as often as it
	// must: a quick run is not to pay for that twice.
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
		far := *o
		o.Postgres = &patient
		open := func(ctx context.Context) (runstore.RunStore, error) { return OpenAlloyDB(ctx, o) }
		return conformance.Instance{
			Open: open,
			OpenSkewed: func(ctx context.Context, clock func() time.Time) (runstore.RunStore, error) {
				behind, wrong := *o, patient
				behind.Postgres, wrong.Clock = &wrong, clock
				return OpenAlloyDB(ctx, &behind)
			},
			BlockWriters: func(t conformance.T) func() { return StallPostgres(t, address, schema) },
			BlockPuts: func(t conformance.T) (func(ctx context.Context, n int) error, func()) {
				return stallPuts(t, address, schema)
			},
			URL:     alloydbHostURL(address, schema),
			Network: func(t conformance.T) conformance.Network { return linkToAlloyDB(t, server, far) },
		}
	}}
}

// linkToAlloyDB puts a network that can be harmed between the connector and the
// primary's proxy: what passes is TLS.
func linkToAlloyDB(t conformance.T, server *emulators.AlloyDBServer, far alloydb.Options) conformance.Network {
	t.Helper()
	network := newLink(t, "127.0.0.1:1") // a dial tells where to
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

// AlloyDBOptions leads to a database, by its URL on the server behind a stand-in.
func AlloyDBOptions(server *emulators.AlloyDBServer, address string) (*alloydb.Options, error) {
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

// OpenAlloyDB opens the store with the capabilities that the options give it.
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
	if schema == "" {
		return "alloydb://" + rest
	}
	return withParams("alloydb://"+rest, url.Values{"schema": {schema}})
}
