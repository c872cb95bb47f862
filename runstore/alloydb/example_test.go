package alloydb_test

import (
	"context"
	"fmt"
	"log"
	"time"

	alloydbemulator "github.com/tapestore/tapestore/emulators/alloydb"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/alloydb"
)

// A report reads journals from the read pool, which may be behind by the bound that it accepts. It
// takes no capacity from the primary, which judges every lease.
func ExampleOpenWithReadPool() {
	ctx := context.Background()
	postgres, err := postgresemulator.Shared(ctx)
	if err != nil {
		log.Fatal(err)
	}
	cluster, err := alloydbemulator.Start(ctx, &alloydbemulator.Options{Postgres: postgres}) // in production, your own
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	database, err := postgres.NewDatabase(ctx, "")
	if err != nil {
		log.Fatal(err)
	}

	store, err := alloydb.OpenWithReadPool(ctx, &alloydb.Options{
		Instance: cluster.Instance(),
		ReadPool: cluster.ReadPool(),
		Database: database.Name,
		User:     "postgres",
		IAM:      true,
		Dialer:   cluster.DialerOptions(), // leads the connector to the stand-in
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	spec := runstore.RunSpec{ID: "payout-17"}
	spec.Writes.Append("began", nil)
	if _, err := store.CreateRun(ctx, spec); err != nil {
		log.Fatal(err)
	}

	events, err := store.ReadJournalStale(ctx, "payout-17", 1, 100, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	for _, event := range events {
		fmt.Println(event.Seq, event.Kind)
	}
	// Output:
	// 1 began
}
