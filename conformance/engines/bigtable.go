package engines

import (
	"context"
	"maps"
	"net/url"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/faultynetwork"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/serving"
)

// Bigtable makes a table for each case on a running emulator. params are parameters of a store's
// URL, with which every handle is opened.
//
// The emulator's clock is the machine's and cannot be moved, so cases wait for time to pass. The
// emulator keeps its data in memory, so no case can kill and restart it.
func Bigtable(server *bigtableemulator.Server, params url.Values) conformance.Harness {
	return conformance.Harness{Tier: emulated(server.Engine().Tier), New: func(t conformance.T) conformance.Instance {
		table := server.NewTable()
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			if err := server.Drop(ctx, table); err != nil {
				t.Errorf("%v", err)
			}
		})
		return bigtableTable{table, params}.onEmulator(server)
	}}
}

// bigtableTable is the address of a store, with the URL parameters of its handles.
type bigtableTable struct {
	bigtableemulator.TableName
	params url.Values
}

// url returns the store's URL, on the emulator at an address or, if that is empty, on the service.
func (p bigtableTable) url(emulator string) string {
	params := url.Values{}
	for key, values := range p.params {
		params[key] = values
	}
	if emulator != "" {
		params.Set("emulator", emulator)
	}
	return withParams("bigtable://"+p.Project+"/"+p.Instance+"/"+p.Table, params)
}

// instance returns the Instance that every harness has of a table.
func (p bigtableTable) instance(emulator string) conformance.Instance {
	address := p.url(emulator)
	open := func(ctx context.Context) (runstore.RunStore, error) { return openBigtable(ctx, address, nil) }
	return conformance.Instance{
		Open: open,
		OpenSkewed: func(ctx context.Context, clock func() time.Time) (runstore.RunStore, error) {
			return openBigtable(ctx, address, clock)
		},
		URL: address,
	}
}

// onEmulator returns an Instance with the faults that an emulator makes possible.
func (p bigtableTable) onEmulator(server *bigtableemulator.Server) conformance.Instance {
	patient := bigtableTable{p.TableName, url.Values{"retry_timeout": {busyMachineTimeout.String()}}}
	maps.Copy(patient.params, p.params)
	i := patient.instance(server.Address())
	i.BlockWriters = func(t conformance.T) (func(ctx context.Context, n int) error, func()) {
		return stallBigtable(t, server, p.String())
	}
	i.Network = func(t conformance.T) conformance.Network {
		network := newRPCLink(t, server.Address())
		return conformance.Network{
			Open: func(ctx context.Context) (runstore.RunStore, error) {
				return openBigtable(ctx, patient.url(network.Address()), nil)
			},
			Faults: network,
		}
	}
	return i
}

// openBigtable opens a store by its URL, as runstore.Open does. If clock is not nil, the handle
// reads it as its process's clock. The RPCs of the handle's callers carry the header
// [serving.Header]; those of its background work do not.
func openBigtable(ctx context.Context, address string, clock func() time.Time) (runstore.RunStore, error) {
	u, err := runstore.ParseURL(address)
	if err != nil {
		return nil, err
	}
	opts, err := bigtable.ParseURL(u)
	if err != nil {
		return nil, err
	}
	opts.Clock, opts.DialOptions = clock, serving.DialOptions()
	s, err := bigtable.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// newRPCLink returns a proxy with faults in front of a gRPC server at host:port.
func newRPCLink(t conformance.T, target string) *faultynetwork.RPC {
	t.Helper()
	network, err := faultynetwork.NewRPC(t.Context(), target, &faultynetwork.RPCOptions{Only: serving.Header})
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

// stallBigtable delays the conditional mutations of a table's run rows at the emulator, as a busy
// tablet would, until resume is called. Reads, other rows and a handle's background work are not
// delayed.
func stallBigtable(t conformance.T, server *bigtableemulator.Server, table string) (held func(ctx context.Context, n int) error, resume func()) {
	t.Helper()
	fault := server.Hold(0, func(c bigtableemulator.Call) bool {
		return c.Method == "CheckAndMutateRow" && c.Table == table && isRunRow(c.Row) && len(c.Metadata.Get(serving.Header)) > 0
	})
	t.Cleanup(fault.Stop) // a case that fails early must not leave its writers blocked
	return fault.Await, fault.Stop
}

// isRunRow reports whether a row key is that of a run in the adapter's layout.
func isRunRow(key []byte) bool { return len(key) > 0 && key[0] == 'r' }
