package bigtable

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// A move copies the records of a run that were changed longest ago into rows of their own, and then
// makes one conditional mutation of the run's row: it lists the move and removes their cells. It holds
// the run's lane, so it never races with a write of the same handle. If another handle writes first,
// nothing counts of what was copied, and the rows are deleted; after a crash the pass over the run's mark
// deletes them.
//
// A rewriting drops what moves leave in the end: tombstones, and a list of moves that is long. It copies
// page after page of cold rows under a new move each, and the list says how far it has come, so it
// is resumed after a crash. Every step is a move of its own, and a write of the run comes between two.

// Bounds of the records in a run's row.
const (
	// hotBytes is how much of a row its records take before some leave it: less than a handle reads
	// at once (maxLoaded). A third stays, of those changed last.
	hotBytes = 192 << 10
	// rewriteRows is how many rows one step of a rewriting copies, rewriteBytes how much about.
	rewriteRows  = 1000
	rewriteBytes = 1 << 20
	// maxMoves is how many moves a list has before it is rewritten, 16 bytes each.
	maxMoves = 2048
	// maxTombstones is how many tombstones cold rows have before they are rewritten, unless more than
	// half of the rows are records.
	maxTombstones = 1000
)

// needsMove reports whether records should leave the run's row. After a move that left much, because it has
// places or keeps room, the next waits for as much as a move usually takes.
func (s *engine) needsMove(r *cachedRun) bool {
	return r.exists() && r.head.RecordBytes > max(s.hotBytes, r.keptBytes+s.hotBytes*2/3)
}

// moveInBackground moves records of a run that is heavy, in the background, and rewrites cold rows if that is
// due. One such call at a time is enough.
func (s *engine) moveInBackground(r *cachedRun) {
	if !s.needsMove(r) || !r.moving.CompareAndSwap(false, true) {
		return
	}
	id := r.id
	s.inBackground(func(ctx context.Context) error {
		defer r.moving.Store(false)
		again, err := s.withLock(ctx, id, s.moveRecords)
		for again && err == nil {
			again, err = s.withLock(ctx, id, s.rewrite)
		}
		return s.unlessSkipped(id, err)
	})
}

// withLock calls f with the lane of a run.
func (s *engine) withLock(ctx context.Context, id runstore.RunID, f func(context.Context, *cachedRun, *outcome.Backoff) (bool, error)) (bool, error) {
	r, err := s.runs.acquire(ctx, id)
	if err != nil {
		return false, err
	}
	defer s.runs.release(r)
	return f(ctx, r, s.newBackoff())
}

// mover is a change of a run that moves records.
type mover struct {
	*edit
	list         *moveList
	move         coldMove
	fingerprints []uint32
}

// moveNow moves records of a run before a write of it. If another handle wrote first, the handle knows the
// run no more.
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

// newMover reads a run's row. It returns nil, and the handle knows the run no more, if there is no such
// run, or the run is of an old epoch, which the next write raises.
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
	if !r.known || string(at.stored) != string(r.stored) {
		r.forget()
		r.known, r.stored, r.head, r.beat = true, at.stored, at.head, at.beat
		r.records = map[runstore.RecordKey]*recordMeta{}
	}
	m := &mover{edit: newEdit(r, runstore.FromMicros(r.head.Time))}
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

// add writes a record as a row.
func (m *mover) add(key runstore.RecordKey, cell []byte, about *recordMeta) {
	column := coldHere
	if about.Pack != nil {
		column = coldPacked
	}
	m.rows = append(m.rows, putAt(coldKey(m.run.id, m.list.generation, key, m.move), column, timestampOf(m.head.Stamp), cell))
	m.fingerprints = append(m.fingerprints, hashOf(string(key)))
	m.head.ColdTop = max(m.head.ColdTop, about.Version)
	if about.Tombstone {
		m.list.Tombstones++
	}
}

