package claim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
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
	receipts, err := delivery.Claims[stored, Receipt]{
		Store: q.store, Query: runstore.IndexQuery{Index: q.due}, Max: max, Turns: &q.turns, Log: q.opts.Logger,
		Rules: q.rules, Holder: string(owner), Ends: runstore.After(ttl),
		Decode: func(e runstore.IndexEntry) (stored, delivery.State, error) {
			m, err := decodeLive(e)
			return m, m.delivery(), err
		},
		Write: func(w *runstore.Writes, m stored, next delivery.State) {
			msg := m.message()
			if next.Phase == delivery.Dead && m.State == claimed {
				msg.Reason = clip(fmt.Sprintf("the claim of attempt %d by %.64q expired; before: %s", m.Attempts, m.Owner, m.Reason))
			}
			next.Claim = 0 // the version of this write
			q.move(w, msg, next)
		},
		Claimed: func(m stored, next delivery.State, version runstore.Version, ends time.Time) Receipt {
			r := Receipt{Message: m.message(), Owner: owner, Expires: ends, claim: version, version: version, due: m.due}
			r.Attempts = next.Attempts
			return r
		},
	}.Claim(ctx)
	slices.SortStableFunc(receipts, func(a, b Receipt) int { return a.due.Compare(b.due) })
	return receipts, err
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
