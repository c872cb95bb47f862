package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// Claim claims up to max messages that are due, for a time of ttl on the store clock, and returns
// their receipts, the longest due first. It does not wait: there are none if no message is due, and
// there may be few or none while other callers claim. max is up to [MaxClaim], ttl from [MinTTL] to
// [MaxTTL].
//
// Each claim is an attempt. A message that has had its last attempt becomes a dead letter instead.
//
// One read, and one commit for the messages of each shard. After a lost race with another caller
// both are repeated. Calls on one handle wait for each other.
//
// If the reply to a commit is lost for good, its messages stay claimed until the ttl is over. If
// some shards fail and others do not, Claim returns the receipts of the latter and logs the error.
//
// Errors: runstore.ErrInvalid and runstore.ErrTooLarge for input out of the limits;
// runstore.ErrUnknownOutcome if messages may be claimed; those of RunStore.ScanIndex and
// RunStore.Commit.
func (q *Queue) Claim(ctx context.Context, owner runstore.Owner, max int, ttl time.Duration) ([]Receipt, error) {
	ttl = ttl.Truncate(runstore.TimePrecision)
	if err := firstOf(checkOwner(owner), checkNumber("max", int64(max), 1, MaxClaim), checkDuration("ttl", ttl, MinTTL, MaxTTL)); err != nil {
		return nil, err
	}
	if err := take(ctx, q.turn, "claim"); err != nil {
		return nil, err
	}
	defer func() { <-q.turn }()
	receipts, err := optimistic.Claims[stored, Receipt]{
		Store: q.store, Query: runstore.IndexQuery{Index: q.due}, Max: max,
		Decode: func(e runstore.IndexEntry) (stored, bool) {
			m, err := decodeLive(e)
			if err != nil { // do not let one message hide the others
				q.opts.Logger.WarnContext(ctx, "claim: a message cannot be read", "queue", q.name, "run", e.Run, "record", e.Record.Key, "error", err)
			}
			return m, err == nil
		},
		Commit: func(ctx context.Context, run runstore.RunID, due []stored) ([]Receipt, error) {
			return q.claimShard(ctx, run, owner, ttl, due)
		},
		Lost: func(err error) bool {
			return errors.Is(err, runstore.ErrConflict) || errors.Is(err, runstore.ErrNotFound) // the shard was purged
		},
	}.Claim(ctx)
	if len(receipts) == 0 {
		return nil, err
	}
	if err != nil {
		q.opts.Logger.WarnContext(ctx, "claim: a claim of messages ends early", "queue", q.name, "claimed", len(receipts), "error", err)
	}
	slices.SortStableFunc(receipts, func(a, b Receipt) int { return a.due.Compare(b.due) })
	return receipts, nil
}

// decodeLive returns the message of an entry of the queue's index.
func decodeLive(e runstore.IndexEntry) (stored, error) {
	id, found := strings.CutPrefix(string(e.Record.Key), livePrefix)
	m, err := decode(id, e.Record)
	if err == nil && (!found || m.State != ready && m.State != claimed) {
		err = fmt.Errorf("state %d, which is not that of a live message", m.State)
	}
	m.due = e.At
	return m, err
}

// claimShard claims messages of one shard, all or none. Those that have had their last attempt
// become dead letters.
func (q *Queue) claimShard(ctx context.Context, run runstore.RunID, owner runstore.Owner, ttl time.Duration, due []stored) ([]Receipt, error) {
	b := runstore.NewBatch(run, runstore.AtVersion(liveKey(due[0].id), due[0].version))
	writes := make([]int, len(due)) // the write of each message that is claimed, or -1
	for i, m := range due {
		if i > 0 {
			b.Require(runstore.AtVersion(liveKey(m.id), m.version))
		}
		if q.isLast(m.Attempts) {
			writes[i] = -1
			letter := m.message()
			if m.State == claimed {
				letter.Reason = clip(fmt.Sprintf("the claim of attempt %d by %.64q expired; before: %s", m.Attempts, m.Owner, m.Reason))
			}
			addLetter(&b, letter)
			continue
		}
		writes[i] = len(b.Records)
		b.Records = append(b.Records, q.put(m.claimedBy(owner, ttl), runstore.After(ttl)))
	}
	committed, err := optimistic.Commit(ctx, q.store, b)
	if err != nil {
		return nil, err
	}
	receipts := make([]Receipt, 0, len(due))
	for i, m := range due {
		if writes[i] < 0 {
			continue
		}
		version := committed.Versions[writes[i]]
		receipts = append(receipts, Receipt{
			Message: m.claimedBy(owner, ttl).message(), Owner: owner, Expires: committed.Time.Add(ttl),
			claim: version, version: version, due: m.due,
		})
	}
	return receipts, nil
}

// claimedBy returns the message in a new claim.
func (m stored) claimedBy(owner runstore.Owner, ttl time.Duration) stored {
	next := m.message().in(claimed)
	next.Attempts++
	next.Owner, next.TTL = owner, ttl.Microseconds()
	return next
}

// isLast reports whether a message has had its last attempt.
func (q *Queue) isLast(attempts int) bool {
	return q.opts.MaxAttempts > 0 && attempts >= q.opts.MaxAttempts
}

// addLetter adds the writes that make a live message a dead letter.
func addLetter(b *runstore.Batch, m Message) {
	b.Delete(liveKey(m.ID))
	b.Put(deadKey(m.ID), m.in(dead).encode())
}

// take takes the turn of a handle.
func take(ctx context.Context, turn chan struct{}, op string) error {
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &runstore.OpError{Op: op, Err: runstore.ErrUnavailable, Cause: context.Cause(ctx)}
	}
}
