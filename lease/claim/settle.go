package claim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// Ack ends the claim of a receipt: the message is done, and its id is remembered for
// QueueOptions.Remember. A claim that has expired counts as long as no other caller has claimed the
// message. One round trip; one call in 16 makes up to three more, to delete ids that are over.
//
// Errors: LostError if the claim has ended; those of RunStore.Commit. After
// runstore.ErrUnknownOutcome repeat the call: the repeat of an ack that was applied succeeds, as the
// package documentation says.
func (q *Queue) Ack(ctx context.Context, r Receipt) error {
	committed, err := q.settle(ctx, &r, "ack", q.rules.Complete)
	if err == nil && q.opts.Remember > 0 && rand.N(sweepEvery) == 0 {
		q.sweep(ctx, q.shardOf(r.ID), committed.Time)
	}
	return err
}

// Nack ends the claim of a receipt whose attempt has failed. The message can be claimed again after
// a delay, from 0 to [MaxDelay]; after the last attempt it becomes a dead letter. Of the reason, up
// to [MaxReason] bytes are stored. A claim that has expired counts as long as no other caller has
// claimed the message. One round trip.
//
// Errors: runstore.ErrInvalid for a delay out of the limits; LostError if the claim has ended; those
// of RunStore.Commit. After runstore.ErrUnknownOutcome repeat the call.
func (q *Queue) Nack(ctx context.Context, r Receipt, delay time.Duration, reason string) error {
	if err := checkDuration("delay", delay, 0, MaxDelay); err != nil {
		return err
	}
	return q.fail(ctx, r, "nack", runstore.After(delay), reason)
}

// Bury ends the claim of a receipt whose message no attempt can handle: the message becomes a dead
// letter at once. Otherwise it is like [Queue.Nack].
func (q *Queue) Bury(ctx context.Context, r Receipt, reason string) error {
	return q.fail(ctx, r, "bury", runstore.When{}, reason)
}

func (q *Queue) fail(ctx context.Context, r Receipt, op string, next runstore.When, reason string) error {
	r.Reason = clip(reason)
	_, err := q.settle(ctx, &r, op, func(s delivery.State, p delivery.Receipt) (delivery.State, delivery.Result) {
		return q.rules.Fail(s, p, next)
	})
	return err
}

// Release ends the claim of a receipt whose message was not worked on, as when a consumer stops. The
// message can be claimed again at once, and the claim does not count as an attempt. Errors are those
// of [Queue.Ack].
func (q *Queue) Release(ctx context.Context, r Receipt) error {
	_, err := q.settle(ctx, &r, "release", q.rules.Release)
	return err
}

// Extend makes the claim of a receipt end at ttl from now, on the store clock, also if it would end
// later otherwise, and returns the receipt with the new end. The receipt that was passed stays valid.
// A claim that has expired can be extended as long as no other caller has claimed the message. One
// round trip.
//
// Errors: runstore.ErrInvalid for a ttl out of the limits; LostError if the claim has ended; those
// of RunStore.Commit. After runstore.ErrUnknownOutcome the claim has the old end or the new one,
// and the receipt is valid.
func (q *Queue) Extend(ctx context.Context, r Receipt, ttl time.Duration) (Receipt, error) {
	ttl = ttl.Truncate(runstore.TimePrecision)
	if err := checkDuration("ttl", ttl, MinTTL, MaxTTL); err != nil {
		return r, err
	}
	committed, err := q.settle(ctx, &r, "", func(s delivery.State, p delivery.Receipt) (delivery.State, delivery.Result) {
		return q.rules.Extend(s, p, runstore.After(ttl))
	})
	if err == nil {
		r.version, r.Expires = committed.Versions[0], committed.Time.Add(ttl)
	}
	return r, err
}

// settle makes a transition of the message of a receipt. A transition that ends the claim is
// committed under an id that is the same for every repeat of op. It begins with the state that the
// receipt shows, and after a conflict it reads the present one: an extension may have raised the
// version.
func (q *Queue) settle(ctx context.Context, r *Receipt, op string,
	transition func(delivery.State, delivery.Receipt) (delivery.State, delivery.Result)) (runstore.Committed, error) {
	var none runstore.Committed
	if r.claim == 0 {
		return none, invalid("receipt", "is not one that Claim returned")
	}
	run, proof := q.shardOf(r.ID), delivery.Receipt{Claim: int64(r.claim)}
	s := delivery.State{Phase: delivery.Claimed, Holder: string(r.Owner), Claim: proof.Claim, Attempts: r.Attempts}
	m := stored{version: r.version}
	for n := 0; ; n++ {
		next, result := transition(s, proof)
		if result != delivery.Applied {
			return none, m.lost(r.ID, result) // the receipt must not get the version of another claim
		}
		r.version = m.version
		b := runstore.NewBatch(run, runstore.AtVersion(liveKey(r.ID), r.version))
		if op != "" {
			b.ID = batchID(op, r.ID, r.claim)
		}
		q.move(&b.Writes, r.Message, next)
		committed, err := optimistic.Commit(ctx, q.store, b)
		switch {
		case errors.Is(err, runstore.ErrNotFound):
			return none, &LostError{ID: r.ID, Found: "gone"}
		case !errors.Is(err, runstore.ErrConflict) || n+1 == optimistic.MaxAttempts:
			return committed, err
		}
		if m, _, err = q.read(ctx, run, r.ID); err != nil {
			return none, err
		}
		if op == "ack" && m.State == done && m.Claim == r.claim {
			return runstore.Committed{Time: m.updated}, nil // a repeat that the store has forgotten
		}
		s = m.delivery()
	}
}

// lost returns the error of a transition that was refused, by the present state of the message; the
// zero message is one that is gone.
func (m stored) lost(id string, result delivery.Result) error {
	lost := &LostError{ID: id}
	switch {
	case result == delivery.Superseded:
		lost.Found, lost.Owner = "claimed again", m.Owner
	case result == delivery.Returned:
		lost.Found = "given back"
	case m.State == dead:
		lost.Found = "a dead letter"
	case m.State == done:
		lost.Found = "acknowledged"
	default:
		lost.Found = "gone"
	}
	return lost
}
