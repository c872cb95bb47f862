package bigtable

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"strings"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// The kinds of rows, by the first byte of their keys. A hash or a shard follows it, so that no kind has a hot
// spot for new keys.
const (
	kindRun     = "r" // hash, run id: the run itself
	kindSegment = "s" // hash, length, run id, generation, number: a segment of the journal, sealed events
	kindCold    = "k" // hash, length, run id, generation, what: records that have left the run's row
	kindPack    = "d" // hash, length, run id, revision, nonce, what: values too large for the run's row
	kindIndex   = "i" // shard, index, time, written, run, record, revision, nonce: an index entry
	kindMark    = "m" // shard, length, run id, revision, nonce: the run may have events that the feed has not, or orphans
	kindLog     = "l" // hash, number: a page of the feed's log
	kindHint    = "L" // up to which page the rows of the runs have their positions
	kindClock   = "c" // shard: the store clock
	kindClaims  = "w" // which handles scan the shards of the marks
	kindEpoch   = "g" // shard: the epochs
)

// shards is over how many ranges the entries of an index, and the marks, are spread. 16: enough tablets to
// write to, few enough to read with one request.
const shards = 16

func hashOf(id string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return h.Sum32()
}

func hashed(id string) string {
	h := hashOf(id)
	return string([]byte{byte(h >> 8), byte(h)})
}

func shardOf(id string) string { return string([]byte{byte(hashOf(id) % shards)}) }

func anyShard() string { return string([]byte{byte(rand.N(shards))}) }

func be64(n int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(n))) }

func be16(n int) string { return string(binary.BigEndian.AppendUint16(nil, uint16(n))) }

func fromBE64(s string) int64 { return int64(binary.BigEndian.Uint64([]byte(s))) }

func runKey(id runstore.RunID) string { return kindRun + hashed(string(id)) + string(id) }

// runOf is the inverse of runKey.
func runOf(key string) runstore.RunID { return runstore.RunID(key[3:]) }

// ownedKey returns the prefix of the rows of a kind that belong to one run. It contains the length of the id,
// so that no prefix of one run matches rows of another.
func ownedKey(kind string, id runstore.RunID) string {
	return kind + hashed(string(id)) + be16(len(id)) + string(id)
}

// ownerOf parses the key of such a row: the run, and the generation or the revision that follows.
func ownerOf(key string) (id runstore.RunID, since int64, ok bool) {
	if len(key) < 5 {
		return "", 0, false
	}
	end := 5 + int(binary.BigEndian.Uint16([]byte(key[3:5])))
	if len(key) < end+8 {
		return "", 0, false
	}
	return runstore.RunID(key[5:end]), fromBE64(key[end : end+8]), true
}

func segmentKey(id runstore.RunID, generation, number int64) string {
	return ownedKey(kindSegment, id) + be64(generation) + be64(number)
}

// mark leads the orphan scan to a run; see orphanscan.go. The revision and the nonce make each key unique, so
// that a late deletion of one mark does not remove another.
type mark struct {
	run   runstore.RunID
	rev   int64
	nonce uint64
}

func (m mark) key() string {
	return kindMark + shardOf(string(m.run)) + be16(len(m.run)) + string(m.run) + be64(m.rev) + be64(int64(m.nonce))
}

func markOf(key string) (m mark, ok bool) {
	if len(key) < 20 {
		return m, false
	}
	at := len(key) - 16
	return mark{runstore.RunID(key[4:at]), fromBE64(key[at : at+8]), uint64(fromBE64(key[at+8:]))}, true
}

// marksOf returns the marks with the given keys by their runs, and the keys of the rows of the runs.
func marksOf(keys []string) (marks map[runstore.RunID][]mark, rows []string) {
	marks = map[runstore.RunID][]mark{}
	for _, k := range keys {
		if m, ok := markOf(k); ok {
			if marks[m.run] == nil {
				rows = append(rows, runKey(m.run))
			}
			marks[m.run] = append(marks[m.run], m)
		}
	}
	return marks, rows
}

func logKey(number int64) string { return kindLog + hashed(be64(number)) + be64(number) }

func clockKey() string { return kindClock + anyShard() }

func epochKey(shard int) string { return kindEpoch + string([]byte{byte(shard)}) }

// after returns the first key after all that begin with prefix, or "" if there is none.
func after(prefix string) string { return string(adapter.PrefixEnd(runstore.RecordKey(prefix))) }

// escape encodes a name within a key so that keys sort by the names, for any bytes, and no encoded name is a
// prefix of another.
func escape(name string) string {
	return strings.ReplaceAll(name, "\x00", "\x00\xff") + "\x00\x01"
}

// unescape decodes the name at the beginning of a key and returns the rest of the key.
func unescape(key string) (name, rest string, ok bool) {
	end := 0
	for {
		i := strings.IndexByte(key[end:], 0)
		if i < 0 || end+i+1 >= len(key) {
			return "", "", false
		}
		end += i
		if key[end+1] == 1 {
			return strings.ReplaceAll(key[:end], "\x00\xff", "\x00"), key[end+2:], true
		}
		end += 2
	}
}

// indexEntry is an entry of an index: the time at which a record of a run, or a run, stands there. It is
// a row without a value; the key has all of it.
type indexEntry struct {
	index       string
	at, written int64
	run         runstore.RunID
	key         runstore.RecordKey
	rev         int64
	nonce       uint64 // of the write that put it there: no other write makes the same entry
}

// sortKey returns the entry's key without its shard: entries of all shards sort by it.
func (p indexEntry) sortKey() string {
	return escape(p.index) + be64(p.at) + be64(p.written) + escape(string(p.run)) + escape(string(p.key)) + be64(p.rev) + be64(int64(p.nonce))
}

func (p indexEntry) rowKey() string { return kindIndex + shardOf(string(p.run)) + p.sortKey() }

func parseIndexEntry(order string) (p indexEntry, ok bool) {
	index, rest, ok := unescape(order)
	if !ok || len(rest) < 16 {
		return indexEntry{}, false
	}
	p.index, p.at, p.written = index, fromBE64(rest[:8]), fromBE64(rest[8:16])
	run, rest, ok := unescape(rest[16:])
	if !ok {
		return indexEntry{}, false
	}
	key, rest, ok := unescape(rest)
	if !ok || len(rest) != 16 {
		return indexEntry{}, false
	}
	p.run, p.key = runstore.RunID(run), runstore.RecordKey(key)
	p.rev, p.nonce = fromBE64(rest[:8]), uint64(fromBE64(rest[8:]))
	return p, true
}
