// Package engines starts what the benchmark measures: each engine of this module with the
// durability of production, and the store at a URL.
package engines

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/floor"
	suite "github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
	alloydbemulator "github.com/tapestore/tapestore/emulators/alloydb"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/all" // every scheme
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// Pool is the number of connections of each side to a PostgreSQL server: the store's and the
// hand-written one's.
const Pool = 16

// fenced is the guarantee of every store of this module.
var fenced = bench.Guarantee{
	Token:    "the store, inside every write",
	Clock:    "the store's",
	InFlight: "refused once a later grant exists; nothing of it is stored",
}

// Starters returns starters for the engines of this module, from the simplest to those that only
// their vendor runs.
func Starters() []bench.Starter {
	starters := []bench.Starter{
		{Name: "memory", Start: startMemory},
		{Name: "sqlite", Start: startSQLite},
		{Name: "postgres", Start: startPostgres},
		{Name: "alloydb", Start: startAlloyDB},
		{Name: "bigtable", Start: startBigtable},
		{Name: "spanner", Start: startSpanner},
	}
	for i := range starters {
		starters[i].Missing = func(err error) bool { return errors.Is(err, emulators.ErrMissing) }
	}
	return starters
}

// Named returns the starters with the given names, in the order of Starters.
func Named(names ...string) (chosen []bench.Starter) {
	for _, s := range Starters() {
		if slices.Contains(names, s.Name) {
			chosen = append(chosen, s)
		}
	}
	return chosen
}

func prefix() string { return "bench-" + rand.Text()[:10] }

// describe completes a system's description with what a store reports about itself.
func describe(ctx context.Context, store bench.Store, system bench.System) (bench.System, error) {
	s, err := store.Open(ctx)
	if err != nil {
		return system, err
	}
	defer s.Close()
	describer, ok := runstore.As[runstore.Describer](s)
	if !ok {
		return system, errors.New("the store does not describe itself")
	}
	d, err := describer.Describe(ctx)
	system.Engine, system.Version = d.Engine, d.Version
	if system.Name == "" {
		system.Name = d.Engine
	}
	if system.Tier == "" {
		system.Tier = d.Tier
	}
	return system, err
}

// target makes a target from a function that makes its stores. It describes the first store, and
// stops the server if that fails.
func target(ctx context.Context, system bench.System, newStore func(ctx context.Context) (bench.Store, error), stop func() error) (bench.Target, error) {
	t := bench.Target{NewStore: newStore, Close: stop}
	first, err := newStore(ctx)
	if err == nil {
		system.Guarantee = fenced
		t.System, err = describe(ctx, first, system)
		err = errors.Join(err, first.Drop())
	}
	if err != nil {
		err = errors.Join(err, stop())
	}
	return t, err
}

func nothing() error { return nil }

func startMemory(ctx context.Context) (bench.Target, error) {
	system := bench.System{Name: "memory", Tier: "embedded", Topology: "in this process, nothing on disk"}
	return target(ctx, system, func(context.Context) (bench.Store, error) {
		engine := memory.New(nil)
		return bench.Store{
			Prefix: prefix(),
			Open:   func(context.Context) (runstore.RunStore, error) { return engine.Open(), nil },
			Drop:   nothing,
		}, nil
	}, nothing)
}

func startSQLite(ctx context.Context) (bench.Target, error) {
	dir, err := os.MkdirTemp("", "tapestore-bench-")
	if err != nil {
		return bench.Target{}, err
	}
	system := bench.System{Name: "sqlite", Tier: "embedded", Topology: "a file, in this process; every commit is synced", Durable: true}
	return target(ctx, system, func(context.Context) (bench.Store, error) {
		own, err := os.MkdirTemp(dir, "store-")
		path := filepath.Join(own, "tape.db")
		return bench.Store{
			Prefix: prefix(),
			Open:   func(ctx context.Context) (runstore.RunStore, error) { return runstore.Open(ctx, "sqlite:"+path) },
			Floor:  floor.Opener(func(ctx context.Context) (*floor.SQLite, error) { return floor.OpenSQLite(ctx, path, nil) }),
			Drop:   func() error { return os.RemoveAll(own) },
		}, err
	}, func() error { return os.RemoveAll(dir) })
}

