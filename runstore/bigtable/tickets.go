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

// Whoever made a run's last write knows its revision, and needs one request for the next;
// everybody else needs two, a read before it. A holder that writes without a pause would so
// win every race, and nobody could ever take the lease from it. So who has lost several
// races asks for the next turn: it appends an id of its own to the revision's cell, by
// read-modify-write. Nobody's predicate matches any more, so all have to read, and find the
// id. The first id in the cell has the turn; the others wait for it, for a while.
//
// An id decides nothing: it changes no revision, and a change is still made only if the
// revision is the one that it was decided on. A copy of the request that comes late, or
// twice, makes the cell longer than it was ever before, and costs everybody one more read.

const (
	revisionSize = 16
	ticketSize   = 8
	maxTickets   = 64 // that wait in a cell
)

// How many races are lost before an operation asks for the next turn.
const (
	racesForLease = 2 // taking a lease from a holder must not depend on luck
	racesForWrite = 6
)

// ticketTimeout bounds how long an operation waits for one whose turn it is, on the clock of its
// process: a few requests, also from another continent. It may have died.
const ticketTimeout = time.Second

// ticket is an operation's place among those that want to write a run.
type ticket struct {
	id     []byte
	lost   int
	queued bool // for the next turn, after the last of them

	served      []byte             // whose turn it was when this operation last looked,
	servedSince localclock.Reading // and since when
	clock       localclock.Clock
}

func newTicket(here localclock.Clock) *ticket {
	return &ticket{clock: here, id: binary.BigEndian.AppendUint64(nil, rand.Uint64())}
}

// lostRace is called after each race that the operation lost, before it reads the run: it
// asks for the next turn if that is due.
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

// rest waits a moment before an operation that lost several races and has not asked for
// a turn tries again, and reports whether it did: what was read before is old then.
func (t *ticket) rest(s *engine) bool {
	if t.queued || t.lost < 2 {
		return false
	}
	pause(s.closed, rand.N(min(time.Millisecond<<min(t.lost, 10), outcome.MaxPause/4)))
	return true
}

// queuedTickets returns the ids in a revision's cell.
func queuedTickets(stored []byte) []byte {
	return stored[min(revisionSize, len(stored)):]
}

// isServed reports whether it is the operation's turn.
func (t *ticket) isServed(stored []byte) bool { return bytes.HasPrefix(queuedTickets(stored), t.id) }

// mustWait reports whether the operation has to let another one write first, for which it
// waits no longer than bound.
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

// queue puts the operation's id into the cell. It is sent once; whether it came is seen by
// the read that follows.
func (t *ticket) queue(ctx context.Context, s *engine, r *cachedRun) {
	rmw := bigtable.NewReadModifyWrite()
	rmw.AppendValue(familyHead, columnRev, t.id)
	ctx, cancel := context.WithTimeout(ctx, s.ticketTimeout)
	defer cancel()
	_, _ = s.table.ApplyReadModifyWrite(ctx, runKey(r.id), rmw)
}

// expectedRange is the range of values of the revision's cell that a change may replace: from
// (included) to (excluded). Who has the turn need not mind who came to wait behind it.
func (t *ticket) expectedRange(stored []byte) (from, to []byte) {
	if t != nil && t.isServed(stored) {
		from = stored[:revisionSize+ticketSize]
		return from, []byte(after(string(from)))
	}
	return stored, append(bytes.Clone(stored), 0)
}
