package spanner

import (
	"bytes"
	"context"

	"cloud.google.com/go/spanner"
)

// A place is where a run stands in the index of runnable runs: the later of the time from
// which it may run and the expiry of its current grant as it was made (HeldUntil). Scans
// therefore do not pass over live leases, and a heartbeat touches no index. A lease that was
// renewed is due by its place before it has expired; the scan that meets such an entry leaves
// it out, and this handle moves it to the present expiry behind the scan.
//
//  1. Runnable <= Place <= max(Runnable, Expires): a lease is never shortened, and the move
//     sets HeldUntil to the Expires that its own transaction has read.
//  2. The move is made only while the grant that the scan saw is current.
//  3. Place is a generated column, so whatever ends a grant (a release, a purge, the
//     statement of a new epoch) takes the run back to Runnable in the same commit.
//  4. No scan waits for a move or fails with it. A move that is lost is made after the next
//     scan that meets the entry.

// grant is one of a run's that a scan has seen.
type seenGrant struct {
	hash  int64
	run   []byte
	token int64
	id    []byte
}

const (
	// moveBatch bounds the runs whose rows one transaction locks, which heartbeats of
	// these runs wait for.
	moveBatch = 16
	// moveQueueCap bounds the pages of stale entries that wait; further ones are left to
	// later scans.
	moveQueueCap = 16
)

// enqueueMove hands stale entries to the goroutine that moves them.
func (s *Store) enqueueMove(stale []seenGrant) {
	if len(stale) == 0 {
		return
	}
	select {
	case s.stale <- stale:
	default:
	}
}

// runMover moves stale entries until the handle is closed.
func (s *Store) runMover() {
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

// move sets the places of runs to the present expiry of these grants, where they are current.
// An error is dropped: the entries stay where they are, which is early enough.
func (s *Store) moveEntries(stale []seenGrant) {
	ctx, cancel := context.WithTimeout(s.stopped, s.attemptTimeout)
	defer cancel()
	seen := map[string]seenGrant{}
	var keys []spanner.KeySet
	for _, g := range stale {
		seen[string(g.run)] = g
		keys = append(keys, spanner.Key{g.hash, g.run})
	}
	columns := []string{"Run", "Token", "GrantState", "GrantId", "Expires", "HeldUntil"}
	_, _ = s.client.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		var list []*spanner.Mutation
		err := tx.ReadWithOptions(ctx, "Runs", spanner.KeySets(keys...), columns, s.read("places", 0)).Do(func(row *spanner.Row) error {
			var h head
			if err := row.ToStructLenient(&h); err != nil {
				return err
			}
			g := seen[string(h.Run)]
			current := h.GrantState == 1 && h.Token == g.token && bytes.Equal(h.GrantID, g.id)
			if current && h.Expires.Time.After(h.HeldUntil.Time) {
				list = append(list, spanner.Update("Runs", []string{"RunHash", "Run", "HeldUntil"}, []any{g.hash, g.run, h.Expires}))
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return errNothingToWrite
		}
		return tx.BufferWrite(list)
	}, s.transaction("places"))
}
