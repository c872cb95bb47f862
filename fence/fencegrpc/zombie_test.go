package fencegrpc_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/fence"
	"github.com/tapestore/tapestore/fence/fencegrpc"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// wantFenced fails the test unless err is the status of a refusal with its details.
func wantFenced(t testing.TB, err error, want fence.StaleError) {
	t.Helper()
	var stale *fence.StaleError
	var fenced *runstore.FencedError
	if !errors.Is(err, runstore.ErrFenced) || !errors.As(err, &stale) || !errors.As(err, &fenced) || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got %v, want a StaleError with the status FAILED_PRECONDITION", err)
		return
	}
	if *stale != want {
		t.Errorf("got %+v, want %+v", *stale, want)
	}
}

// A holder is paused, its lease expires, and another takes over and calls the service. The late
// calls of the former holder are refused, over a stream that it opened before, too.
func TestZombie(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	engine := memory.New(nil)
	store := engine.Open()
	created, err := store.CreateRun(ctx, runstore.RunSpec{
		ID: "payout-17", Lease: &runstore.LeaseSpec{Owner: "agent-a", TTL: 30 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := new(bank)
	c := serve(t, b, newMemory(t), nil)

	tokenA := created.Lease.Token
	asA := fencegrpc.WithFence(ctx, "payout-17", tokenA)
	payByStream, err := c.payAll(asA)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.pay(asA, "a1"), payByStream("a2")); err != nil {
		t.Fatal(err)
	}
	engine.Advance(31 * time.Second) // agent-a is paused
	granted, err := store.AcquireLease(ctx, runstore.AcquireRequest{
		Run: "payout-17", LeaseSpec: runstore.LeaseSpec{Owner: "agent-b", TTL: 30 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	tokenB := granted.Lease.Token
	asB := fencegrpc.WithFence(ctx, "payout-17", tokenB)
	if err := c.pay(asB, "b1"); err != nil {
		t.Fatal(err)
	}

	want := fence.StaleError{Resource: "payout-17", Presented: tokenA, Current: tokenB}
	wantFenced(t, c.pay(asA, "a3"), want) // agent-a wakes
	wantFenced(t, payByStream("a4"), want)
	wantFenced(t, c.payOne(asA, "a5"), want)
	if err := c.payOne(asB, "b2"); err != nil {
		t.Error(err)
	}
	if want := []string{"a1", "a2", "b1", "b2"}; !slices.Equal(b.paid, want) {
		t.Errorf("paid %v, want %v", b.paid, want)
	}
	if want := []runstore.Token{tokenA, tokenA, tokenB, tokenB}; !slices.Equal(b.under, want) {
		t.Errorf("paid under %v, want %v", b.under, want)
	}
}

// A handler that ends its stream without an error after a refusal does not hide it.
func TestCarelessStreamIsRefused(t *testing.T) {
	t.Parallel()
	checker := newMemory(t)
	c := serve(t, &bank{careless: true}, checker, nil)
	pay, err := c.payAll(fencegrpc.WithFence(t.Context(), "a", 5))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pay("a1"), checker.Check(t.Context(), "a", 6)); err != nil {
		t.Fatal(err)
	}
	wantFenced(t, pay("a2"), fence.StaleError{Resource: "a", Presented: 5, Current: 6})
}
