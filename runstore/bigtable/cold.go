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

// Cold records are records that have left the row of their run: each is an immutable row whose key
// sorts by the record's key, so Bigtable itself keeps them in the order of pages. Records leave in
// moves (move.go), and the run's row lists the moves that were made.
//
// It is not simple because only one row is atomic. A row of a cold record says nothing alone: the
// move that wrote it may have failed, and a request that was suspended may write it again years later.
//
//  1. A row of a cold record counts if the run's row lists the revision and the nonce of its move,
//     the life in its key is the run's, and no rewriting has replaced it (cold.counts). Of several that
//     count for one key, that of the latest move does.
//  2. A cell in the run's row, a tombstone included, hides the rows of its key.
//  3. A row that counts is deleted only after a conditional mutation of the run's row that hides it for
//     good: a later move, a rewriting or a purge. Each of these changes the identity of the list
//     (cold.id).
//  4. So a reader that finds the list's identity after its read of cold rows as it was before has met all
//     that count, and they are of the state of the run's row that it read last (engine.withCold).
//
// A writer decides on versions that were read so, and its conditional mutation compares the run's
// revision. That is safe although the versions of cold records are not in the row that it tests: a
// change of a record writes the run's row, and a move, a rewriting and a purge do too. While the
// revision is the same, no version has changed, wherever it is stored.
//
// Merging sorted blocks of records would need fewer rows, but an index of their keys, and levels to keep
// writes few. Here a record is written twice in its life, and read by its key.

// columnCold is the column of familyOther, in a run's row, that lists the moves.
const columnCold = "cold"

// Columns of a cold record's row.
const (
	coldHere   = ""  // the cell as it was in the run's row
	coldPacked = "p" // the same, of a record whose value is in a pack
)

// coldMove names one move: the revision that made it, and its nonce.
type coldMove struct {
	rev   int64
	nonce uint64
}

// moveList lists the moves of a run.
type moveList struct {
	generation, stamp int64
	moves             []coldMove // by revision
	moveListHeader
}

// moveListHeader is what the list says beside the moves.
type moveListHeader struct {
	// Keys is how many keys have a row that counts, Tombs how many of these are tombstones.
	Keys       int64 `json:"keys"`
	Tombstones int64 `json:"tombs,omitempty"`
	// Start is the last move before a rewriting that is under way, and Cursor the last key that it
	// has come to: up to it only rows of later moves count.
	Start  int64  `json:"start,omitempty"`
	Cursor []byte `json:"cursor,omitempty"`
}

// moveListID identifies the list of a run's moves: no two lists of a run have the same. The stamp tells
// those of a history that the store has lost, which may have the same revisions (stamp.go).
type moveListID struct{ generation, last, stamp int64 }

func (c *moveList) id() moveListID {
	if c == nil {
		return moveListID{}
	}
	return moveListID{c.generation, c.moves[len(c.moves)-1].rev, c.stamp}
}

// moveListID returns the identity of the list of moves that the run's row has with the head.
func (h *head) moveListID() moveListID {
	if h.Moved == 0 {
		return moveListID{}
	}
	return moveListID{h.Generation, h.Moved, h.Stamp}
}

// encode returns the list's cell: what it says beside the moves, then 16 bytes for each.
func (c *moveList) encode() []byte {
	var moves []byte
	for _, m := range c.moves {
		moves = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(moves, uint64(m.rev)), m.nonce)
	}
	return encodeCell(&c.moveListHeader, moves)
}

// moveList returns the list of the run's moves, nil if it has none. The row must have been read with
// coldFilter.
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

// coldPrefix is what the keys of a run's cold records begin with, printPrefix what those of the
// fingerprints of its moves do.
func coldPrefix(id runstore.RunID, generation int64) string {
	return ownedKey(kindCold, id) + be64(generation) + "r"
}

func fingerprintPrefix(id runstore.RunID, generation int64) string {
	return ownedKey(kindCold, id) + be64(generation) + "p"
}

// coldKey is the key of a cold record's row. The latest move of a record comes first.
func coldKey(id runstore.RunID, generation int64, key runstore.RecordKey, m coldMove) string {
	return coldPrefix(id, generation) + escape(string(key)) + be64(^m.rev) + be64(int64(m.nonce))
}

// fingerprintKey is the key of the row that has the fingerprints of the records of a move.
func fingerprintKey(id runstore.RunID, generation int64, m coldMove) string {
	return fingerprintPrefix(id, generation) + be64(m.rev) + be64(int64(m.nonce))
}

// coldParts takes the key of a cold record's row apart, without its prefix.
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
}

// coldPage is what a read of cold rows has met.
type coldPage struct {
	rows []coldRow // in the order of their keys
	seen []string  // the keys of all rows that were met, also of those that do not count
	// cut says that the read ended early. Then all cold records up to through were met.
	cut     bool
	through runstore.RecordKey
}

// coldRange reads the cold records behind a key that begin with a prefix, in pages of up to limit
// rows and some more than most bytes.
func (s *engine) coldRange(ctx context.Context, id runstore.RunID, c *moveList, prefix, behind runstore.RecordKey, limit, most int) (coldPage, error) {
	all := coldPrefix(id, c.generation)
	// An escaped name without its end is what the escaped names begin with that begin with the name.
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

// coldRows reads rows of cold records, up to limit and until they have more than most bytes; 0 is no
// bound.
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
			var value []byte
			for _, item := range r[familyOther] {
				value = item.Value
			}
			page.rows = append(page.rows, coldRow{key, m, value})
			decided = key
			size += len(value)
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

// withCold reads a run's row and cold records of it, both of one moment. pick reads cold records by a
// list of moves. The list that the handle knows is tried first: while it is the run's, this takes two
// requests, and one where the run has no cold records.
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
	mu  sync.Mutex
	all map[runstore.RunID]*moveList
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

// mergedRecord is a record of a page, in the run's row or cold.
type mergedRecord struct {
	key   runstore.RecordKey
	meta  recordMeta
	value []byte
}

// merged returns the records among the cells of a run's row and a page of cold ones, in the order of their
// keys, of the keys for which within is true. The cells hide cold rows.
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
