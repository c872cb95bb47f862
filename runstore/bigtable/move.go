package bigtable

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// A move evicts the records of a run that were changed longest ago: it copies each into a row, and then
// one conditional mutation of the run's row lists the move and removes their cells. It holds the run's
// lock, so it never races with a write of the same handle. If another handle writes first, none of the
// rows counts, and they are deleted; after a crash they stay until a rewriting reads them or the run is purged.
//
// A rewriting is the compaction of cold rows: it drops tombstones and shortens the list of moves. It
// copies page after page of cold rows, each under a new move, and the list has its cursor, so it is
// resumed after a crash. Writes of the run may come between two steps.

// Bounds of the records in a run's row.
const (
	// hotBytes is how many bytes of records a row has before some leave it. 192 KiB: less than load
	// reads at once (maxLoaded). A third stays, the records that were changed last.
	hotBytes = 192 << 10
	// rewriteRows is how many rows one step of a rewriting copies at most, and rewriteBytes after
	// how many bytes it ends.
	rewriteRows  = 1000
	rewriteBytes = 1 << 20
	// maxMoves is how many moves a list has before the cold rows are rewritten. 2048: 32 KiB of the row. In
	// very large runs it is twice as many as the last rewriting has left (moveList.isLong): up to 32 bytes
	// for each 1000 rows, or 1 MiB, of cold records.
	maxMoves = 2048
	// maxTombstones is how many tombstones there are before the cold rows are rewritten, unless they
	// are fewer than half of the rows. As many rows that later moves have replaced, and twice as many as there are
	// records, have them rewritten too: a handle reads the digests of these rows with the others.
	maxTombstones = 1000
	// lateRows is how long the cold rows of a run from before a raise of the epoch are not rewritten after it, unless
	// the list has maxLateMoves.
	// A day: most outages of a cluster are shorter. 16,384: 256 KiB of the row.
	lateRows     = 24 * time.Hour
	maxLateMoves = 1 << 14
)

// needsMove reports whether records should leave the run's row. If the last move had to leave many
// records, the next one waits until the row has grown by as much as a move usually removes.
func (s *engine) needsMove(r *cachedRun) bool {
	return r.exists() && r.head.RecordBytes > max(s.hotBytes, r.keptBytes+s.hotBytes*2/3)
}

// moveInBackground moves records of a run that needsMove reports, and rewrites cold rows if that is due.
// It does nothing while another call for the run is at work.
func (s *engine) moveInBackground(r *cachedRun) {
	if s.needsMove(r) && r.moving.CompareAndSwap(false, true) {
		s.moveStep(r, s.moveRecords)
	}
}

// moveStep performs one step in the background, and then the steps of the rewriting. Each step has its own retry timeout.
func (s *engine) moveStep(r *cachedRun, step func(context.Context, *cachedRun, *outcome.Backoff) (bool, error)) {
	s.inBackground(func(ctx context.Context) error {
		again, err := s.withLock(ctx, r.id, step)
		if again && err == nil {
			s.moveStep(r, s.rewrite)
			return nil
		}
		r.moving.Store(false)
		return s.unlessSkipped(r.id, err)
	})
}

// withLock calls f with the lock of a run.
func (s *engine) withLock(ctx context.Context, id runstore.RunID, f func(context.Context, *cachedRun, *outcome.Backoff) (bool, error)) (again bool, err error) {
	r, t, err := s.lock(ctx, id)
	if err != nil {
		return false, err
	}
	defer func() { s.unlock(r, err) }()
	return f(ctx, r, t)
}

// mover is an edit that moves records.
type mover struct {
	*edit
	list         *moveList
	move         coldMove
	fingerprints fingerprints
}

// moveNow moves records of a run before a write of it. If another handle writes first, the caller has to
// read the run again.
func (s *engine) moveNow(ctx context.Context, r *cachedRun, t *outcome.Backoff) error {
	_, err := s.moveRecords(ctx, r, t)
	if err == nil && !r.known && !t.More(ctx) {
		err = outcome.Unavailable(outcome.Cause(ctx, errBusy))
	}
	if err != nil {
		r.forget()
	}
	return err
}

// newMover reads a run's row. It returns nil if there is no such run, or if the run is in an old epoch,
// which the next write raises. Then the caller has to read the run again.
func (s *engine) newMover(ctx context.Context, r *cachedRun) (*mover, *row, error) {
	at, err := s.readRun(ctx, r.id, wholeFamily(familyRecords), moveListFilter())
	if err != nil || !at.exists() || at.head.isOld(s.currentEpoch()) {
		r.forget()
		return nil, nil, err
	}
	list, err := at.moveList()
	if err != nil {
		return nil, nil, err
	}
	r.learn(at)
	m := &mover{edit: newEdit(r, runstore.FromMicros(r.head.Time)), fingerprints: fingerprints{exact: true}}
	m.list, m.move = &moveList{generation: r.head.Generation, stamp: r.head.Stamp}, coldMove{m.head.Rev, m.nonce}
	if list != nil {
		*m.list = *list
	}
	m.list.moves = append(slices.Clone(m.list.moves), m.move)
	m.head.requires(formatCold)
	m.head.Moved = m.move.rev
	m.records = map[runstore.RecordKey]*recordMeta{}
	return m, at, nil
}

