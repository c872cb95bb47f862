package bigtable

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// Fingerprints are a filter of the keys of cold records, like a Bloom filter: a commit that puts a new
// key needs no read if no cold record has the key's fingerprint. Digests are what a commit that changes a cold
// record has to know of it, so such a commit needs no read either. Each move writes a row with both for its
// records: fingerprints of four bytes, and digests of some thirty. A handle reads these rows after a few reads of
// cold records.
//
//  1. Fingerprints and digests count only for the list of moves with which they were read, and only if the
//     row of each listed move was there. So they are complete, and of the state of the head that names the list.
//  2. Of several digests of a record the one of the latest move counts. If a rewriting has dropped the record's
//     row, that digest is of a tombstone. At the end of a rewriting the handle drops all, and reads them again.
//  3. A tombstone, and a record whose value is in a pack, have a digest without a version: the commit reads the
//     record. So have the records of moves of an earlier epoch, because a failover may have lost their rows but
//     not the row of the digests: readers find no such record, and neither may a commit.
//
// One in 40,000 absent keys shares its fingerprint with one of 100,000 records, and costs a read where there are no
// digests. TestCommitsInLargeRunsCostNoMore counts the reads.

const (
	// coldReadsBefore is how many reads of cold records a handle makes before it reads the fingerprints, and
	// one more for each rowsPerRead digests, which have the bytes of two such reads or three.
	coldReadsBefore = 3
	rowsPerRead     = 1 << 14
	// maxFingerprints bounds what a handle remembers of all runs, in fingerprints: 64 MiB. A digest counts as
	// digestWeight of them.
	maxFingerprints = 16 << 20
	digestWeight    = 14
	// maxDigests bounds the digests of one run: 28 MiB in memory, and a read of some 16 MB.
	maxDigests = 1 << 19
)

// columnDigests is the column of the digests. The fingerprints have the column "". Programs that do not know the
// digests read the fingerprints alone.
const columnDigests = "m"

// coldDigest is what a commit has to know of a cold record.
type coldDigest struct {
	id                                            [16]byte // of the record's key, see digestID
	move, version, createdSeq, created, createdBy int64    // version 0: the commit has to read the record
}

// digestID identifies a key: 128 bits of its SHA-256.
func digestID(key runstore.RecordKey) [16]byte {
	h := sha256.Sum256([]byte(key))
	return [16]byte(h[:16])
}

// fingerprints are the fingerprints and the digests of a run's cold records, as of a list of moves.
type fingerprints struct {
	of      moveListID
	all     []uint32     // sorted
	digests []coldDigest // by id, if exact
	exact   bool         // digests has all records
	first   coldMove     // the first move of the list, zero if the handle has not read the list
}

// find looks up the cold record of a key. of is the list of moves that the run has. If sure is set, m is what a
// commit has to know of the record, and nil if there is no such record. Otherwise the commit has to read it.
func (p *fingerprints) find(of moveListID, key runstore.RecordKey) (m *recordMeta, sure bool) {
	if of == (moveListID{}) || key == runstore.SummaryKey {
		return nil, true
	}
	if p.of != of {
		return nil, false
	}
	if _, there := slices.BinarySearch(p.all, hashOf(string(key))); !there {
		return nil, true
	}
	i, there := searchDigests(p.digests, digestID(key))
	if !there || p.digests[i].version == 0 {
		return nil, !there && p.exact
	}
	d := p.digests[i]
	return &recordMeta{Version: d.version, CreatedSeq: d.createdSeq, Created: d.created, CreatedBy: d.createdBy, coldRev: d.move}, true
}

// add adds a record of a move.
func (p *fingerprints) add(key runstore.RecordKey, move int64, meta *recordMeta) {
	d := coldDigest{digestID(key), move, meta.Version, meta.CreatedSeq, meta.Created, meta.CreatedBy}
	if meta.Pack != nil || meta.Above != 0 {
		d.version = 0
	}
	p.all, p.digests = append(p.all, hashOf(string(key))), append(p.digests, d)
}

// searchDigests returns where the digest of a record is, or belongs.
func searchDigests(digests []coldDigest, id [16]byte) (i int, there bool) {
	return slices.BinarySearchFunc(digests, id, func(d coldDigest, id [16]byte) int { return bytes.Compare(d.id[:], id[:]) })
}

// with returns p, which is sorted, and the fingerprints and the digests of later moves, as those of a list of moves.
func (p *fingerprints) with(more fingerprints, of moveListID) fingerprints {
	sum := fingerprints{of: of, first: p.first, all: slices.Concat(p.all, more.all)}
	slices.Sort(sum.all)
	sum.all = slices.Compact(sum.all)
	if sum.exact = p.exact && more.exact && len(p.digests)+len(more.digests) <= maxDigests; !sum.exact {
		return sum
	}
	slices.SortFunc(more.digests, func(a, b coldDigest) int {
		return cmp.Or(bytes.Compare(a.id[:], b.id[:]), cmp.Compare(b.move, a.move))
	})
	rest := p.digests
	for _, d := range slices.CompactFunc(more.digests, func(a, b coldDigest) bool { return a.id == b.id }) {
		i, there := searchDigests(rest, d.id)
		sum.digests = append(append(sum.digests, rest[:i]...), d)
		if rest = rest[i:]; there {
			rest = rest[1:]
		}
	}
	sum.digests = append(sum.digests, rest...)
	return sum
}

