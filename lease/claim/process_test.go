package claim_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapestore/tapestore/internal/childprocess"
	"github.com/tapestore/tapestore/internal/claimload"
	"github.com/tapestore/tapestore/lease/claim"
	"github.com/tapestore/tapestore/runstore"
	_ "github.com/tapestore/tapestore/runstore/sqlite"
)

func TestMain(m *testing.M) {
	childprocess.Main(m, func(args []string) error { return child(runstore.Owner(args[0]), args[1]) })
}

// processTTL is long enough that a consumer on a machine with other work acknowledges in time, and
// short enough for a test that waits for an expiry.
const processTTL = 3 * time.Second

// child holds one seat and claims two messages. It prints what it does, and waits for a line of its
// standard input before each ack.
func child(name runstore.Owner, url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // the test has ended long before
	defer cancel()
	store, err := runstore.Open(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	seats, err := claim.NewCapacity(store, "seats")
	if err != nil {
		return err
	}
	if _, err := seats.Hold(ctx, claim.HoldRequest{ID: string(name), Owner: name, Amount: 1, TTL: processTTL}); err != nil {
		return err
	}
	queue, err := claim.OpenQueue(ctx, store, "mail", nil)
	if err != nil {
		return err
	}
	var mine []claim.Receipt
	for len(mine) < 2 { // another consumer may be faster
		more, err := queue.Claim(ctx, name, 2-len(mine), processTTL)
		if err != nil {
			return err
		}
		for _, r := range more {
			fmt.Println("claimed", r.ID, r.Attempts)
		}
		mine = append(mine, more...)
		time.Sleep(time.Millisecond)
	}
	orders := bufio.NewScanner(os.Stdin)
	for _, r := range mine {
		if !orders.Scan() {
			return nil
		}
		err := queue.Ack(ctx, r)
		var lost *claim.LostError
		if !errors.As(err, &lost) {
			return fmt.Errorf("ack: %w, want that the claim is lost", err)
		}
		fmt.Println("lost", r.ID, lost.Found)
	}
	return nil
}

// Consumers in processes of their own: one is killed with two claimed messages and a seat, another
// stalls beyond its claims. Their messages are claimed again as the second attempt, the late acks of
// the stalled one are refused, and the seats are free.
func TestProcesses(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "store.db")
	store, err := runstore.Open(t.Context(), url)
	must(t, err)
	defer func() { _ = store.Close() }()
	seats := capacity(t, store, 2)
	q := open(t, store, claim.QueueOptions{})
	for i := range 6 {
		put(t, q, fmt.Sprint("m", i), true)
	}
	killed, stalled := childprocess.Start(t, nil, "killed", url), childprocess.Start(t, nil, "stalled", url)
	attempts := map[string]int{} // of the messages that the processes have claimed
	for _, p := range []*childprocess.Process{killed, stalled} {
		for range 2 {
			line, id, attempt := p.Next(t, ""), "", 0
			if _, err := fmt.Sscanf(line, "claimed %s %d", &id, &attempt); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			attempts[id] = max(attempts[id], attempt)
		}
	}
	must(t, killed.Cmd.Process.Kill())

	for acked := 0; acked < 6; {
		for _, r := range claimAll(t, q, "survivor", time.Hour) {
			if want := attempts[r.ID] + 1; r.Attempts != want {
				t.Errorf("%s: attempt %d, want %d", r.ID, r.Attempts, want)
			}
			acked++
			if attempts[r.ID] == 0 {
				must(t, q.Ack(t.Context(), r))
			}
		}
		time.Sleep(10 * time.Millisecond) // the claims of the processes expire on the store clock
	}
	for range 2 {
		_, err := fmt.Fprintln(stalled.In) // lets it make its next ack
		must(t, err)
		if line := stalled.Next(t, ""); !strings.HasPrefix(line, "lost m") || !strings.HasSuffix(line, "claimed again") {
			t.Errorf("the stalled process printed %q, want that its claim is lost", line)
		}
	}
	for {
		r, err := seats.Hold(t.Context(), claim.HoldRequest{Owner: "survivor", Amount: 2, TTL: time.Minute})
		if err == nil {
			must(t, seats.Commit(t.Context(), r))
			break
		}
		if !errors.Is(err, claim.ErrNoCapacity) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	wantUsage(t, seats, claim.Usage{Capacity: 2, Committed: 2})
	must(t, stalled.In.Close())
}

// The loads on SQLite, in real time, over three handles on one file.
func TestLoadsOnSQLite(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "store.db")
	l := claimload.Load{Seed: 1, Faults: 0.1, Workers: 6, Rounds: 8, TTL: 100 * time.Millisecond, Exact: true}
	for range 3 {
		store, err := runstore.Open(t.Context(), url)
		must(t, err)
		defer func() { _ = store.Close() }()
		l.Stores = append(l.Stores, store)
	}
	claimload.Messages(t, l, 4)
	claimload.Holds(t, l, 20)
}
