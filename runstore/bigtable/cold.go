package bigtable

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// Cold records are records that have left the row of their run. Each is an immutable row whose key sorts
// by the record's key, so Bigtable keeps them in the order in which callers page through them. Records
// leave the row in moves (move.go), and the run's row lists the moves that were applied.
//
// It is not simple because only one row is atomic. A row of a cold record proves nothing alone: the move
// that wrote it may have failed, and a request that was suspended may write it again years later.
//
//  1. A row of a cold record counts if the run's row lists the revision and the nonce of its move, the
//     generation in its key is the run's, and no rewriting has replaced it (moveList.counts). If several
//     rows of one key count, the one of the latest move does.
//  2. A cell in the run's row, a tombstone included, hides the rows of its key.
//  3. A row that counts is deleted only after a conditional mutation of the run's row that hides it for
//     good: a later move, a rewriting or a purge. Each of these changes the identity of the list
//     (moveList.id).
//  4. So a reader that finds the same identity before and after its read of cold rows has read all rows
//     that count, and they are consistent with the run's row that it read last (engine.withCold).
//
// A writer decides on versions that were read in this way, or on digests of the same list of moves
// (fingerprints.go), and its conditional mutation compares the run's revision. That is safe although the
// versions of cold records are not in the row that it compares: every change of a record, every move,
// rewriting and purge replaces the revision. While the revision is the same, no version has changed,
// wherever it is stored.
//
// A failover may lose the latest row of a record and keep the one that it replaced. So the first change of a
// record whose row is from before the last raise of the epoch gives it a version above all that the run's cold
// records had then (recordMeta.Above). That row may also arrive later. So a deletion leaves a tombstone unless the
// digests show that the record has no cold row (edit.mayArrive), and rewritings wait (engine.awaitsRows).
//
// Rejected: a log-structured merge tree of sorted blocks. It would need fewer rows, but also an index of
// their keys, and levels that keep writes few. Here a record is written twice, and read by its key.
// Rejected: a writer that remembers the run's row and reads only the cold row before it compares the
// revision. It would save a request, but after a failover the row may have that revision again, although the
// cold row was read in the history that was lost, where the record had changed since.

// columnCold is the column of familyOther, in a run's row, that lists the moves.
const columnCold = "cold"

// Columns of a cold record's row.
const (
	coldHere   = ""  // the cell as it was in the run's row
	coldPacked = "p" // the same, if the record's value is in a pack: orphan scans of earlier programs read these alone
)

// coldMove names one move: its revision and its nonce.
type coldMove struct {
	rev   int64
	nonce uint64
}

// moveList is the list of a run's moves.
type moveList struct {
	generation, stamp int64
	moves             []coldMove // by revision
	moveListHeader
}

// moveListHeader is the header of the list's cell.
type moveListHeader struct {
	// Keys is how many keys have a row that counts, Tombstones how many of these are tombstones.
	Keys       int64 `json:"keys"`
	Tombstones int64 `json:"tombs,omitempty"`
	// Start is the last move before a rewriting that is under way, and Cursor the last key that it has
	// rewritten: up to Cursor only rows of later moves count.
	Start  int64  `json:"start,omitempty"`
	Cursor []byte `json:"cursor,omitempty"`
	// Rows is how many rows the listed moves have written, without those of moves before Start. Programs of
	// earlier versions drop it, so it may be too low.
	Rows int64 `json:"rows,omitempty"`
	// Left is how many moves the last rewriting has left, one for each of its steps and each move meanwhile.
	Left int64 `json:"left,omitempty"`
}

// rows returns how many rows the listed moves have written, or the least number if that is not known.
func (h *moveListHeader) rows() int64 { return max(h.Rows, h.Keys) }

// moveListID identifies a list of a run's moves: no two lists of a run have the same. The stamp
// distinguishes lists of a history that the store has lost, which may have the same revisions
// (failover.go).
type moveListID struct{ generation, last, stamp int64 }

func (c *moveList) id() moveListID {
	if c == nil {
		return moveListID{}
	}
	return moveListID{c.generation, c.moves[len(c.moves)-1].rev, c.stamp}
}

// moveListID returns the identity of the list of moves in the row with the head.
func (h *head) moveListID() moveListID {
	if h.Moved == 0 {
		return moveListID{}
	}
	return moveListID{h.Generation, h.Moved, h.Stamp}
}

// encode returns the list's cell: the header, then 16 bytes for each move.
func (c *moveList) encode() []byte {
	var moves []byte
	for _, m := range c.moves {
		moves = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(moves, uint64(m.rev)), m.nonce)
	}
	return encodeCell(&c.moveListHeader, moves)
}

