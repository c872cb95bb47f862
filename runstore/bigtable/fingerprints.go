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
//     row, that digest is of a tombstone.
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
}

// find returns what a commit has to know of the cold record of a key, nil if there is none. sure is false, and m nil,
// if the commit has to read the record. of is the list of moves that the run has.
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
	if meta.Pack != nil {
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
	sum := fingerprints{of: of, all: slices.Concat(p.all, more.all)}
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

// learnFingerprints counts the keys for which the handle has read cold records, and reads the run's fingerprints
// after some of them.
func (s *engine) learnFingerprints(ctx context.Context, r *cachedRun, c *moveList, asked []runstore.RecordKey) error {
	if c == nil || r.fingerprints.of == c.id() {
		return nil
	}
	for _, k := range asked {
		if m := r.records[k]; m == nil || m.coldRev != 0 {
			r.coldReads++
		}
	}
	if r.coldReads < coldReadsBefore+c.rows()/rowsPerRead {
		return nil
	}
	return s.loadFingerprints(ctx, r, c)
}

// loadFingerprints reads the fingerprints of a run. It ignores them if the row of a listed move is missing.
func (s *engine) loadFingerprints(ctx context.Context, r *cachedRun, c *moveList) error {
	var found fingerprints
	moves := 0
	prefix := fingerprintPrefix(r.id, c.generation)
	filter := wholeFamily(familyOther)
	if c.rows() > maxDigests {
		filter = column(familyOther, "")
	}
	err := s.retry(ctx, func(ctx context.Context) error {
		found, moves = fingerprints{exact: true}, 0
		return s.table.ReadRows(ctx, bigtable.PrefixRange(prefix), func(row bigtable.Row) bool {
			rest := row.Key()[len(prefix):]
			if len(rest) != 16 {
				return true
			}
			rev := fromBE64(rest)
			if nonce, listed := c.nonceOf(rev); listed && nonce == uint64(fromBE64(rest[8:])) {
				found.decode(row, rev, c.stamp)
				moves++
			}
			return len(found.all) < maxFingerprints
		}, bigtable.RowFilter(latest(filter)))
	})
	if err != nil || moves < len(c.moves) || len(found.all) >= maxFingerprints {
		return err
	}
	none := fingerprints{exact: true}
	s.runs.setFingerprints(r, none.with(found, c.id()))
	return nil
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
