package bigtable

import (
	"cmp"
	"context"
	"fmt"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// A pack has the values of one write that are too large for the run's row. Its rows are written before
// the head, and the cells of the events or of the record name the pack. Its key has the revision and the
// nonce of the write, so no other write names it. The handle whose write was refused, or has replaced the
// value, deletes the pack (garbage.go); after a crash it stays until the run is purged.

// Bounds of what stays in the run's row. 64 events with values of maxInline, a segment of the journal,
// have 1 MiB, and the row holds little more than two segments.
const (
	maxInline      = 16 << 10  // a value
	maxInlineBatch = 256 << 10 // the values of one batch; above it only values of up to tinyValue stay
	tinyValue      = 256
	maxRecordBytes = 1 << 20 // the records of one run; above it only values of up to tinyValue stay
	maxPinnedBytes = 3 << 19 // the same; above it no record is added that cannot leave the row
	chunkSize      = 1 << 20 // of a row of a pack
)

// packed is a reference to a value in a pack.
type packed struct {
	Rev    int64  `json:"r"`
	Nonce  uint64 `json:"x"`
	What   string `json:"w"` // e for events, r for a record
	Of     int64  `json:"i"` // the first event's seq, or the record's place in the batch
	Offset int64  `json:"o,omitempty"`
	Length int64  `json:"l"`
}

// key returns the key of the pack's n-th row.
func (p *packed) key(id runstore.RunID, n int64) string {
	return ownedKey(kindPack, id) + be64(p.Rev) + be64(int64(p.Nonce)) + p.What + be64(p.Of) + be16(int(n))
}

// chunks returns the keys of the rows that have the value.
func (p *packed) chunks(id runstore.RunID) (keys []string) {
	for n := p.Offset / chunkSize; n*chunkSize < p.Offset+p.Length; n++ {
		keys = append(keys, p.key(id, n))
	}
	return keys
}

// packer collects the values of one pack.
type packer struct {
	packed
	bytes []byte
}

func (p *packer) add(value []byte) *packed {
	at := p.packed
	at.Offset, at.Length = int64(len(p.bytes)), int64(len(value))
	p.bytes = append(p.bytes, value...)
	return &at
}

// rows returns the rows to write.
func (p *packer) rows(id runstore.RunID) (all []mutation) {
	for n := int64(0); n*chunkSize < int64(len(p.bytes)); n++ {
		chunk := p.bytes[n*chunkSize : min((n+1)*chunkSize, int64(len(p.bytes)))]
		all = append(all, put(p.key(id, n), "", chunk))
	}
	return all
}

// wantedValue is a value that fetchValues reads, and where it goes.
type wantedValue struct {
	run  runstore.RunID
	pack *packed
	got  func(value []byte)
}

// errMissing means that a value, a segment or an event was not where the run's row said: it was
// replaced, sealed or purged meanwhile. The reader reads again (retryMissing).
type errMissing struct{ run runstore.RunID }

func (e errMissing) Error() string {
	return fmt.Sprintf("bigtable: a value of run %q is not where it should be", e.run)
}

// fetchValues reads values from packs. It returns errMissing if one is missing.
func (s *engine) fetchValues(ctx context.Context, wanted []wantedValue) error {
	var first error
	err := s.fetchEachValue(ctx, wanted, func(_ int, missing error) { first = cmp.Or(first, missing) })
	return cmp.Or(err, first)
}

// fetchEachValue reads values from packs, and calls missing for each that is missing.
func (s *engine) fetchEachValue(ctx context.Context, wanted []wantedValue, missing func(i int, err error)) error {
	if len(wanted) == 0 {
		return nil
	}
	chunks := map[string][]byte{}
	var keys []string
	for _, w := range wanted {
		for _, k := range w.pack.chunks(w.run) {
			if _, there := chunks[k]; !there {
				chunks[k] = nil
				keys = append(keys, k)
			}
		}
	}
	err := s.readList(ctx, keys, latest(wholeFamily(familyOther)), func(r bigtable.Row) error {
		chunks[r.Key()] = cell(r, familyOther, "")
		return nil
	})
	if err != nil {
		return err
	}
values:
	for i, w := range wanted {
		value := make([]byte, 0, w.pack.Length)
		at, end := w.pack.Offset, w.pack.Offset+w.pack.Length
		for n := w.pack.Offset / chunkSize; at < end; n++ {
			chunk := chunks[w.pack.key(w.run, n)]
			upTo := min(end, (n+1)*chunkSize)
			if int64(len(chunk)) < upTo-n*chunkSize {
				missing(i, errMissing{w.run})
				continue values
			}
			value = append(value, chunk[at-n*chunkSize:upTo-n*chunkSize]...)
			at = upTo
		}
		w.got(value)
	}
	return nil
}
