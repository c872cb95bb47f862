package claim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

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
	at, err := q.end(ctx, r, "ack", func(b *runstore.Batch) {
		b.Delete(liveKey(r.ID))
		q.remember(b, r.ID, r.claim)
	})
	if err == nil && q.opts.Remember > 0 && rand.N(sweepEvery) == 0 {
		q.sweep(ctx, q.shardOf(r.ID), at)
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
	if q.isLast(r.Attempts) {
		return q.bury(ctx, r, "nack", reason)
	}
	_, err := q.end(ctx, r, "nack", func(b *runstore.Batch) {
		m := r.Message
		m.Reason = clip(reason)
		b.Records = append(b.Records, q.put(m.in(ready), runstore.After(delay)))
	})
	return err
}

// Bury ends the claim of a receipt whose message no attempt can handle: the message becomes a dead
// letter at once. Otherwise it is like [Queue.Nack].
func (q *Queue) Bury(ctx context.Context, r Receipt, reason string) error {
	return q.bury(ctx, r, "bury", reason)
}

func (q *Queue) bury(ctx context.Context, r Receipt, op, reason string) error {
	_, err := q.end(ctx, r, op, func(b *runstore.Batch) {
		m := r.Message
		m.Reason = clip(reason)
		addLetter(b, m)
	})
	return err
}

// Release ends the claim of a receipt whose message was not worked on, as when a consumer stops. The
// message can be claimed again at once, and the claim does not count as an attempt. Errors are those
// of [Queue.Ack].
func (q *Queue) Release(ctx context.Context, r Receipt) error {
	_, err := q.end(ctx, r, "release", func(b *runstore.Batch) {
		m := r.Message
		m.Attempts--
		b.Records = append(b.Records, q.put(m.in(ready), runstore.After(0)))
	})
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
	m := r.Message.in(claimed)
	m.Owner, m.TTL, m.Claim = r.Owner, ttl.Microseconds(), r.claim
	committed, err := q.write(ctx, &r, "", func(b *runstore.Batch) {
		b.Records = append(b.Records, q.put(m, runstore.After(ttl)))
	})
	if err == nil {
		r.version, r.Expires = committed.Versions[0], committed.Time.Add(ttl)
	}
	return r, err
}

// end makes the writes that end a claim, under an id that is the same for every repeat, and returns
// the time of the commit.
func (q *Queue) end(ctx context.Context, r Receipt, op string, writes func(*runstore.Batch)) (time.Time, error) {
	committed, err := q.write(ctx, &r, batchID(op, r.ID, r.claim), writes)
	return committed.Time, err
}

// write commits writes while the claim of a receipt lasts. It begins with the version that the
// receipt has, and after a conflict it reads the present one, which an extension may have raised.
func (q *Queue) write(ctx context.Context, r *Receipt, id runstore.BatchID, writes func(*runstore.Batch)) (runstore.Committed, error) {
	var none runstore.Committed
	if r.claim == 0 {
		return none, invalid("receipt", "is not one that Claim returned")
	}
	run := q.shardOf(r.ID)
	for n := 0; ; n++ {
		b := runstore.NewBatch(run, runstore.AtVersion(liveKey(r.ID), r.version))
		b.ID = id
		writes(&b)
		committed, err := optimistic.Commit(ctx, q.store, b)
		switch {
		case errors.Is(err, runstore.ErrNotFound):
			return none, &LostError{ID: r.ID, Found: "gone"}
		case !errors.Is(err, runstore.ErrConflict) || n+1 == optimistic.MaxAttempts:
			return committed, err
		}
		m, found, err := q.read(ctx, run, r.ID)
		if err != nil {
			return none, err
		}
		if err := lostTo(*r, m, found); err != nil {
			if m.State == done && m.Claim == r.claim && id == batchID("ack", r.ID, r.claim) {
				return runstore.Committed{Time: m.updated}, nil // a repeat that the store has forgotten
			}
			return none, err
		}
		r.version = m.version
	}
}

// lostTo returns nil if the claim of a receipt is the present one of its message.
func lostTo(r Receipt, m stored, found bool) error {
	lost := &LostError{ID: r.ID}
	switch {
	case !found:
		lost.Found = "gone"
	case m.State == claimed && m.claimID() == r.claim:
		return nil
	case m.State == claimed:
		lost.Found, lost.Owner = "claimed again", m.Owner
	case m.State == ready:
		lost.Found = "given back"
	case m.State == dead:
		lost.Found = "a dead letter"
	default:
		lost.Found = "acknowledged"
	}
	return lost
}

// remember adds the write of a done message's id; claim is the one that was acknowledged, or 0.
func (q *Queue) remember(b *runstore.Batch, id string, claim runstore.Version) {
	if q.opts.Remember > 0 {
		b.Put(doneKey(id), stored{State: done, Claim: claim, Remember: q.opts.Remember.Microseconds()}.encode())
	}
}