// moveRecords moves the records of a run that were changed longest ago, and reports whether cold rows are
// to be rewritten.
func (s *engine) moveRecords(ctx context.Context, r *cachedRun, t *outcome.Backoff) (rewrites bool, err error) {
	m, at, err := s.newMover(ctx, r)
	if err != nil || m == nil {
		return false, err
	}
	type candidate struct {
		key   runstore.RecordKey
		cell  []byte
		about recordMeta
	}
	var movable []candidate
	for _, item := range at.cells[familyRecords] {
		one := candidate{key: runstore.RecordKey(qualifier(familyRecords, item)), cell: item.Value}
		if _, err := decodeCell(item.Value, &one.about); err != nil {
			return false, ofRun(r.id, err)
		}
		if one.about.isMovable(one.key) {
			movable = append(movable, one)
		}
	}
	slices.SortStableFunc(movable, func(a, b candidate) int { return cmp.Compare(b.about.Rev, a.about.Rev) })
	kept := int64(0)
	for _, one := range movable {
		size := int64(len(one.key) + len(one.cell))
		if kept += size; kept <= s.hotBytes/3 {
			continue
		}
		m.add(one.key, one.cell, &one.about)
		m.drop(familyRecords, string(one.key))
		m.head.RecordBytes -= size
		if before := one.about.Hides; before == 0 {
			m.list.Keys++
		} else if nonce, listed := m.list.nonceOf(before); listed {
			m.obsolete = append(m.obsolete, coldKey(r.id, m.list.generation, one.key, coldMove{before, nonce}))
		}
		one.about.coldRev, one.about.Hides = m.move.rev, 0
		m.records[one.key] = &one.about
	}
	if len(m.fingerprints) > 0 {
		if applied, err := s.makeMove(ctx, r, m, t); err != nil || !applied {
			return false, err
		}
	}
	r.keptBytes = r.head.RecordBytes
	c := m.list
	return len(m.fingerprints) > 0 && (c.Start != 0 || c.Tombstones > s.maxTombstones && 2*c.Tombstones > c.Keys || len(c.moves) > maxMoves), nil
}

// rewrite makes one step of a rewriting, and reports whether it needs another.
func (s *engine) rewrite(ctx context.Context, r *cachedRun, t *outcome.Backoff) (more bool, err error) {
	m, at, err := s.newMover(ctx, r)
	if err != nil || m == nil || len(m.list.moves) < 2 {
		return false, err
	}
	c := m.list
	before := *c
	before.moves = c.moves[:len(c.moves)-1]
	if c.Start == 0 {
		c.Start, c.Cursor, c.Tombstones = before.id().last, nil, 0
	}
	page, err := s.coldRange(ctx, r.id, &before, "", runstore.RecordKey(c.Cursor), s.rewriteRows, rewriteBytes)
	if err != nil {
		return false, err
	}
	if page.cut && page.through == "" {
		return false, nil // only rows that do not count: the pass over the mark deletes them
	}
	for _, one := range page.rows {
		var about recordMeta
		if _, err := decodeCell(one.cell, &about); err != nil {
			return false, ofRun(r.id, err)
		}
		// A cell that hides the tombstone names it, so it stays.
		if about.Tombstone && cell(at.cells, familyRecords, string(one.key)) == nil {
			c.Keys--
			continue
		}
		m.add(one.key, one.cell, &about)
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
	}
	applied, err := s.makeMove(ctx, r, m, t)
	return applied && page.cut, err
}

