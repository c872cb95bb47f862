package claim

import (
	"context"
	"crypto/rand"
	"iter"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Reservation is a part of a capacity: held until it expires, or committed.
type Reservation struct {
	ID     string
	Owner  runstore.Owner
	Amount int64
	// Committed reports whether the amount is used until it is returned.
	Committed bool
	// Expires is when the hold expires, on the store clock; zero once it is committed.
	Expires time.Time

	version runstore.Version // of the hold's record before it was committed
}

// HoldRequest is the input of [Capacity.Hold].
type HoldRequest struct {
	// ID names the reservation, up to [MaxID] bytes, so that the request can be repeated and the
	// reservation found. Empty means a random id.
	ID string
	// Owner is for people and logs.
	Owner runstore.Owner
	// Amount is at least 1.
	Amount int64
	// TTL is the time after which the hold expires, on the store clock: [MinTTL] to [MaxTTL].
	TTL time.Duration
}

func (h reservation) ttl() time.Duration { return time.Duration(h.TTL) * time.Microsecond }

// public returns the reservation as callers see it.
func (h reservation) public() Reservation {
	r := Reservation{ID: h.id, Owner: h.Owner, Amount: h.Amount, Committed: h.Committed, version: h.record.Version}
	if h.Committed {
		r.version-- // the commit is the only write after the hold
	} else {
		r.Expires = h.record.Updated.Time.Add(h.ttl())
	}
	return r
}

// Hold reserves an amount for a while. It does not wait: if the amount is not free it returns a
// NoCapacityError. An expired hold makes room if the amount does not fit otherwise; then that hold
// has ended. Two round trips; three if an expired hold has to make room, or if nothing can.
//
// A repeat of the request returns the reservation that exists, with the expiry that it has. Once
// that has ended, the repeat is a new request.
//
// Errors: runstore.ErrInvalid and runstore.ErrTooLarge for input out of the limits, and for the id
// of a reservation of another amount or owner; NoCapacityError; runstore.ErrNotFound if the capacity
// was not set; those of RunStore.Commit. After runstore.ErrUnknownOutcome repeat the request with
// the id of the result; a hold that no caller knows of expires.
func (c *Capacity) Hold(ctx context.Context, req HoldRequest) (Reservation, error) {
	if req.ID == "" {
		req.ID = rand.Text()
	}
	req.TTL = req.TTL.Truncate(runstore.TimePrecision)
	if err := firstOf(checkSize("id", req.ID, 1, MaxID), checkOwner(req.Owner),
		checkNumber("amount", req.Amount, 1, MaxAmount), checkDuration("ttl", req.TTL, MinTTL, MaxTTL)); err != nil {
		return Reservation{ID: req.ID}, err
	}
	rec, err := c.change(ctx, req.ID, req.Amount, func(a *account, h *reservation) (*change, error) {
		if h != nil {
			if h.Amount != req.Amount || h.Owner != req.Owner {
				return nil, invalid("id", "is that of a reservation of %d by %.64q", h.Amount, string(h.Owner))
			}
			return nil, nil
		}
		a.Held += req.Amount
		a.Holds++
		return &change{put: &reservation{Amount: req.Amount, Owner: req.Owner, TTL: req.TTL.Microseconds()}}, nil
	})
	if err != nil {
		return Reservation{ID: req.ID}, err
	}
	h, err := c.decodeHold(rec)
	return h.public(), err
}

// Commit makes a hold permanent: its amount is used until Return. A hold that has expired can be
// committed as long as its amount was not needed by another caller. A call can be repeated. Two
// round trips.
//
// Errors: LostError if the hold has ended; those of RunStore.Commit.
func (c *Capacity) Commit(ctx context.Context, r Reservation) error {
	return c.settle(ctx, r, func(a *account, h *reservation) (*change, error) {
		switch {
		case h == nil:
			return nil, &LostError{ID: r.ID, Found: "gone"}
		case h.Committed:
			return nil, nil
		}
		a.Held, a.Holds, a.Committed = a.Held-h.Amount, a.Holds-1, a.Committed+h.Amount
		committed := *h
		committed.Committed, committed.TTL = true, 0
		return &change{put: &committed}, nil
	})
}

// Cancel ends a hold. If the hold has ended already, it does nothing. A call can be repeated. Two
// round trips.
//
// Errors: ErrCommitted if the reservation is committed; those of RunStore.Commit.
func (c *Capacity) Cancel(ctx context.Context, r Reservation) error {
	return c.settle(ctx, r, func(a *account, h *reservation) (*change, error) {
		switch {
		case h == nil:
			return nil, nil
		case h.Committed:
			return nil, ErrCommitted
		}
		a.Held, a.Holds = a.Held-h.Amount, a.Holds-1
		return &change{deletes: true}, nil
	})
}

// Return gives the amount of a committed reservation back. If that was returned already, it does
// nothing. A call can be repeated. Two round trips.
//
// Errors: ErrNotCommitted if the reservation is not committed; those of RunStore.Commit.
func (c *Capacity) Return(ctx context.Context, r Reservation) error {
	return c.settle(ctx, r, func(a *account, h *reservation) (*change, error) {
		switch {
		case h == nil:
			return nil, nil
		case !h.Committed:
			return nil, ErrNotCommitted
		}
		a.Committed -= h.Amount
		return &change{deletes: true}, nil
	})
}

// settle changes a reservation. decide gets nil if the reservation has ended, also if a later one
// has its id.
func (c *Capacity) settle(ctx context.Context, r Reservation, decide func(a *account, h *reservation) (*change, error)) error {
	if r.version == 0 {
		return invalid("reservation", "is not one that Hold or Get returned")
	}
	_, err := c.change(ctx, r.ID, r.Amount, func(a *account, h *reservation) (*change, error) {
		if h != nil && h.public().version != r.version {
			h = nil
		}
		return decide(a, h)
	})
	return err
}

// Get returns the reservation of an id, for a caller that has lost it. One round trip. Errors:
// ErrNoReservation; those of RunStore.ReadRecords.
func (c *Capacity) Get(ctx context.Context, id string) (Reservation, error) {
	if err := checkSize("id", id, 1, MaxID); err != nil {
		return Reservation{}, err
	}
	_, h, err := c.read(ctx, id)
	if err == nil && h == nil {
		err = ErrNoReservation
	}
	if err != nil {
		return Reservation{}, err
	}
	return h.public(), nil
}

// Reservations iterates over all reservations by id, expired holds that were not replaced among
// them. It stops at the first error.
func (c *Capacity) Reservations(ctx context.Context) iter.Seq2[Reservation, error] {
	return func(yield func(Reservation, error) bool) {
		for rec, err := range runstore.Records(ctx, c.store, c.run, holdPrefix) {
			var h reservation
			if err == nil {
				h, err = c.decodeHold(rec)
			}
			if err != nil {
				yield(Reservation{}, err)
				return
			}
			if !yield(h.public(), nil) {
				return
			}
		}
	}
}

// Usage is how much of a capacity is used.
type Usage struct {
	// Committed and Held are the amounts in use; Held contains no expired hold.
	Capacity, Committed, Held int64
	// Expired is the amount of expired holds, which is free.
	Expired int64
}

// Free returns the amount that can be held.
func (u Usage) Free() int64 { return u.Capacity - u.Committed - u.Held }

// Usage returns how much of the capacity is used. It makes several reads, and what changes between
// them may be counted in part. Errors: runstore.ErrNotFound if the capacity was not set; those of
// RunStore.ReadRecords and RunStore.ScanIndex.
func (c *Capacity) Usage(ctx context.Context) (Usage, error) {
	var expired int64
	for e, err := range runstore.Entries(ctx, c.store, runstore.IndexQuery{Index: c.holds}) {
		if err != nil {
			return Usage{}, err
		}
		h, err := c.decodeHold(e.Record)
		if err != nil {
			return Usage{}, err
		}
		expired += h.Amount
	}
	a, _, err := c.read(ctx, "")
	if err != nil {
		return Usage{}, err
	}
	expired = min(expired, a.Held)
	return Usage{Capacity: a.Capacity, Committed: a.Committed, Held: a.Held - expired, Expired: expired}, nil
}
