package bigtable

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// A ticket lock keeps writers of one run from starving. The handle that made a run's last write knows the
// revision and needs one request for the next write; any other handle needs a read before it. So a holder
// that writes without a pause would win every race, and no other handle could take the lease. An operation
// that has lost several races queues a ticket: it appends an id to the revision's cell, by read-modify-write.
// Then no handle's predicate matches, all have to read, and find the ticket. The first ticket in the cell is
// served; the other operations wait for it, at most ticketTimeout.
//
//  1. A ticket decides nothing. It changes no revision, and a change is still applied only at the revision
//     that it was decided on. So fairness may fail, safety may not.
//  2. A ticket costs the other writers a read, and if its operation has died ticketTimeout.
//  3. A copy of the request that arrives late, or twice, only makes the cell longer, which costs one
//     read more. The value of the cell never comes back, because it only grows until a write replaces
//     it.
//
// TestTakeoverFromAHolderThatIsAlwaysFaster shows what tickets buy.

const (
	revisionSize = 16
	ticketSize   = 8
	maxTickets   = 64 // in a cell
)

// How many races an operation loses before it queues a ticket.
const (
	racesForLease = 2 // taking a lease from a holder must not depend on luck
	racesForWrite = 6
)

// ticketTimeout bounds how long an operation waits for the served one, which may have died. 1 s: a few
// requests from another continent.
const ticketTimeout = time.Second

// ticket is an operation's place in the queue of the operations that want to write a run.
type ticket struct {
	id     []byte
	lost   int
	queued bool // after the last lost race

	served      []byte             // the ticket that was served when this operation last read the cell
	servedSince localclock.Reading // when this operation first read that
	clock       localclock.Clock
}

func newTicket(clock localclock.Clock) *ticket {
	return &ticket{clock: clock, id: binary.BigEndian.AppendUint64(nil, rand.Uint64())}
}

// lostRace counts a race that the operation has lost, and queues its ticket after the last of
// racesForLease or racesForWrite. The caller reads the run after it.
func (t *ticket) lostRace(ctx context.Context, s *engine, r *cachedRun, ofLease bool) {
	t.lost++
	most := racesForWrite
	if ofLease {
		most = racesForLease
	}
	if t.queued = t.lost >= most && r.exists() && len(r.stored) <= revisionSize+maxTickets*ticketSize; t.queued {
		t.queue(ctx, s, r)
	}
}

// rest backs off if the operation has lost several races and has no ticket in the queue. It reports
// whether it did: then what the operation has read is old.
func (t *ticket) rest(s *engine) bool {
	if t.queued || t.lost < 2 {
		return false
	}
	pause(s.closed, rand.N(min(time.Millisecond<<min(t.lost, 10), outcome.MaxPause/4)))
	return true
}

// queuedTickets returns the tickets in a revision's cell.
func queuedTickets(stored []byte) []byte {
	return stored[min(revisionSize, len(stored)):]
}

// isServed reports whether the ticket is the first in the queue.
func (t *ticket) isServed(stored []byte) bool { return bytes.HasPrefix(queuedTickets(stored), t.id) }

// mustWait reports whether the operation has to let another one write first. It reports false once the same
// ticket has been served for as long as bound.
func (t *ticket) mustWait(stored []byte, bound time.Duration) bool {
	ids := queuedTickets(stored)
	if len(ids) < ticketSize || t.isServed(stored) {
		return false
	}
	if first := ids[:ticketSize]; !bytes.Equal(first, t.served) {
		t.served, t.servedSince = bytes.Clone(first), t.clock.Read()
	}
	return t.clock.Since(t.servedSince) < bound
}

// queue appends the ticket to the cell. It sends the request once and ignores errors: the read that follows
// shows whether it was applied.
func (t *ticket) queue(ctx context.Context, s *engine, r *cachedRun) {
	rmw := bigtable.NewReadModifyWrite()
	rmw.AppendValue(familyHead, columnRev, t.id)
	ctx, cancel := context.WithTimeout(ctx, s.ticketTimeout)
	defer cancel()
	_, _ = s.table.ApplyReadModifyWrite(ctx, runKey(r.id), rmw)
}

// expectedRange returns the values of the revision's cell that a change may replace: from (included) to
// (excluded). The operation whose ticket is served ignores tickets queued behind its own.
func (t *ticket) expectedRange(stored []byte) (from, to []byte) {
	if t != nil && t.isServed(stored) {
		from = stored[:revisionSize+ticketSize]
		return from, []byte(after(string(from)))
	}
	return stored, append(bytes.Clone(stored), 0)
}
