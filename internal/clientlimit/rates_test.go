package clientlimit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestRates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRates(10, 5*time.Second)
		drain, drained := context.WithCancel(t.Context())
		began := time.Now()
		for range 70 {
			if err := r.Wait(t.Context(), "a", drain.Done()); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d != 5*time.Second { // 20 at once, and 50 at 10 per second
			t.Errorf("70 calls one after the other take %v, want 5s", d)
		}
		if err := r.Wait(t.Context(), "b", drain.Done()); err != nil || time.Since(began) != 5*time.Second {
			t.Errorf("another client waits: %v after %v", err, time.Since(began))
		}
		// Of calls at the same time, as many wait as begin within the queue timeout of 5 s.
		results := make(chan error, 100)
		for range 100 {
			go func() { results <- r.Wait(t.Context(), "a", drain.Done()) }()
		}
		synctest.Wait()
		if n := len(results); n != 50 {
			t.Errorf("%d calls are refused at once, want 50", n)
		}
		for range len(results) {
			if err := <-results; !errors.Is(err, ErrRate) {
				t.Errorf("refused with %v", err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		time.Sleep(time.Second)
		if err := r.Wait(ctx, "a", drain.Done()); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that is gone: %v", err)
		}
		drained()
		synctest.Wait()
		passed, cut := 0, 0
		for range 50 {
			switch err := <-results; err {
			case nil:
				passed++
			case ErrStopped:
				cut++
			}
		}
		if passed+cut != 50 || passed == 0 || cut == 0 {
			t.Errorf("%d calls began and %d were cut by the drain, want 50 together", passed, cut)
		}
		for i := range 2 * maxClients {
			r.of(fmt.Sprint("client ", i)).Allow()
		}
		if len(r.clients) > maxClients {
			t.Errorf("%d clients are kept, want at most %d", len(r.clients), maxClients)
		}
		if r.of("one more") != r.others {
			t.Error("a client above the most does not share a rate")
		}
		time.Sleep(time.Minute) // all buckets are full again
		if r.of("one more") == r.others || len(r.clients) != 1 {
			t.Errorf("%d clients are kept after a minute of rest", len(r.clients))
		}
	})
}

func TestNetworksOfClients(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"10.0.0.1": "address 10.0.0.1", "::ffff:10.0.0.1": "address 10.0.0.1", "2001:db8::1:2:3:4": "network 2001:db8::/64",
		"fe80::1%eth0": "network fe80::/64", "bufconn": "address bufconn",
	} {
		if got := Network(address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}
