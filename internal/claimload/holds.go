package claimload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tapestore/tapestore/lease/claim"
	"github.com/tapestore/tapestore/runstore"
)

var quiet = slog.New(slog.DiscardHandler)

// reservations is what the workers know of all reservations.
type reservations struct {
	load Load
	t    T
	all  int64 // the capacity

	mu    sync.Mutex
	held  map[string]*held
	holds int
	full  int // refused holds
	late  int // refused commits
}

// held is a reservation that exists for sure: a hold until it expires or its holder begins to
// cancel it, a commitment until its holder begins to return it.
type held struct {
	claim.Reservation
	begin     time.Time // on the store clock
	got       time.Time // when the holder had it, on its clock
	lasts     time.Time // the hold lasted at least until this time of the holder's clock
	committed bool
}

// Holds reserves parts of a capacity, commits some of them and returns what is committed.
func Holds(t T, l Load, capacity int64) {
	t.Helper()
	m := &reservations{load: l, t: t, all: capacity, held: map[string]*held{}}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	sound, err := claim.NewCapacity(l.Stores[0], "load")
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := sound.Set(ctx, capacity); err != nil {
		t.Fatalf("set the capacity: %v", err)
	}
	l.run(t, func(w worker) {
		c, err := claim.NewCapacity(w.store, "load")
		if err != nil {
			t.Errorf("%v", err)
			return
		}
		for round := range l.Rounds {
			m.reserve(ctx, w, c, fmt.Sprintf("%d/%d", w.n, round))
		}
	})
	m.finish(ctx, sound)
	t.Logf("%d holds, %d refused holds, %d refused commits", m.holds, m.full, m.late)
}

// expect fails the test for an error that is neither one of those given nor a fault.
func (m *reservations) expect(op string, err error, allowed ...error) {
	kind := runstore.KindOf(err)
	if err == nil || kind == runstore.ErrUnavailable || kind == runstore.ErrUnknownOutcome {
		return
	}
	for _, a := range allowed {
		if errors.Is(err, a) {
			return
		}
	}
	m.t.Errorf("%s: %v", op, err)
}

// reserve is the life of one reservation.
func (m *reservations) reserve(ctx context.Context, w worker, c *claim.Capacity, id string) {
	req := claim.HoldRequest{ID: id, Owner: runstore.Owner(fmt.Sprint("worker ", w.n)), Amount: 1 + w.random.Int64N(m.all/2), TTL: m.load.TTL}
	var r claim.Reservation
	called := time.Now()
	_, err := w.insist(func() (err error) { r, err = c.Hold(ctx, req); return err })
	m.expect("hold", err, claim.ErrNoCapacity)
	if err != nil {
		m.count(&m.full)
		w.pause(m.load.TTL)
		return // a hold of unknown outcome is abandoned
	}
	m.add(r, called)
	w.pause(3 * m.load.TTL / 2)
	switch w.random.IntN(4) {
	case 0:
		return // the holder dies
	case 1:
		m.remove(r)
		_, err := w.insist(func() error { return c.Cancel(ctx, r) })
		m.expect("cancel", err)
		return
	}
	outcome, err := w.insist(func() error { return c.Commit(ctx, r) })
	m.expect("commit", err, claim.ErrLost)
	switch {
	case errors.Is(err, claim.ErrLost):
		m.remove(r)
		m.count(&m.late)
		return
	case outcome == runstore.Applied:
		m.commit(r)
	}
	w.pause(m.load.TTL)
	if w.random.IntN(6) == 0 {
		return // finish returns it
	}
	m.remove(r)
	_, err = w.insist(func() error { return c.Return(ctx, r) })
	m.expect("return", err, claim.ErrNotCommitted)
}

func (m *reservations) count(n *int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*n++
}

// add records a hold, and checks that when it began the capacity was not exceeded: by what existed
// then, and by now has not ended in another way than by its expiry.
func (m *reservations) add(r claim.Reservation, called time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holds++
	now := &held{r, r.Expires.Add(-m.load.TTL), time.Now(), called.Add(m.load.TTL), false}
	exact, sure := r.Amount, r.Amount
	for _, h := range m.held {
		if !h.begin.After(now.begin) && (h.committed || h.Expires.After(now.begin)) {
			exact += h.Amount
		}
		if h.got.Before(called) && (h.committed || h.lasts.After(now.got)) {
			sure += h.Amount
		}
	}
	if m.load.Exact && exact > m.all || sure > m.all {
		m.t.Errorf("%d of %d are reserved at %v, %d by the clocks of the holders", exact, m.all, now.begin, sure)
	}
	m.held[r.ID] = now
}

func (m *reservations) commit(r claim.Reservation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[r.ID].committed = true
}

func (m *reservations) remove(r claim.Reservation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, r.ID)
}

// finish waits until all holds have expired, checks that what exists for sure is there and that
// nothing leaks, and returns everything.
func (m *reservations) finish(ctx context.Context, c *claim.Capacity) {
	var usage claim.Usage
	for {
		var err error
		if usage, err = c.Usage(ctx); err != nil {
			m.t.Fatalf("usage after the load: %v", err)
		}
		if usage.Held == 0 {
			break
		}
		time.Sleep(m.load.TTL / 4)
	}
	var committed []claim.Reservation
	sum := int64(0)
	for r, err := range c.Reservations(ctx) {
		if err != nil {
			m.t.Fatalf("reservations after the load: %v", err)
		}
		if r.Committed {
			committed = append(committed, r)
			sum += r.Amount
		}
		if h := m.held[r.ID]; h != nil && h.committed && h.Amount != r.Amount {
			m.t.Errorf("%s: %d are committed, not %d", r.ID, r.Amount, h.Amount)
		}
	}
	for id, h := range m.held {
		if h.committed && !hasID(committed, id) {
			m.t.Errorf("%s: the commitment is lost", id)
		}
	}
	if sum != usage.Committed || usage.Capacity != m.all {
		m.t.Errorf("usage %+v, but the commitments are %d of %d", usage, sum, m.all)
	}
	if free := m.all - sum; free > 0 {
		r, err := c.Hold(ctx, claim.HoldRequest{Owner: "end", Amount: free, TTL: time.Hour})
		if err != nil {
			m.t.Fatalf("hold of everything that is not committed: %v", err)
		}
		if err := c.Cancel(ctx, r); err != nil {
			m.t.Fatalf("cancel: %v", err)
		}
	}
	for _, r := range committed {
		if err := c.Return(ctx, r); err != nil {
			m.t.Fatalf("return: %v", err)
		}
	}
	r, err := c.Hold(ctx, claim.HoldRequest{Owner: "end", Amount: m.all, TTL: time.Hour})
	if err != nil {
		m.t.Fatalf("hold of everything: %v", err)
	}
	for other, err := range c.Reservations(ctx) {
		if err != nil || other.ID != r.ID {
			m.t.Errorf("reservation %+v is left, %v", other, err)
		}
	}
}

func hasID(all []claim.Reservation, id string) bool {
	for _, r := range all {
		if r.ID == id {
			return true
		}
	}
	return false
}