// makeMove writes the rows of a move, and then makes it. Nothing that a caller sees depends on the
// move, so no error of it is an unknown outcome.
func (s *engine) makeMove(ctx context.Context, r *cachedRun, m *mover, t *outcome.Backoff) (applied bool, err error) {
	if m.head.MarkRev == 0 {
		m.setMark()
	}
	m.rows = append(m.rows, putAt(fingerprintKey(r.id, m.list.generation, m.move), "", timestampOf(m.head.Stamp), encodeFingerprints(m.fingerprints)))
	m.set(familyOther, columnCold, m.list.encode())
	if err := s.writeAll(ctx, m.rows); err != nil {
		s.garbage.addOrphans(m.orphans()...) // some of them may have been written
		return false, err
	}
	applied, _, err = s.swap(ctx, r, m.edit, t, nil)
	if err == nil && !applied {
		var now *row
		if now, err = s.readRun(ctx, r.id); err == nil {
			if applied, err = m.isApplied(&now.head); err == nil && !applied {
				s.garbage.addOrphans(m.orphans()...)
			}
		}
	}
	if err != nil || !applied {
		r.forget() // the rows of a move in doubt are left to the pass over the mark
		return false, asUnavailable(r.id, err)
	}
	before := r.head.moveListID()
	if before.last == 0 {
		before = r.fingerprints.of // of a run without cold records there are none
		s.runs.setFingerprints(r, fingerprints{of: before})
	}
	s.noteApplied(r, m.edit)
	if !r.known { // others have written since
		return true, nil
	}
	if s.moveLists.learn(r.id, m.list); r.fingerprints.of == before {
		s.runs.setFingerprints(r, fingerprints{m.list.id(), mergeFingerprints(r.fingerprints.all, m.fingerprints)})
	}
	return true, nil
}

// asUnavailable returns err, of a move whose outcome may be unknown, as one that says that nothing was
// applied of what a caller asked for.
func asUnavailable(id runstore.RunID, err error) error {
	var op *runstore.OpError
	if err == nil || outcome.Definite(err) || !errors.As(outcome.Wrap("move records", id, err), &op) {
		return err
	}
	return outcome.Unavailable(op.Cause)
}

// orphanColdRows returns rows of cold records that do not count, and never will: those of moves that failed,
// those that later ones replaced, and those of lives that are over.
func (s *engine) orphanColdRows(ctx context.Context, id runstore.RunID, at *row, dead func([]string) error) error {
	all := ownedKey(kindCold, id)
	c, err := at.moveList()
	if err != nil {
		return err
	}
	last := runstore.RecordKey("")
	return s.scanPrefix(ctx, all, func(keys []string) error {
		var over []string
		for _, k := range keys {
			rest := k[len(all):]
			switch {
			case at.head.isOrphan(k):
				over = append(over, k)
			case c == nil || len(rest) < 9 || fromBE64(rest) != c.generation:
			case rest[8] == 'p' && len(rest) == 25:
				move := coldMove{fromBE64(rest[9:]), uint64(fromBE64(rest[17:]))}
				if nonce, listed := c.nonceOf(move.rev); move.rev <= at.head.Rev && (!listed || nonce != move.nonce) {
					over = append(over, k)
				}
			default:
				key, move, ok := coldParts(rest[9:])
				counts := ok && c.counts(key, move)
				if ok && move.rev <= at.head.Rev && (!counts || key == last) {
					over = append(over, k)
				}
				if counts {
					last = key
				}
			}
		}
		return dead(over)
	})
}

// coldPacks calls f for each cold record of a run that counts and whose value is in a pack. It returns
// errMoved if a move was made meanwhile: f may have missed records that a rewriting copied.
func (s *engine) coldPacks(ctx context.Context, id runstore.RunID, at *row, f func(*recordMeta)) error {
	c, err := at.moveList()
	if err != nil || c == nil {
		return err
	}
	from := coldPrefix(id, c.generation)
	var failed error
	err = s.retry(ctx, func(ctx context.Context) error {
		failed = nil
		return s.table.ReadRows(ctx, bigtable.NewRange(from, after(from)), func(r bigtable.Row) bool {
			key, move, ok := coldParts(strings.TrimPrefix(r.Key(), from))
			if !ok || !c.counts(key, move) {
				return true
			}
			var about recordMeta
			if _, failed = decodeCell(cell(r, familyOther, coldPacked), &about); failed == nil {
				f(&about)
			}
			return failed == nil
		}, bigtable.RowFilter(latest(column(familyOther, coldPacked))))
	})
	if err = cmp.Or(err, failed); err != nil {
		return err
	}
	now, err := s.readRun(ctx, id)
	if err == nil && now.head.moveListID() != c.id() {
		err = errMoved
	}
	return err
}

// errMoved is met by a pass that read cold records while others were moved. The next pass begins anew.
var errMoved = errors.New("bigtable: records of the run were moved while a pass looked at it")