// moveList returns the list of the run's moves, nil if it has none. The row must have been read with
// moveListFilter.
func (r *row) moveList() (*moveList, error) {
	if !r.exists() || r.head.Moved == 0 {
		return nil, nil
	}
	c := &moveList{generation: r.head.Generation, stamp: r.head.Stamp}
	for _, item := range r.cells[familyOther] {
		if qualifier(familyOther, item) != columnCold || item.Timestamp < timestampOf(r.head.Stamp) {
			continue
		}
		moves, err := decodeCell(item.Value, &c.moveListHeader)
		if err != nil {
			return nil, err
		}
		for ; len(moves) >= 16; moves = moves[16:] {
			c.moves = append(c.moves, coldMove{fromBE64(string(moves[:8])), binary.BigEndian.Uint64(moves[8:])})
		}
	}
	if len(c.moves) == 0 || c.id().last != r.head.Moved {
		return nil, corrupt(fmt.Errorf("the list of moves does not end with that of revision %d", r.head.Moved))
	}
	return c, nil
}

// moveListFilter selects the list of moves.
func moveListFilter() bigtable.Filter { return column(familyOther, columnCold) }

// nonceOf returns the nonce of the move that a revision made, and whether it is listed.
func (c *moveList) nonceOf(rev int64) (uint64, bool) {
	i := sort.Search(len(c.moves), func(i int) bool { return c.moves[i].rev >= rev })
	if i == len(c.moves) || c.moves[i].rev != rev {
		return 0, false
	}
	return c.moves[i].nonce, true
}

// counts reports whether a row of a key that a move wrote counts.
func (c *moveList) counts(key runstore.RecordKey, m coldMove) bool {
	if c.Start != 0 && m.rev <= c.Start && string(key) <= string(c.Cursor) {
		return false
	}
	nonce, listed := c.nonceOf(m.rev)
	return listed && nonce == m.nonce
}

// coldPrefix returns the prefix of the keys of a run's cold records, and fingerprintPrefix of those of the
// fingerprints of its moves.
func coldPrefix(id runstore.RunID, generation int64) string {
	return ownedKey(kindCold, id) + be64(generation) + "r"
}

func fingerprintPrefix(id runstore.RunID, generation int64) string {
	return ownedKey(kindCold, id) + be64(generation) + "p"
}

// coldKey returns the key of a cold record's row. Of several rows of a record the latest move sorts first.
func coldKey(id runstore.RunID, generation int64, key runstore.RecordKey, m coldMove) string {
	return coldPrefix(id, generation) + escape(string(key)) + be64(^m.rev) + be64(int64(m.nonce))
}

// fingerprintKey returns the key of the row with the fingerprints and the digests of a move's records.
func fingerprintKey(id runstore.RunID, generation int64, m coldMove) string {
	return fingerprintPrefix(id, generation) + be64(m.rev) + be64(int64(m.nonce))
}

// coldParts parses the key of a cold record's row without its prefix.
func coldParts(rest string) (key runstore.RecordKey, m coldMove, ok bool) {
	name, rest, ok := unescape(rest)
	if !ok || len(rest) != 16 {
		return "", m, false
	}
	return runstore.RecordKey(name), coldMove{^fromBE64(rest[:8]), uint64(fromBE64(rest[8:]))}, true
}

// coldRow is a cold record that counts.
type coldRow struct {
	key  runstore.RecordKey
	move coldMove
	cell []byte
	old  bool // written before the last raise of the epoch
}

// coldPage is the result of a read of cold rows.
type coldPage struct {
	rows []coldRow // in the order of their keys
	seen []string  // the keys of all rows that were read, including rows that do not count
	// cut is set if the read ended early. Then rows has all cold records up to through.
	cut     bool
	through runstore.RecordKey
}

// coldRange reads the cold records after a key that begin with a prefix: up to limit rows, and until
// they have more than most bytes.
func (s *engine) coldRange(ctx context.Context, id runstore.RunID, c *moveList, prefix, behind runstore.RecordKey, limit, most int) (coldPage, error) {
	all := coldPrefix(id, c.generation)
	// Without its end, the escaped prefix is a prefix of all escaped keys that begin with the prefix.
	from := all + strings.TrimSuffix(escape(string(prefix)), "\x00\x01")
	to := after(from)
	if behind != "" {
		from = max(from, after(all+escape(string(behind))))
	}
	if from >= to {
		return coldPage{}, nil
	}
	return s.coldRows(ctx, id, c, bigtable.NewRange(from, to), limit, most)
}

// coldKeys reads cold records by their keys.
func (s *engine) coldKeys(ctx context.Context, id runstore.RunID, c *moveList, keys []runstore.RecordKey) (page coldPage, err error) {
	all := coldPrefix(id, c.generation)
	for len(keys) > 0 {
		var set bigtable.RowRangeList
		n, size := 0, 0
		for n < len(keys) && (n == 0 || size+2*(len(all)+len(keys[n])) < maxRowSet) {
			from := all + escape(string(keys[n]))
			set = append(set, bigtable.NewRange(from, after(from)))
			size += 2*len(from) + 16
			n++
		}
		part, err := s.coldRows(ctx, id, c, set, 0, 0)
		if err != nil {
			return coldPage{}, err
		}
		page.rows = append(page.rows, part.rows...)
		keys = keys[n:]
	}
	return page, nil
}