// row returns the row with the fingerprints and the digests of a move.
func (p *fingerprints) row(key string, stamp int64) mutation {
	var prints, digests []byte
	for _, print := range p.all {
		prints = binary.BigEndian.AppendUint32(prints, print)
	}
	for _, d := range p.digests {
		digests = append(digests, d.id[:]...)
		for _, n := range [...]int64{d.version, d.createdSeq, d.created, d.createdBy} {
			digests = binary.AppendVarint(digests, n)
		}
	}
	row := putAt(key, "", timestampOf(stamp), prints)
	row.m.Set(familyOther, columnDigests, timestampOf(stamp), digests)
	row.n += len(digests)
	return row
}

// decode adds what the row of a move has. stamp is that of the run's head.
func (p *fingerprints) decode(r bigtable.Row, move, stamp int64) {
	for b := cell(r, familyOther, ""); len(b) >= 4; b = b[4:] {
		p.all = append(p.all, binary.BigEndian.Uint32(b))
	}
	for _, item := range r[familyOther] {
		for b := item.Value; p.exact && qualifier(familyOther, item) == columnDigests && len(b) >= 16; {
			d := coldDigest{id: [16]byte(b), move: move}
			b = b[16:]
			for _, n := range [...]*int64{&d.version, &d.createdSeq, &d.created, &d.createdBy} {
				v, used := binary.Varint(b)
				*n, b = v, b[max(used, 0):]
			}
			if item.Timestamp < timestampOf(stamp) {
				d.version = 0
			}
			p.digests = append(p.digests, d)
		}
	}
	p.exact = p.exact && len(p.digests) == len(p.all) && len(p.digests) <= maxDigests
}

// learnFingerprints counts the keys for which the handle has read cold records, and after some of them has the
// run's fingerprints read in the background, where the read neither delays nor fails a commit. After a read that
// fails, it counts anew.
func (s *engine) learnFingerprints(r *cachedRun, c *moveList, asked []runstore.RecordKey) {
	if c == nil || r.fingerprints.of == c.id() {
		return
	}
	for _, k := range asked {
		if m := r.records[k]; m == nil || m.coldRev != 0 {
			r.coldReads++
		}
	}
	known, wanted := r.fingerprints, coldReadsBefore+c.rows()/rowsPerRead
	if known.begins(c) {
		wanted = 1
	}
	if r.coldReads < wanted || !r.learning.CompareAndSwap(false, true) {
		return
	}
	r.coldReads = 0
	s.inBackground(func(ctx context.Context) error {
		defer r.learning.Store(false)
		return s.fetchFingerprints(ctx, r.id, c, known)
	})
}

// fetchFingerprints reads the fingerprints of a run as of a list of moves, and remembers them if that is still the
// run's. known are those that the handle has.
func (s *engine) fetchFingerprints(ctx context.Context, id runstore.RunID, c *moveList, known fingerprints) error {
	p, err := s.readFingerprints(ctx, id, c, known)
	if err != nil || p == nil {
		return err
	}
	_, err = s.withLock(ctx, id, func(_ context.Context, r *cachedRun, _ *outcome.Backoff) (bool, error) {
		if r.head.moveListID() == p.of {
			s.runs.setFingerprints(r, *p)
		}
		return false, nil
	})
	return err
}

// begins reports whether p is of a list of moves that c begins with.
func (p *fingerprints) begins(c *moveList) bool {
	return p.exact && p.first == c.moves[0] && p.of.generation == c.generation && p.of.stamp == c.stamp && p.of.last < c.id().last
}

// readFingerprints reads the fingerprints of a run as of a list of moves, or of its last moves only if known are
// those of the moves before. It returns nil if the row of a move is missing, or if there are too many.
func (s *engine) readFingerprints(ctx context.Context, id runstore.RunID, c *moveList, known fingerprints) (*fingerprints, error) {
	moves, prefix := c.moves, fingerprintPrefix(id, c.generation)
	from := prefix
	if known.begins(c) {
		later, _ := slices.BinarySearchFunc(moves, known.of.last+1, func(m coldMove, rev int64) int { return cmp.Compare(m.rev, rev) })
		moves, from = moves[later:], prefix+be64(known.of.last+1)
	} else {
		known = fingerprints{exact: true, first: moves[0]}
	}
	filter := wholeFamily(familyOther)
	if c.rows() > maxDigests {
		filter = column(familyOther, "")
	}
	var found fingerprints
	listed := 0
	err := s.retry(ctx, func(ctx context.Context) error {
		found, listed = fingerprints{exact: true}, 0
		return s.table.ReadRows(ctx, bigtable.NewRange(from, after(prefix)), func(row bigtable.Row) bool {
			rest := row.Key()[len(prefix):]
			if len(rest) != 16 {
				return true
			}
			rev := fromBE64(rest)
			if nonce, ok := c.nonceOf(rev); ok && nonce == uint64(fromBE64(rest[8:])) {
				found.decode(row, rev, c.stamp)
				listed++
			}
			return len(found.all) < maxFingerprints
		}, bigtable.RowFilter(latest(filter)))
	})
	if err != nil || listed < len(moves) || len(found.all) >= maxFingerprints {
		return nil, err
	}
	sum := known.with(found, c.id())
	return &sum, nil
}

// weight returns how many fingerprints take as much memory.
func (p *fingerprints) weight() int { return len(p.all) + digestWeight*len(p.digests) }

// setFingerprints remembers the fingerprints of a run.
func (rs *runCache) setFingerprints(r *cachedRun, p fingerprints) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.fingerprints += p.weight() - r.fingerprints.weight()
	r.fingerprints = p
	rs.evict()
}
