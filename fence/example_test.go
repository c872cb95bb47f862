package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// A service checks the token of each request. The new holder of the run announces itself before it
// acts; from then on the service refuses the former holder.
func ExampleMemory() {
	ctx := context.Background()
	engine := memory.New(nil)
	store := engine.Open()
	created, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: 30 * time.Second},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	service, err := fence.NewMemory(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	old := created.Lease
	fmt.Println("agent-a:", service.Check(ctx, "account/7", old.Token))

	// agent-a is paused, its lease expires on the store clock, agent-b takes over.
	engine.Advance(31 * time.Second)
	current, err := store.AcquireLease(ctx, runstore.AcquireRequest{
		Run: "payout-17", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: 30 * time.Second},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("agent-a, before the service knows:", service.Check(ctx, "account/7", old.Token))
	fmt.Println("agent-b announces:", fence.Announce(ctx, fence.Presented{Resource: "account/7", Token: current.Lease.Token}, service))
	late := service.Check(ctx, "account/7", old.Token)
	fmt.Println("agent-a wakes:", late)
	fmt.Println("fenced:", errors.Is(late, runstore.ErrFenced))
	// Output:
	// agent-a: <nil>
	// agent-a, before the service knows: <nil>
	// agent-b announces: <nil>
	// agent-a wakes: fenced: token 1 was presented for "account/7", which has seen token 2
	// fenced: true
}

// A service checks the token in the transaction of the write that it fences: the check and the write are
// committed together or not at all.
func ExampleSQL_CheckTx() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection to :memory: opens another database
	checker, err := fence.NewSQL(db, "fence", fence.SQLite)
	if err == nil {
		err = checker.CreateTable(ctx)
	}
	if err == nil {
		_, err = db.ExecContext(ctx, `CREATE TABLE payments (payee text)`)
	}
	if err != nil {
		fmt.Println(err)
		return
	}

	pay := func(token runstore.Token) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := checker.CheckTx(ctx, tx, "account/7", token); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO payments VALUES ('payee')`); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println("the holder of token 2:", pay(2))
	fmt.Println("the holder of token 1:", pay(1))
	var n int
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM payments`).Scan(&n)
	fmt.Println("payments:", n, err)
	// Output:
	// the holder of token 2: <nil>
	// the holder of token 1: fenced: token 1 was presented for "account/7", which has seen token 2
	// payments: 1 <nil>
}
