package bigtable

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"strings"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// The kinds of rows, by the first byte of their keys. After it comes a hash or a
// shard, so that no kind has a place where all new keys go.
const (
	kindRun     = "r" // hash, run id: the run itself
	kindSegment = "s" // hash, length, run id, life, number: sealed events
	kindCold    = "k" // hash, length, run id, life, what: records that have left the run's row
	kindPack    = "d" // hash, length, run id, revision, nonce, what: values too large for the run's row
	kindIndex   = "i" // shard, index, time, written, run, record, revision: a place in a queue
	kindMark    = "m" // shard, length, run id, revision, nonce: the run may have events that the feed has not, or garbage
	kindLog     = "l" // hash, number: a segment of the feed
	kindHint    = "L" // how far the feed's segments are told to their runs
	kindClock   = "c" // shard: the store clock
	kindClaims  = "w" // which handles pass over the shards of the marks
	kindEpoch   = "g" // shard: the epochs
)

// shards is how many ranges a queue is spread over: enough tablets to write to, few
// enough to read in one request.
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

// ownedKey is the prefix of the rows of a kind that belong to one run. The length
// keeps an id from reaching into the rows of one that it is a prefix of.
func ownedKey(kind string, id runstore.RunID) string {
	return kind + hashed(string(id)) + be16(len(id)) + string(id)
}

// ownerOf takes the key of such a row apart: the run, and the life or the revision that
// follows.
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

// mark leads to a run. Each has a key of its own, so that one which is deleted late is
// not another's.
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

func logKey(number int64) string { return kindLog + hashed(be64(number)) + be64(number) }

func clockKey() string { return kindClock + anyShard() }

func epochKey(shard int) string { return kindEpoch + string([]byte{byte(shard)}) }

// after returns the first key behind all that begin with prefix, "" for no bound.
func after(prefix string) string { return string(adapter.PrefixEnd(runstore.RecordKey(prefix))) }

// escape ends a name within a key so that the order of the keys is that of the names,
// whatever bytes they hold, and none is a prefix of another.
func escape(name string) string {
	return strings.ReplaceAll(name, "\x00", "\x00\xff") + "\x00\x01"
}

// unescape takes a name off the front of a key.
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

// indexEntry is an entry of an index: where a record of a run, or a run, stands since the
// revision that put it there.
type indexEntry struct {
	index       string
	at, written int64
	run         runstore.RunID
	key         runstore.RecordKey
	rev         int64
	nonce       uint64 // of the write: no other one makes the same entry
}

// sortKey is the entry's key without its shard: entries of all shards sort by it.
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