// coldRows reads rows of cold records: up to limit, and until they have more than most bytes. 0 is no bound.
func (s *engine) coldRows(ctx context.Context, id runstore.RunID, c *moveList, set bigtable.RowSet, limit, most int) (page coldPage, err error) {
	skip := len(coldPrefix(id, c.generation))
	options := []bigtable.ReadOption{bigtable.RowFilter(latest(wholeFamily(familyOther)))}
	if limit > 0 {
		options = append(options, bigtable.LimitRows(int64(limit)))
	}
	err = s.retry(ctx, func(ctx context.Context) error {
		page = coldPage{}
		size, last, decided, failed := 0, runstore.RecordKey(""), runstore.RecordKey(""), error(nil)
		err := s.table.ReadRows(ctx, set, func(r bigtable.Row) bool {
			page.seen = append(page.seen, strings.Clone(r.Key()))
			key, m, ok := coldParts(r.Key()[skip:])
			if !ok {
				failed = corrupt(fmt.Errorf("the row of a cold record has the key %q", r.Key()))
				return false
			}
			if key != last {
				decided = last
			}
			if last = key; !c.counts(key, m) || len(page.rows) > 0 && page.rows[len(page.rows)-1].key == key {
				return true
			}
			one := coldRow{key: key, move: m}
			for _, item := range r[familyOther] {
				one.cell, one.old = item.Value, item.Timestamp < timestampOf(c.stamp)
			}
			page.rows = append(page.rows, one)
			decided = key
			size += len(one.cell)
			page.cut = most > 0 && size > most
			return !page.cut
		}, options...)
		page.cut = page.cut || limit > 0 && len(page.seen) == limit
		page.through = decided
		if err == nil {
			err = failed
		}
		return err
	})
	return page, err
}

// withCold reads a run's row and cold records of the same state of the run. pick reads cold records by a
// list of moves. withCold tries the list that the handle remembers first. If that is still the run's, it
// makes two requests, or one if the run has no cold records.
func (s *engine) withCold(ctx context.Context, id runstore.RunID, read func() (*row, error), pick func(c *moveList) (coldPage, error)) (*row, *moveList, coldPage, error) {
	c := s.moveLists.of(id)
	for range rereads {
		var page coldPage
		if c != nil {
			var err error
			if page, err = pick(c); err != nil {
				return nil, nil, page, err
			}
		}
		r, err := read()
		if err != nil {
			return nil, nil, page, err
		}
		now, err := r.moveList()
		if err != nil {
			return nil, nil, page, ofRun(id, err)
		}
		s.moveLists.learn(id, now)
		if now.id() == c.id() {
			return r, now, page, nil
		}
		if c = now; c == nil {
			return r, nil, coldPage{}, nil
		}
	}
	return nil, nil, coldPage{}, outcome.Unavailable(errBusy)
}

// moveListCache remembers the lists of moves of runs that have cold records. They may be out of date.
type moveListCache struct {
	maxMoves int64 // replaces the constant of this name in tests, unless it is 0
	mu       sync.Mutex
	all      map[runstore.RunID]*moveList
}

// maxMoveLists bounds what a handle remembers, at 16 bytes a move.
const maxMoveLists = 1024

func (l *moveListCache) of(id runstore.RunID) *moveList {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[id]
}

func (l *moveListCache) learn(id runstore.RunID, c *moveList) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c == nil:
		delete(l.all, id)
		return
	case l.all == nil || len(l.all) >= maxMoveLists:
		l.all = map[runstore.RunID]*moveList{}
	}
	l.all[id] = c
}

// mergedRecord is a record that a reader gets, from the run's row or cold.
type mergedRecord struct {
	key   runstore.RecordKey
	meta  recordMeta
	value []byte
}

// merged returns the records of the row's cells and of cold rows, sorted by key, for the keys for which
// within is true. Cells hide cold rows.
func (r *row) merged(page coldPage, within func(runstore.RecordKey) bool) (all []mergedRecord, err error) {
	if !r.exists() {
		return nil, runstore.ErrNotFound
	}
	hot := map[runstore.RecordKey]bool{}
	add := func(key runstore.RecordKey, cell []byte) error {
		if !within(key) {
			return nil
		}
		one := mergedRecord{key: key}
		var err error
		if one.value, err = decodeCell(cell, &one.meta); err == nil && !one.meta.Tombstone {
			all = append(all, one)
		}
		return err
	}
	for _, item := range r.cells[familyRecords] {
		key := runstore.RecordKey(qualifier(familyRecords, item))
		hot[key] = true
		if err := add(key, item.Value); err != nil {
			return nil, err
		}
	}
	for _, one := range page.rows {
		if !hot[one.key] {
			if err := add(one.key, one.cell); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(all, func(a, b mergedRecord) int { return strings.Compare(string(a.key), string(b.key)) })
	return all, nil
}