// add adds a record to the move.
func (m *mover) add(key runstore.RecordKey, cell []byte, meta *recordMeta) {
	column := coldHere
	if meta.Pack != nil {
		column = coldPacked
	}
	m.rows = append(m.rows, putAt(coldKey(m.run.id, m.list.generation, key, m.move), column, timestampOf(m.head.Stamp), cell))
	m.fingerprints.add(key, m.move.rev, meta)
	m.head.ColdTop = max(m.head.ColdTop, meta.Version)
	if m.list.Rows++; meta.Tombstone {
		m.list.Tombstones++
	}
}

// moveRecords moves the records of a run that were changed longest ago, and reports whether the cold
// rows should be rewritten.
func (s *engine) moveRecords(ctx context.Context, r *cachedRun, t *outcome.Backoff) (rewrites bool, err error) {
	m, at, err := s.newMover(ctx, r)
	if err != nil || m == nil {
		return false, err
	}
	type candidate struct {
		key  runstore.RecordKey
		cell []byte
		meta recordMeta
	}
	var movable []candidate
	for _, item := range at.cells[familyRecords] {
		one := candidate{key: runstore.RecordKey(qualifier(familyRecords, item)), cell: item.Value}
		if _, err := decodeCell(item.Value, &one.meta); err != nil {
			return false, ofRun(r.id, err)
		}
		if one.meta.isMovable(one.key) {
			movable = append(movable, one)
		}
	}
	slices.SortStableFunc(movable, func(a, b candidate) int { return cmp.Compare(b.meta.Rev, a.meta.Rev) })
	kept := int64(0)
	for _, one := range movable {
		size := one.meta.footprint(one.key, one.cell)
		if kept += size; kept <= s.hotBytes/3 {
			continue
		}
		m.add(one.key, one.cell, &one.meta)
		m.drop(familyRecords, string(one.key))
		m.head.RecordBytes -= size
		if before := one.meta.Hides; before == 0 {
			m.list.Keys++
		} else if nonce, listed := m.list.nonceOf(before); listed {
			m.obsolete = append(m.obsolete, coldKey(r.id, m.list.generation, one.key, coldMove{before, nonce}))
		}
		one.meta.coldRev, one.meta.Hides = m.move.rev, 0
		m.records[one.key] = &one.meta
	}
	if len(m.fingerprints.all) > 0 {
		if applied, err := s.makeMove(ctx, r, m, t); err != nil || !applied {
			return false, err
		}
	}
	r.keptBytes = r.head.RecordBytes
	c := m.list
	return len(m.fingerprints.all) > 0 && (c.Start != 0 || c.Tombstones > s.maxTombstones && 2*c.Tombstones > c.Keys ||
		c.Rows-c.Keys > max(s.maxTombstones, 2*c.Keys) || c.isLong(cmp.Or(s.moveLists.maxMoves, maxMoves))), nil
}

// isLong reports whether a list has so many moves that a rewriting would shorten it by half: a rewriting of a
// very large run leaves more than most.
func (c *moveList) isLong(most int64) bool { return int64(len(c.moves)) > max(most, 2*c.Left) }

// awaitsRows reports whether a rewriting waits for rows that a failover may have left behind: what arrives after it
// does not count. A handle that has not read the epoch of the list cannot know, and waits.
func (s *engine) awaitsRows(h *head, c *moveList) bool {
	if c.stamp == 0 || len(c.moves) >= maxLateMoves {
		return false
	}
	e := s.currentEpoch()
	if e == nil || e.stamp() < c.stamp {
		return true
	}
	now, _ := s.clock.estimate()
	return h.Created < e.At && now.Before(runstore.FromMicros(e.At).Add(lateRows))
}

