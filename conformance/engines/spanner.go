package engines

import (
	"context"
	"maps"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/emulators"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/serving"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// Spanner makes a database for each case on running emulators. params are parameters of a store's
// URL, with which every handle is opened.
//
// An emulator admits one read-write transaction at a time to a database. On newest the last
// transaction wins (an AbortProbability of 100), so a takeover gets past a blocked writer, as it
// does on the service once that writer's locks are lost. The cases with Overtakes run there. All
// other cases run on fair, which may be the same emulator.
//
// The emulator's clock is the machine's and cannot be moved, so cases wait for time to pass. The
// emulator keeps its data in memory, so no case can kill and restart it.
func Spanner(fair, newest *spanneremulator.Server, params url.Values) conformance.Harness {
	on := func(server *spanneremulator.Server) func(t conformance.T) conformance.Instance {
		return func(t conformance.T) conformance.Instance {
			database, err := server.NewDatabase(t.Context())
			if err != nil {
				t.Fatalf("%v", err)
			}
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
				defer cancel()
				if err := server.Drop(ctx, database); err != nil {
					t.Errorf("%v", err)
				}
			})
			return spannerDatabase{database, params}.onEmulator(server)
		}
	}
	return conformance.Harness{Costly: true, Tier: emulated(fair.Engine().Tier), New: on(fair), NewOvertaking: on(newest)}
}

// spannerDatabase is the address of a store, with the URL parameters of its handles.
type spannerDatabase struct {
	spanneremulator.DatabaseName
	params url.Values
}

// url returns the store's URL, on the emulator at an address or, if that is empty, on the service.
func (p spannerDatabase) url(emulator string) string {
	params := url.Values{}
	for key, values := range p.params {
		params[key] = values
	}
	if emulator != "" {
		params.Set("emulator", emulator)
	}
	return withParams("spanner://"+p.Project+"/"+p.Instance+"/"+p.Database, params)
}

// instance returns the Instance that every harness has of a database.
func (p spannerDatabase) instance(emulator string) conformance.Instance {
	address := p.url(emulator)
	open := func(ctx context.Context) (runstore.RunStore, error) { return openSpanner(ctx, address, nil) }
	return conformance.Instance{
		Open: open,
		OpenSkewed: func(ctx context.Context, clock func() time.Time) (runstore.RunStore, error) {
			return openSpanner(ctx, address, clock)
		},
		URL: address,
	}
}

// onEmulator returns an Instance with the faults that an emulator makes possible.
func (p spannerDatabase) onEmulator(server *spanneremulator.Server) conformance.Instance {
	patient := spannerDatabase{p.DatabaseName, url.Values{"retry_timeout": {busyMachineTimeout.String()}}}
	maps.Copy(patient.params, p.params)
	i := patient.instance(server.Address())
	i.BlockWriters = func(t conformance.T) (func(ctx context.Context, n int) error, func()) {
		return stallSpanner(t, server, p.String())
	}
	i.Aborts = func(conformance.T) conformance.Aborts { return spannerAborts{server, p.String()} }
	i.Network = func(t conformance.T) conformance.Network {
		network := newRPCLink(t, server.Address())
		return conformance.Network{
			Open: func(ctx context.Context) (runstore.RunStore, error) {
				return openSpanner(ctx, patient.url(network.Address()), nil)
			},
			Faults: network,
		}
	}
	return i
}

// openSpanner opens a store by its URL, as runstore.Open does. If clock is not nil, the handle
// reads it as its process's clock. The RPCs of the handle's callers carry the header
// [serving.Header]; those of its background work do not.
func openSpanner(ctx context.Context, address string, clock func() time.Time) (runstore.RunStore, error) {
	u, err := runstore.ParseURL(address)
	if err != nil {
		return nil, err
	}
	opts, err := spanner.ParseURL(u)
	if err != nil {
		return nil, err
	}
	opts.Clock, opts.DialOptions = clock, serving.DialOptions()
	s, err := spanner.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// stallSpanner delays the commits of callers at the emulator, as a busy leader would, until resume
// is called. Reads are not delayed.
func stallSpanner(t conformance.T, server *spanneremulator.Server, database string) (held func(ctx context.Context, n int) error, resume func()) {
	t.Helper()
	fault := server.Hold(0, func(c spanneremulator.Call) bool {
		return c.Method == "Commit" && c.Database == database && len(c.Metadata.Get(serving.Header)) > 0
	})
	t.Cleanup(fault.Stop) // a case that fails early must not leave its writers blocked
	return fault.Await, fault.Stop
}

// spannerAborts aborts transactions of callers in one database. It implements conformance.Aborts.
type spannerAborts struct {
	server   *spanneremulator.Server
	database string
}

func (a spannerAborts) matches(c spanneremulator.Call) bool {
	return c.ReadWrite && c.Method != "Rollback" && c.Database == a.database && len(c.Metadata.Get(serving.Header)) > 0
}

func (a spannerAborts) Next(after int) (end func() int) {
	var passed atomic.Int64
	fault := a.server.Abort(1, func(c spanneremulator.Call) bool { return a.matches(c) && passed.Add(1) > int64(after) })
	return stopAndCount(fault)
}

func (a spannerAborts) AtRandom(fraction float64, seed uint64) (end func() int) {
	return stopAndCount(a.server.AbortAtRandom(fraction, seed, a.matches))
}

// stopAndCount returns a function that stops a fault and returns how often it struck.
func stopAndCount(f emulators.Fault) func() int {
	return func() int {
		f.Stop()
		return f.Count()
	}
}
