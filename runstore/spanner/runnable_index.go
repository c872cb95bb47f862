package spanner

import (
	"bytes"
	"context"

	"cloud.google.com/go/spanner"
)

// The index of runnable runs orders each run by its column Place: the later of the time from
// which the run may be driven and HeldUntil, the expiry of its current grant as granted. Scans
// therefore skip live leases, and a heartbeat writes no index. The entry of a renewed lease
// becomes due before the lease expires. A scan that reads such a stale entry omits it from its
// result, and this handle moves the entry to the present expiry in the background. Invariants:
//
//  1. Runnable <= Place <= max(Runnable, Expires): a lease is never shortened, and the move
//     sets HeldUntil to the Expires that the same transaction has read.
//  2. An entry is moved only while the grant that the scan saw is current.
//  3. Place is a generated column, so every end of a grant (a release, a purge, the
//     statement of a new epoch) returns the run's entry to Runnable in the same commit.
//  4. No scan waits for a move or fails with it. A lost move is repeated after the next
//     scan that reads the entry.

// seenGrant is the grant of a run that a scan has read.
type seenGrant struct {
	hash  int64
	run   []byte
	token int64
	id    []byte
}

const (
	// moveBatch is 16 runs per transaction: heartbeats of these runs wait for the transaction's
	// locks.
	moveBatch = 16
	// moveQueueCap is how many pages of stale entries may wait for the mover; further pages are
	// dropped and left to later scans.
	moveQueueCap = 16
)

// enqueueMove passes stale entries to the mover, or drops them if its queue is full.
func (s *engine) enqueueMove(stale []seenGrant) {
	if len(stale) == 0 {
		return
	}
	select {
	case s.stale <- stale:
	default:
	}
}

// runMover is the goroutine that moves stale entries until the handle is closed.
func (s *engine) runMover() {
	for {
		select {
		case <-s.stopped.Done():
			return
		case stale := <-s.stale:
			for len(stale) > 0 && s.stopped.Err() == nil {
				n := min(len(stale), moveBatch)
				s.moveEntries(stale[:n])
				stale = stale[n:]
			}
		}
	}
}

// moveEntries sets HeldUntil of runs to the present expiry, where the grant that the scan saw is
// still current. It drops errors: an entry that stays where it is only makes a scan read it again.
func (s *engine) moveEntries(stale []seenGrant) {
	ctx, cancel := context.WithTimeout(s.stopped, s.attemptTimeout)
	defer cancel()
	seen := map[string]seenGrant{}
	var keys []spanner.KeySet
	for _, g := range stale {
		seen[string(g.run)] = g
		keys = append(keys, spanner.Key{g.hash, g.run})
	}
	columns := []string{"Run", "Token", "GrantState", "GrantId", "Expires", "HeldUntil"}
	_ = s.writeOnce(ctx, "places", func(ctx context.Context, tx *spanner.ReadWriteTransaction) (list []*spanner.Mutation, err error) {
		var heads []head
		err = spanner.SelectAll(tx.ReadWithOptions(ctx, "Runs", spanner.KeySets(keys...), columns, s.read("places", 0)), &heads, spanner.WithLenient())
		for _, h := range heads {
			g := seen[string(h.Run)]
			current := h.GrantState == 1 && h.Token == g.token && bytes.Equal(h.GrantID, g.id)
			if current && h.Expires.Time.After(h.HeldUntil.Time) {
				list = append(list, spanner.Update("Runs", []string{"RunHash", "Run", "HeldUntil"}, []any{g.hash, g.run, h.Expires}))
			}
		}
		return list, err
	})
}