func startPostgres(ctx context.Context) (bench.Target, error) {
	server, err := postgresemulator.Start(ctx, &postgresemulator.Options{Durable: true})
	if err != nil {
		return bench.Target{}, err
	}
	system := bench.System{
		Name: "postgres", Tier: server.Engine().Tier, Durable: true,
		Topology: "a server on this machine, over TCP on loopback, pool of 16; every commit is synced",
	}
	t, err := target(ctx, system, func(ctx context.Context) (bench.Store, error) {
		db, err := server.NewDatabase(ctx, "")
		return bench.Store{
			Prefix:  prefix(),
			Open:    func(ctx context.Context) (runstore.RunStore, error) { return openPostgres(ctx, db.URL) },
			Network: postgresNetwork(db.URL),
			Floor: floor.Opener(func(ctx context.Context) (*floor.Postgres, error) {
				config, err := poolConfig(db.URL)
				if err != nil {
					return nil, err
				}
				return floor.OpenPostgres(ctx, config)
			}),
			Drop: func() error { return db.Drop(context.Background()) },
		}, err
	}, server.Close)
	if err != nil {
		return t, err
	}
	if err := attachPeers(ctx, server, &t); err != nil {
		return bench.Target{}, errors.Join(err, t.Close())
	}
	return t, nil
}

func openPostgres(ctx context.Context, url string) (runstore.RunStore, error) {
	config, err := poolConfig(url)
	if err != nil {
		return nil, err
	}
	return postgres.Open(ctx, config, nil)
}

// poolConfig returns the pool configuration of each side.
func poolConfig(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = Pool
	return config, nil
}

func startAlloyDB(ctx context.Context) (bench.Target, error) {
	below, err := postgresemulator.Start(ctx, &postgresemulator.Options{Durable: true})
	if err != nil {
		return bench.Target{}, err
	}
	server, err := alloydbemulator.Start(ctx, &alloydbemulator.Options{Postgres: below})
	if err != nil {
		return bench.Target{}, errors.Join(err, below.Close())
	}
	system := bench.System{
		Name: "alloydb", Tier: "emulator", Durable: true,
		Topology: "PostgreSQL behind a stand-in for AlloyDB's proxies, by the real connector over TLS on loopback, pool of 16",
	}
	return target(ctx, system, func(ctx context.Context) (bench.Store, error) {
		db, err := below.NewDatabase(ctx, "")
		if err != nil {
			return bench.Store{}, err
		}
		opts, err := suite.AlloyDBOptions(server, db.URL)
		if err != nil {
			return bench.Store{}, err
		}
		opts.MaxConns = Pool
		return bench.Store{
			Prefix:  prefix(),
			Open:    func(ctx context.Context) (runstore.RunStore, error) { return suite.OpenAlloyDB(ctx, opts) },
			Network: alloydbNetwork(server, opts),
			Floor:   floor.Opener(func(ctx context.Context) (*floor.Postgres, error) { return floor.OpenAlloyDB(ctx, opts) }),
			Drop:    func() error { return db.Drop(context.Background()) },
		}, nil
	}, func() error { return errors.Join(server.Close(), below.Close()) })
}

func startBigtable(ctx context.Context) (bench.Target, error) {
	server, err := bigtableemulator.Start(ctx, nil)
	if err != nil {
		return bench.Target{}, err
	}
	system := bench.System{Name: "bigtable", Tier: "emulator", Topology: "Google's emulator " + server.Engine().Tier + ", over gRPC; nothing on disk"}
	return target(ctx, system, func(context.Context) (bench.Store, error) {
		table := server.NewTable()
		url := "bigtable://" + table.Project + "/" + table.Instance + "/" + table.Table + "?emulator=" + server.Address()
		handWritten, err := floor.At(url)
		return bench.Store{
			Prefix:  prefix(),
			Open:    func(ctx context.Context) (runstore.RunStore, error) { return runstore.Open(ctx, url) },
			Network: emulatorNetwork(url), Floor: handWritten,
			Drop: func() error { return server.Drop(context.Background(), table) },
		}, err
	}, server.Close)
}

func startSpanner(ctx context.Context) (bench.Target, error) {
	server, err := spanneremulator.Start(ctx, nil)
	if err != nil {
		return bench.Target{}, err
	}
	system := bench.System{
		Name: "spanner", Tier: "emulator",
		Topology: "Google's emulator on this machine, over gRPC on loopback; one transaction at a time, nothing on disk",
	}
	t, err := target(ctx, system, func(ctx context.Context) (bench.Store, error) {
		database, err := server.NewDatabase(ctx)
		if err != nil {
			return bench.Store{}, err
		}
		url := "spanner://" + database.Project + "/" + database.Instance + "/" + database.Database + "?emulator=" + server.Address()
		handWritten, err := floor.At(url)
		return bench.Store{
			Prefix:  prefix(),
			Open:    func(ctx context.Context) (runstore.RunStore, error) { return runstore.Open(ctx, url) },
			Network: emulatorNetwork(url), Floor: handWritten,
			Drop: func() error { return server.Drop(context.Background(), database) },
		}, err
	}, server.Close)
	t.Serial = true
	return t, err
}
