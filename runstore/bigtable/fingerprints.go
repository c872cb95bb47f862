package bigtable

import (
	"context"
	"encoding/binary"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// Fingerprints are a filter of the keys of cold records, like a Bloom filter: a commit that puts a new
// key needs no read if no cold record has the key's fingerprint. Each move writes a row of fingerprints
// of its records, four bytes each. A handle reads these rows after a few reads of absent keys. One in
// 40,000 absent keys shares its fingerprint with one of 100,000 records, and costs a read.
// TestCommitsInLargeRunsCostNoMore counts the reads.

const (
	// absentReadsBefore is how many reads of absent keys a handle makes before it reads the fingerprints.
	absentReadsBefore = 3
	// maxFingerprints bounds the fingerprints that a handle remembers, of all runs: 64 MiB.
	maxFingerprints = 16 << 20
)

// fingerprints are the sorted fingerprints of a run's cold records, as of a list of moves.
type fingerprints struct {
	of  moveListID
	all []uint32
}

// has reports whether there may be a cold record of a key.
func (p *fingerprints) has(key runstore.RecordKey) bool {
	_, there := slices.BinarySearch(p.all, hashOf(string(key)))
	return there
}

func encodeFingerprints(all []uint32) []byte {
	b := make([]byte, 0, 4*len(all))
	for _, p := range all {
		b = binary.BigEndian.AppendUint32(b, p)
	}
	return b
}

func decodeFingerprints(b []byte) (all []uint32) {
	for ; len(b) >= 4; b = b[4:] {
		all = append(all, binary.BigEndian.Uint32(b))
	}
	return all
}

// mergeFingerprints returns the sorted fingerprints of both.
func mergeFingerprints(sorted, more []uint32) []uint32 {
	all := slices.Concat(sorted, more)
	slices.Sort(all)
	return slices.Compact(all)
}

// learnFingerprints counts the absent keys for which the handle has read cold records, and reads the run's
// fingerprints after absentReadsBefore of them.
func (s *engine) learnFingerprints(ctx context.Context, r *cachedRun, c *moveList, asked []runstore.RecordKey) error {
	if c == nil || r.fingerprints.of == c.id() {
		return nil
	}
	for _, k := range asked {
		if r.records[k] == nil {
			r.absentReads++
		}
	}
	if r.absentReads < absentReadsBefore {
		return nil
	}
	return s.loadFingerprints(ctx, r, c)
}

// loadFingerprints reads the fingerprints of a run. It ignores them if the row of a listed move is missing.
func (s *engine) loadFingerprints(ctx context.Context, r *cachedRun, c *moveList) error {
	var all []uint32
	moves := 0
	prefix := fingerprintPrefix(r.id, c.generation)
	err := s.retry(ctx, func(ctx context.Context) error {
		all, moves = all[:0], 0
		return s.table.ReadRows(ctx, bigtable.PrefixRange(prefix), func(row bigtable.Row) bool {
			rest := row.Key()[len(prefix):]
			if len(rest) != 16 {
				return true
			}
			if nonce, listed := c.nonceOf(fromBE64(rest)); listed && nonce == uint64(fromBE64(rest[8:])) {
				all = append(all, decodeFingerprints(cell(row, familyOther, ""))...)
				moves++
			}
			return len(all) < maxFingerprints
		}, bigtable.RowFilter(latest(wholeFamily(familyOther))))
	})
	if err != nil || moves < len(c.moves) || len(all) >= maxFingerprints {
		return err
	}
	s.runs.setFingerprints(r, fingerprints{c.id(), mergeFingerprints(nil, all)})
	return nil
}

// setFingerprints remembers the fingerprints of a run.
func (rs *runCache) setFingerprints(r *cachedRun, p fingerprints) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.fingerprints += len(p.all) - len(r.fingerprints.all)
	r.fingerprints = p
	rs.evict()
}
