package postgres_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// A standby waits for a release without polling: the server notifies it.
func ExampleStore_RunWakeups() {
	ctx := context.Background()
	server, err := postgresemulator.Shared(ctx) // a PostgreSQL of this machine; in production, your own
	if err != nil {
		log.Fatal(err)
	}
	database, err := server.NewDatabase(ctx, "")
	if err != nil {
		log.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(database.URL)
	if err != nil {
		log.Fatal(err)
	}
	store, err := postgres.Open(ctx, config, &postgres.Options{Schema: "agents"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	created, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: time.Minute},
	})
	if err != nil {
		log.Fatal(err)
	}
	released, err := store.RunWakeups(ctx, "payout-17", runstore.OnRelease)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if _, err := store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: created.Lease.Fence()}); err != nil {
			log.Fatal(err)
		}
	}()

	acquire := runstore.AcquireRequest{Run: "payout-17", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: time.Minute}}
	granted, err := store.AcquireLease(ctx, acquire)
	for err != nil {
		select {
		case <-released:
		case <-time.After(5 * time.Second): // a wake-up may be lost with its connection
		}
		granted, err = store.AcquireLease(ctx, acquire)
	}
	fmt.Println(granted.Lease.Owner, "holds token", granted.Lease.Token)
	// Output:
	// agent-b holds token 2
}
