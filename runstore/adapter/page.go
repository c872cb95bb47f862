package adapter

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Page finds where a page of a read ends: at its limit, or after the entry with which it passes
// runstore.MaxPageBytes.
type Page struct{ left, bytes int }

// NewPage returns an empty page of at most limit entries.
func NewPage(limit int) Page { return Page{left: limit} }

// Add counts one more entry of the given size and reports whether the page ends with it.
func (p *Page) Add(size int) (full bool) {
	p.left--
	p.bytes += size
	return p.left <= 0 || p.bytes > runstore.MaxPageBytes
}

// FirstMicros returns the first microsecond that is not before t, in microseconds since 1970; the
// zero time becomes 0. A scan with the lower bound t begins there, because entries of indexes are at
// whole microseconds.
func FirstMicros(t time.Time) int64 {
	us := runstore.Micros(t)
	if runstore.FromMicros(us).Before(t) {
		us++
	}
	return us
}

// EncodeCursor returns a cursor that holds a position, a value that package encoding/json encodes.
// A field that may contain any bytes is a []byte: JSON's strings are text.
func EncodeCursor(position any) runstore.Cursor {
	text, err := json.Marshal(position)
	if err != nil {
		panic(err) // the type of the position cannot be encoded
	}
	return runstore.Cursor(base64.RawURLEncoding.EncodeToString(text))
}

// DecodeCursor stores the position that a cursor holds in the value that position points to. Its
// error matches ErrInvalid.
func DecodeCursor(c runstore.Cursor, position any) error {
	text, err := base64.RawURLEncoding.DecodeString(string(c))
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields() // the cursor of another store has other fields
	if err == nil {
		err = d.Decode(position)
	}
	if err != nil || d.InputOffset() != int64(len(text)) {
		return Invalid("after", "is not a cursor of this store")
	}
	return nil
}

// PrefixEnd returns the first key after all keys that begin with prefix. It is nil if there is no
// such key: every later key begins with prefix, too.
func PrefixEnd(prefix runstore.RecordKey) []byte {
	end := []byte(prefix)
	for len(end) > 0 && end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	if len(end) == 0 {
		return nil
	}
	end[len(end)-1]++
	return end
}

// KeyBounds returns the bounds of the keys of a page of records: the first key that it may have, and a key
// behind all that it may have. Neither is nil, so a statement compares with both and searches for the page
// alone: with an alternative to a comparison (OR … IS NULL) an engine reads all later keys of the run.
func KeyBounds(q runstore.RecordQuery) (from, end []byte) {
	from, end = []byte(q.Prefix), PrefixEnd(q.Prefix)
	if q.After != "" && q.After >= q.Prefix {
		from = append([]byte(q.After), 0) // the next key in order
	}
	if end == nil {
		end = behindAllKeys
	}
	return from, end
}

// behindAllKeys is longer than every key, so it is also behind those of bytes 0xff only.
var behindAllKeys = bytes.Repeat([]byte{0xff}, runstore.MaxRecordKey+1)
