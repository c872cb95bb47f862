package claim_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/lease/claim"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

func capacity(t *testing.T, s runstore.RunStore, amount int64) *claim.Capacity {
	t.Helper()
	c, err := claim.NewCapacity(s, "seats")
	must(t, err)
	must(t, c.Set(t.Context(), amount))
	return c
}

func hold(t *testing.T, c *claim.Capacity, id string, amount int64, ttl time.Duration) claim.Reservation {
	t.Helper()
	r, err := c.Hold(t.Context(), claim.HoldRequest{ID: id, Owner: "a", Amount: amount, TTL: ttl})
	must(t, err)
	return r
}

// wantFull checks that an amount is not free, and what the error reports.
func wantFull(t *testing.T, err error, committed, held int64) {
	t.Helper()
	var full *claim.NoCapacityError
	if !errors.As(err, &full) || !errors.Is(err, claim.ErrNoCapacity) || full.Committed != committed || full.Held != held || runstore.OutcomeOf(err) != runstore.NotApplied {
		t.Errorf("got %v, want no capacity with %d committed and %d held", err, committed, held)
	}
}

func holdErr(t *testing.T, c *claim.Capacity, amount int64) error {
	t.Helper()
	_, err := c.Hold(t.Context(), claim.HoldRequest{Owner: "b", Amount: amount, TTL: time.Minute})
	return err
}

func wantUsage(t *testing.T, c *claim.Capacity, want claim.Usage) {
	t.Helper()
	u, err := c.Usage(t.Context())
	if err != nil || u != want {
		t.Errorf("usage %+v, %v; want %+v", u, err, want)
	}
}

// The life of reservations: held, committed, cancelled, returned. Every call can be repeated.
func TestReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := capacity(t, memory.New(nil).Open(), 10)
		a := hold(t, c, "a", 6, time.Minute)
		if again := hold(t, c, "a", 6, time.Hour); again != a || !a.Expires.Equal(time.Now().Add(time.Minute)) {
			t.Errorf("repeated hold %+v, want %+v", again, a)
		}
		wantFull(t, holdErr(t, c, 5), 0, 6)
		b := hold(t, c, "", 4, time.Minute)
		wantUsage(t, c, claim.Usage{Capacity: 10, Held: 10})
		for range 2 {
			must(t, c.Commit(t.Context(), a))
			must(t, c.Cancel(t.Context(), b))
		}
		if err := c.Cancel(t.Context(), a); !errors.Is(err, claim.ErrCommitted) {
			t.Errorf("cancel of a commitment: %v", err)
		}
		wantUsage(t, c, claim.Usage{Capacity: 10, Committed: 6})
		wantLostHold(t, c.Commit(t.Context(), b))
		found, err := c.Get(t.Context(), "a")
		if err != nil || !found.Committed || found.Amount != 6 || !found.Expires.IsZero() {
			t.Errorf("get: %+v, %v", found, err)
		}
		d := hold(t, c, "d", 1, time.Minute)
		if err := c.Return(t.Context(), d); !errors.Is(err, claim.ErrNotCommitted) {
			t.Errorf("return of a hold: %v", err)
		}
		must(t, c.Cancel(t.Context(), d))
		for range 2 {
			must(t, c.Return(t.Context(), found))
		}
		wantUsage(t, c, claim.Usage{Capacity: 10})
		if _, err := c.Get(t.Context(), "a"); !errors.Is(err, claim.ErrNoReservation) {
			t.Errorf("get of a returned reservation: %v", err)
		}
		// The id is free again, and the former reservation of that id has no part in the new one.
		next := hold(t, c, "a", 2, time.Minute)
		wantLostHold(t, c.Commit(t.Context(), a))
		must(t, c.Cancel(t.Context(), a))
		must(t, c.Return(t.Context(), a))
		must(t, c.Commit(t.Context(), next))
		must(t, c.Return(t.Context(), a))
		wantUsage(t, c, claim.Usage{Capacity: 10, Committed: 2})
	})
}

func wantLostHold(t *testing.T, err error) { t.Helper(); wantLost(t, err, "gone") }

// An expired hold ends when its amount is needed, and not before.
func TestExpiredHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := capacity(t, memory.New(nil).Open(), 10)
		a, b := hold(t, c, "a", 4, time.Minute), hold(t, c, "b", 4, 2*time.Minute)
		time.Sleep(time.Minute - time.Microsecond)
		wantFull(t, holdErr(t, c, 3), 0, 8)
		time.Sleep(time.Minute + time.Microsecond) // both have expired
		wantUsage(t, c, claim.Usage{Capacity: 10, Expired: 8})
		hold(t, c, "c", 3, time.Minute) // takes the amount of a, which expired first
		wantLostHold(t, c.Commit(t.Context(), a))
		must(t, c.Commit(t.Context(), b))
		wantFull(t, holdErr(t, c, 4), 4, 3)
		must(t, c.Cancel(t.Context(), a))
		wantUsage(t, c, claim.Usage{Capacity: 10, Committed: 4, Held: 3})

		// A hold that does not fit in any case ends no other.
		time.Sleep(time.Hour)
		wantFull(t, holdErr(t, c, 7), 4, 0)
		wantUsage(t, c, claim.Usage{Capacity: 10, Committed: 4, Expired: 3})
	})
}

// The capacity is never set below what is used.
func TestSetCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := capacity(t, memory.New(nil).Open(), 10)
		must(t, c.Commit(t.Context(), hold(t, c, "a", 4, time.Minute)))
		b := hold(t, c, "b", 3, time.Minute)
		must(t, c.Set(t.Context(), 7))
		wantFull(t, c.Set(t.Context(), 6), 4, 3)
		time.Sleep(time.Minute)
		must(t, c.Set(t.Context(), 6))
		wantLostHold(t, c.Commit(t.Context(), b))
		must(t, c.Set(t.Context(), 100))
		wantUsage(t, c, claim.Usage{Capacity: 100, Committed: 4})
		must(t, c.Set(t.Context(), 100))
	})
}

// Many small holds that have expired make room for a large one, in several commits. The number of
// holds is bounded, and expired ones make room there, too.
func TestManyHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := capacity(t, memory.New(nil).Open(), 2*claim.MaxHolds)
		for i := range claim.MaxHolds {
			hold(t, c, fmt.Sprint(i), 1, time.Minute)
		}
		err := holdErr(t, c, 1)
		wantFull(t, err, 0, claim.MaxHolds)
		time.Sleep(time.Minute)
		hold(t, c, "one more", 1, time.Hour)
		wantUsage(t, c, claim.Usage{Capacity: 2 * claim.MaxHolds, Held: 1, Expired: claim.MaxHolds - 1})
		hold(t, c, "large", 2*claim.MaxHolds-1, time.Hour)
		wantUsage(t, c, claim.Usage{Capacity: 2 * claim.MaxHolds, Held: 2 * claim.MaxHolds})
		n := 0
		for r, err := range c.Reservations(t.Context()) {
			must(t, err)
			if r.ID != "large" && r.ID != "one more" {
				t.Errorf("reservation %+v is left", r)
			}
			n++
		}
		if n != 2 {
			t.Errorf("%d reservations, want 2", n)
		}
	})
}
