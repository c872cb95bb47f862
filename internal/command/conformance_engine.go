package command

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/conformance/engines/embedded"
	alloydbemulator "github.com/tapestore/tapestore/emulators/alloydb"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore/alloydb"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// starters are the functions that start an engine for the suite, by the engine's name.
var starters = map[string]func(ctx context.Context) (subject, error){
	"memory": func(ctx context.Context) (subject, error) {
		d, err := memory.New(nil).Open().Describe(ctx)
		return subject{embedded.Memory(), describe(d), nothing}, err
	},
	"sqlite": func(ctx context.Context) (subject, error) {
		return sqliteIn(ctx, "", "tapestore-conformance-", &sqlite.Options{})
	},
	"postgres": func(ctx context.Context) (subject, error) {
		server, err := postgresemulator.Start(ctx, nil)
		if err != nil {
			return subject{}, err
		}
		return subject{engines.Postgres(server, nil), server.Engine().String(), server.Close}, nil
	},
	"alloydb": func(ctx context.Context) (subject, error) {
		server, err := alloydbemulator.Start(ctx, nil)
		if err != nil {
			return subject{}, err
		}
		// Includes what AlloyDB adds: IAM logins and a read pool beside the primary.
		harness := engines.AlloyDB(server, func(o *alloydb.Options) {
			o.IAM, o.Password, o.ReadPool, o.MaxConns = true, "", server.ReadPool(), 4
		})
		return subject{harness, server.Engine().String(), server.Close}, nil
	},
	"bigtable": func(ctx context.Context) (subject, error) {
		server, err := bigtableemulator.Start(ctx, nil)
		if err != nil {
			return subject{}, err
		}
		return subject{engines.Bigtable(server, nil), server.Engine().String(), server.Close}, nil
	},
	"spanner": func(ctx context.Context) (subject, error) {
		// On one of them the newest transaction wins, for the cases in which a transaction
		// overtakes another.
		newest := 100
		fair, err := spanneremulator.Start(ctx, nil)
		if err != nil {
			return subject{}, err
		}
		last, err := spanneremulator.Start(ctx, &spanneremulator.Options{AbortProbability: &newest})
		if err != nil {
			return subject{}, errors.Join(err, fair.Close())
		}
		end := func() error { return errors.Join(last.Close(), fair.Close()) }
		return subject{engines.Spanner(fair, last, nil), fair.Engine().String(), end}, nil
	},
}
