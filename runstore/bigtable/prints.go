package bigtable

import (
	"context"
	"encoding/binary"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// Each move writes a row of fingerprints of its records, four bytes each. A handle that has met a few
// keys that are absent reads them, and then knows of a new key that there is no cold record of it: the
// commit that puts it needs no read. One in 40,000 absent keys shares its fingerprint with one of 100,000
// records, and costs that read.

const (
	// missesBefore is how many reads of absent keys a handle makes before it reads the fingerprints.
	missesBefore = 3
	// maxPrints bounds the fingerprints that a handle keeps in mind: 64 MiB of all runs.
	maxPrints = 16 << 20
)

// prints are the fingerprints of a run's cold records, in order, and the list of moves that they are of.
type prints struct {
	of  coldID
	all []uint32
}

// has reports whether there may be a cold record of a key.
func (p *prints) has(key runstore.RecordKey) bool {
	_, there := slices.BinarySearch(p.all, hashOf(string(key)))
	return there
}

func encodePrints(all []uint32) []byte {
	b := make([]byte, 0, 4*len(all))
	for _, p := range all {
		b = binary.BigEndian.AppendUint32(b, p)
	}
	return b
}

func decodePrints(b []byte) (all []uint32) {
	for ; len(b) >= 4; b = b[4:] {
		all = append(all, binary.BigEndian.Uint32(b))
	}
	return all
}

// mergePrints returns the fingerprints of both.
func mergePrints(sorted, more []uint32) []uint32 {
	all := slices.Concat(sorted, more)
	slices.Sort(all)
	return slices.Compact(all)
}

// learnPrints reads the fingerprints of a run once the handle has met a few absent keys that it had to
// look for among cold records.
func (s *engine) learnPrints(ctx context.Context, r *run, c *cold, asked []runstore.RecordKey) error {
	if c == nil || r.prints.of == c.id() {
		return nil
	}
	for _, k := range asked {
		if r.records[k] == nil {
			r.misses++
		}
	}
	if r.misses < missesBefore {
		return nil
	}
	return s.loadPrints(ctx, r, c)
}

// loadPrints reads the fingerprints of a run, if the rows of all listed moves are there.
func (s *engine) loadPrints(ctx context.Context, r *run, c *cold) error {
	var all []uint32
	moves := 0
	prefix := printPrefix(r.id, c.life)
	err := s.again(ctx, func(ctx context.Context) error {
		all, moves = all[:0], 0
		return s.table.ReadRows(ctx, bigtable.PrefixRange(prefix), func(row bigtable.Row) bool {
			rest := row.Key()[len(prefix):]
			if len(rest) != 16 {
				return true
			}
			if nonce, listed := c.nonceOf(fromBE64(rest)); listed && nonce == uint64(fromBE64(rest[8:])) {
				all = append(all, decodePrints(cell(row, familyOther, ""))...)
				moves++
			}
			return len(all) < maxPrints
		}, bigtable.RowFilter(latest(wholeFamily(familyOther))))
	})
	if err != nil || moves < len(c.moves) || len(all) >= maxPrints {
		return err
	}
	s.runs.setPrints(r, prints{c.id(), mergePrints(nil, all)})
	return nil
}

// setPrints has a handle keep the fingerprints of a run in mind.
func (rs *runs) setPrints(r *run, p prints) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.prints += len(p.all) - len(r.prints.all)
	r.prints = p
	rs.evict()
}
