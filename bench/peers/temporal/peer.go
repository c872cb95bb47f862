package temporal

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/engines"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
)

func init() { engines.RegisterPeers(system, attach) }

const system = "temporal shard"

// attach adds Temporal to the target of a PostgreSQL server, and closes it with the target.
func attach(ctx context.Context, server *postgresemulator.Server, target *bench.Target) error {
	db, err := openDatabase(ctx, server)
	if err != nil {
		return err
	}
	target.Strategies = append(target.Strategies, bench.Strategy{System: system, Name: "range id", New: db.contest})
	target.Peers = append(target.Peers, bench.System{
		Name: system, Engine: "postgres", Version: db.version + ", temporal " + moduleVersion("go.temporal.io/server"),
		Tier: target.System.Tier, Durable: true, Peer: true,
		Topology: "the server of the store, over TCP on loopback, pool of 16; every commit is synced; without the membership protocol that names a shard's owner in a cluster",
		Guarantee: bench.Guarantee{
			Token:    "the server, inside the transaction of every write: it locks the shard's row and compares the range id",
			Clock:    "none: a shard has no expiry, and any host may take it at any time",
			InFlight: "refused once the range id was raised",
		},
	})
	stop := target.Close
	target.Close = func() error {
		err := db.close()
		if stop != nil {
			err = errors.Join(err, stop())
		}
		return err
	}
	return nil
}

// moduleVersion returns the version of a module that this program is built from, or "unknown" in a
// test, whose build information names no modules.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return "unknown"
}
