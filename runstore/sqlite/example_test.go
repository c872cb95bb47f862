package sqlite_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// A journal in a file outlasts the process that wrote it.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "tapestore")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "tape.db")

	store, err := sqlite.Open(ctx, file, nil)
	if err != nil {
		log.Fatal(err)
	}
	created, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: time.Minute},
	})
	if err != nil {
		log.Fatal(err)
	}
	step := runstore.NewBatch("payout-17", created.Lease.Fence())
	step.Append("decided", []byte("pay 100"))
	if _, err := store.Commit(ctx, step); err != nil {
		log.Fatal(err)
	}
	if err := store.Close(); err != nil {
		log.Fatal(err)
	}

	store, err = sqlite.Open(ctx, file, &sqlite.Options{MustExist: true})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	for event, err := range runstore.Journal(ctx, store, "payout-17", 1) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d %s: %s\n", event.Seq, event.Kind, event.Data)
	}
	// Output:
	// 1 decided: pay 100
}
