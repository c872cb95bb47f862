package bigtable

import (
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// The parts of keys.
var (
	Escape     = escape
	Unescape   = unescape
	RunOf      = runOf
	SegmentKey = segmentKey
)

// EntryParts are what the key of an index entry is made of.
type EntryParts struct {
	Index       string
	At, Written int64
	Run         runstore.RunID
	Key         runstore.RecordKey
	Rev         int64
	Nonce       uint64
}

func (p EntryParts) entry() indexEntry {
	return indexEntry{p.Index, p.At, p.Written, p.Run, p.Key, p.Rev, p.Nonce}
}

// Order is the entry's key without its shard, RowKey the whole key.
func (p EntryParts) Order() string  { return p.entry().sortKey() }
func (p EntryParts) RowKey() string { return p.entry().rowKey() }

// ParseIndexEntry takes an entry's key without its shard apart.
func ParseIndexEntry(order string) (EntryParts, bool) {
	p, ok := parseIndexEntry(order)
	return EntryParts{p.index, p.at, p.written, p.run, p.key, p.rev, p.nonce}, ok
}

// MarkKey is the key of a mark of a run, MarkedBy its inverse.
func MarkKey(id runstore.RunID, rev int64, nonce uint64) string { return mark{id, rev, nonce}.key() }

func ParseMarkKey(key string) (id runstore.RunID, rev int64, nonce uint64, ok bool) {
	m, ok := markOf(key)
	return m.run, m.rev, m.nonce, ok
}

// PackKey is the key of a row of a pack.
func PackKey(id runstore.RunID, rev int64, nonce uint64, of, n int64) string {
	p := packed{Rev: rev, Nonce: nonce, What: "r", Of: of}
	return p.key(id, n)
}

// OwnedPrefixes is what the keys of the segments and of the packs of a run begin with.
func OwnedPrefixes(id runstore.RunID) (segments, packs string) {
	return ownedKey(kindSegment, id), ownedKey(kindPack, id)
}

// Expiry is that of a lease which its holder took to end at expires, and whose grant
// Bigtable stamped with beat.
func Expiry(expires, beat time.Time, ttl time.Duration, strict bool) time.Time {
	h := head{Expires: runstore.Micros(expires), TTL: ttl.Microseconds(), Strict: strict}
	return runstore.FromMicros(h.expiry(runstore.Micros(beat)))
}

// Revisions is a head that some nonces have made, and nobody else.
func Revisions(nonces ...uint64) func(rev int64, nonce uint64) (applied, known bool) {
	h := &head{}
	for _, n := range nonces {
		h.addRevision(n)
	}
	again, err := decodeHead("run", h.encode())
	if err != nil {
		panic(err)
	}
	return again.wrote
}

// MaxNonces is how many revisions a head remembers.
const MaxNonces = maxNonces

// MaxResults is how many results a row has.
const MaxResults = maxResults

// Clock is what a handle knows of Bigtable's.
type Clock struct{ clock clock }

// NewClock returns one that reads here as the clock of its process.
func NewClock(here localclock.Clock) *Clock { return &Clock{clock{local: here}} }

// Learn takes over a reading that was asked for at a time.
func (c *Clock) Learn(server time.Time, asked localclock.Reading) { c.clock.learn(server, asked) }

// Estimate is the earliest that Bigtable's clock can show now.
func (c *Clock) Estimate() time.Time {
	floor, _ := c.clock.estimate()
	return floor
}

// Old reports whether the reading is of no use any more.
func (c *Clock) Old() bool { return c.clock.isStale() }

// LogKey is the key of a page of the feed's log.
func LogKey(number int64) string { return logKey(number) }

// RecordSize returns what a record counts in the row of its run if its cell has a nonce, twice if its value is in
// a pack.
func RecordSize(nonce uint64, inPack bool) int64 {
	m := &recordMeta{By: nonce}
	if inPack {
		m.Pack = &packed{Nonce: nonce}
	}
	return m.footprint("key", encodeCell(m, nil))
}
