package engines

import (
	"context"
	"net/url"
	"os"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/floor"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// At returns a starter that measures the store at a URL. The runs of the benchmark have distinct
// names there and are not deleted, so the store should be one that exists for this purpose. The
// tables of the hand-written sides are dropped; see package bench/floor.
func At(storeURL string) bench.Starter {
	return bench.Starter{Name: "store", Start: func(ctx context.Context) (bench.Target, error) {
		u, err := runstore.ParseURL(storeURL)
		if err != nil {
			return bench.Target{}, err
		}
		address := withEmulator(u, storeURL)
		handWritten, err := floor.At(address)
		if err != nil {
			return bench.Target{}, err
		}
		durable, err := durable(u)
		if err != nil {
			return bench.Target{}, err
		}
		store := bench.Store{
			Open:    func(ctx context.Context) (runstore.RunStore, error) { return runstore.Open(ctx, address) },
			Network: emulatorNetwork(address), Floor: handWritten,
		}
		system, err := describe(ctx, store, bench.System{Topology: "at a URL", Guarantee: fenced})
		system.Durable = durable && !system.Emulated()
		if !durable {
			system.Topology += ", without a sync of every commit"
		}
		serial := system.Engine == "spanner" && system.Emulated()
		return bench.Target{System: system, Serial: serial, NewStore: func(context.Context) (bench.Store, error) {
			s := store
			s.Prefix = prefix()
			return s, nil
		}}, err
	}}
}

// withEmulator returns the URL of a store. If the environment makes the store's client use an
// emulator, the URL names that emulator.
func withEmulator(u runstore.URL, storeURL string) string {
	variable := map[string]string{"bigtable": "BIGTABLE_EMULATOR_HOST", "spanner": "SPANNER_EMULATOR_HOST"}[u.Scheme]
	host := os.Getenv(variable)
	if variable == "" || host == "" || u.Params.Has("emulator") || u.Params.Has("omni") {
		return storeURL
	}
	params := url.Values{"emulator": {host}}
	for key, values := range u.Params {
		params[key] = values
	}
	return u.Scheme + ":" + u.Address + "?" + params.Encode()
}

// durable reports whether the store at a URL syncs every commit that it acknowledges, as far as the
// URL decides that. On PostgreSQL the store asks for synchronous commits itself.
func durable(u runstore.URL) (bool, error) {
	switch u.Scheme {
	case "memory":
		return false, nil
	case "sqlite":
		path, opts, err := sqlite.ParseURL(u)
		return err == nil && path != sqlite.Memory && (opts.Synchronous == "" || opts.Synchronous == sqlite.Full), err
	}
	return true, nil
}