// rewrite performs one step of a rewriting, and reports whether it needs another.
func (s *engine) rewrite(ctx context.Context, r *cachedRun, t *outcome.Backoff) (more bool, err error) {
	m, at, err := s.newMover(ctx, r)
	if err != nil || m == nil || len(m.list.moves) < 2 || s.awaitsRows(&r.head, m.list) {
		return false, err
	}
	c := m.list
	before := *c
	before.moves = c.moves[:len(c.moves)-1]
	if c.Start == 0 {
		c.Start, c.Cursor, c.Tombstones, c.Rows = before.id().last, nil, 0, 0
	}
	page := coldPage{cut: true} // and again while it reads only rows of one record that do not count
	for limit := s.rewriteRows; page.cut && page.through == ""; limit *= 2 {
		if page, err = s.coldRange(ctx, r.id, &before, "", runstore.RecordKey(c.Cursor), limit, rewriteBytes); err != nil {
			return false, err
		}
	}
	var dropped []runstore.RecordKey
	for _, one := range page.rows {
		var meta recordMeta
		value, err := decodeCell(one.cell, &meta)
		if err != nil {
			return false, ofRun(r.id, err)
		}
		if one.old {
			meta.Above = max(meta.Above, r.head.Floor)
			one.cell = encodeCell(&meta, value)
		}
		// A tombstone stays while a cell in the run's row hides it: the cell names its move. A tombstone that
		// was moved since the rewriting began stays too: it may hide an earlier row of its record whose move
		// stays listed.
		if meta.Tombstone && one.move.rev <= c.Start && cell(at.cells, familyRecords, string(one.key)) == nil {
			c.Keys--
			dropped = append(dropped, one.key)
			continue
		}
		m.add(one.key, one.cell, &meta)
	}
	for _, key := range page.seen {
		of, _, _ := coldParts(key[len(coldPrefix(r.id, c.generation)):])
		if !page.cut || of <= page.through {
			m.obsolete = append(m.obsolete, key)
		}
	}
	if c.Cursor = []byte(page.through); !page.cut {
		i := 0
		for ; c.moves[i].rev <= c.Start; i++ {
			m.obsolete = append(m.obsolete, fingerprintKey(r.id, c.generation, c.moves[i]))
		}
		c.moves, c.Start, c.Cursor = c.moves[i:], 0, nil
		c.Left = int64(len(c.moves))
	}
	applied, err := s.makeMove(ctx, r, m, t)
	if applied {
		if !page.cut { // the digests of replaced and dropped rows take memory
			s.runs.setFingerprints(r, fingerprints{})
		}
		for _, key := range dropped { // the next cell of the record hides no cold row
			delete(r.records, key)
		}
	}
	return applied && page.cut, err
}

// makeMove applies a move.
func (s *engine) makeMove(ctx context.Context, r *cachedRun, m *mover, t *outcome.Backoff) (applied bool, err error) {
	if m.head.MarkRev == 0 {
		m.setMark()
	}
	m.rows = append(m.rows, m.fingerprints.row(fingerprintKey(r.id, m.list.generation, m.move), m.head.Stamp))
	m.set(familyOther, columnCold, m.list.encode())
	before := r.head.moveListID()
	if applied, err = s.applyFirst(ctx, r, m.edit, t); !applied {
		return false, err
	}
	if before.last == 0 {
		before = r.fingerprints.of // a run without cold records has none
		s.runs.setFingerprints(r, fingerprints{of: before, exact: true})
	}
	if !r.known { // other writes were applied after it
		return true, nil
	}
	if s.moveLists.learn(r.id, m.list); r.fingerprints.of == before {
		s.runs.setFingerprints(r, r.fingerprints.with(m.fingerprints, m.list.id()))
	}
	return true, nil
}

// applyFirst applies a change that precedes a caller's write: a move of records, the raise of a run. It writes the
// rows of the change and swaps the head. If the revision was another one, it finds out whether a copy of the change
// was applied. No caller sees an effect of the change, so the error is never ErrUnknownOutcome. Unless the change was
// applied, the caller has to read the run again.
func (s *engine) applyFirst(ctx context.Context, r *cachedRun, e *edit, t *outcome.Backoff) (applied bool, err error) {
	if err = s.writeAll(ctx, e.rows); err == nil {
		applied, _, err = s.swap(ctx, r, e, t, nil)
	}
	if err == nil && !applied {
		var found *row
		if found, err = s.readRun(ctx, r.id); err == nil {
			applied, err = s.isApplied(ctx, r.id, e, &found.head)
		}
	}
	if applied {
		s.noteApplied(r, e)
		return true, nil
	}
	if err == nil || !e.tried { // otherwise the rows stay as after a crash
		s.garbage.deleteOrphans(e.orphans()...)
	}
	if r.forget(); errors.Is(err, errLongAgo) {
		return false, nil
	}
	return false, asUnavailable(r.id, err)
}

// asUnavailable converts the error of a change that precedes a caller's write (the move of records, the raise of
// a run), whose outcome may be unknown, to one which says that nothing of the caller's operation was applied.
func asUnavailable(id runstore.RunID, err error) error {
	var op *runstore.OpError
	if err == nil || outcome.Definite(err) || !errors.As(outcome.Wrap("prepare the run", id, err), &op) {
		return err
	}
	if op.Cause == nil { // err is not classified
		op.Cause = err
	}
	return outcome.Unavailable(op.Cause)
}
