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
	turnSize     = 8
	maxTurns     = 64 // that wait in a cell
)

// How many races are lost before an operation asks for the next turn.
const (
	missesOfLease = 2 // taking a lease from a holder must not depend on luck
	missesOfOther = 6
)

// yieldFor bounds how long an operation waits for one whose turn it is, on the clock of its
// process: a few requests, also from another continent. It may have died.
const yieldFor = time.Second

// turn is an operation's place among those that want to write a run.
type turn struct {
	id     []byte
	misses int
	asked  bool // for the next turn, after the last of them

	first []byte             // whose turn it was when this operation last looked,
	since localclock.Reading // and since when
	here  localclock.Clock
}

func newTurn(here localclock.Clock) *turn {
	return &turn{here: here, id: binary.BigEndian.AppendUint64(nil, rand.Uint64())}
}

// lost is called after each race that the operation lost, before it reads the run: it
// asks for the next turn if that is due.
func (t *turn) lost(ctx context.Context, s *engine, r *run, ofLease bool) {
	t.misses++
	most := missesOfOther
	if ofLease {
		most = missesOfLease
	}
	if t.asked = t.misses >= most && r.exists() && len(r.stored) <= revisionSize+maxTurns*turnSize; t.asked {
		t.ask(ctx, s, r)
	}
}

// rests waits a moment before an operation that lost several races and has not asked for
// a turn tries again, and reports whether it did: what was read before is old then.
func (t *turn) rests(s *engine) bool {
	if t.asked || t.misses < 2 {
		return false
	}
	pause(s.closed, rand.N(min(time.Millisecond<<min(t.misses, 10), outcome.MaxPause/4)))
	return true
}

// waiting returns the ids in a revision's cell.
func waiting(stored []byte) []byte {
	return stored[min(revisionSize, len(stored)):]
}

// isFirst reports whether it is the operation's turn.
func (t *turn) isFirst(stored []byte) bool { return bytes.HasPrefix(waiting(stored), t.id) }

// yields reports whether the operation has to let another one write first, for which it
// waits no longer than bound.
func (t *turn) yields(stored []byte, bound time.Duration) bool {
	ids := waiting(stored)
	if len(ids) < turnSize || t.isFirst(stored) {
		return false
	}
	if first := ids[:turnSize]; !bytes.Equal(first, t.first) {
		t.first, t.since = bytes.Clone(first), t.here.Read()
	}
	return t.here.Since(t.since) < bound
}

// ask puts the operation's id into the cell. It is sent once; whether it came is seen by
// the read that follows.
func (t *turn) ask(ctx context.Context, s *engine, r *run) {
	rmw := bigtable.NewReadModifyWrite()
	rmw.AppendValue(familyHead, columnRev, t.id)
	ctx, cancel := context.WithTimeout(ctx, s.yieldFor)
	defer cancel()
	_, _ = s.table.ApplyReadModifyWrite(ctx, runKey(r.id), rmw)
}

// expected is the range of values of the revision's cell that a change may replace: from
// (included) to (excluded). Who has the turn need not mind who came to wait behind it.
func (t *turn) expected(stored []byte) (from, to []byte) {
	if t != nil && t.isFirst(stored) {
		from = stored[:revisionSize+turnSize]
		return from, []byte(after(string(from)))
	}
	return stored, append(bytes.Clone(stored), 0)
}
