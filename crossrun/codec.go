package crossrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// format is the first byte of every value that this package stores, and the highest that it reads.
const format = 1

var errDamaged = errors.New("the value is damaged")

// writer builds a stored value. Equal content gives equal bytes.
type writer struct{ b []byte }

func (w *writer) byte(b byte)     { w.b = append(w.b, b) }
func (w *writer) uint(n uint64)   { w.b = binary.AppendUvarint(w.b, n) }
func (w *writer) int(n int64)     { w.b = binary.AppendVarint(w.b, n) }
func (w *writer) bytes(b []byte)  { w.uint(uint64(len(b))); w.b = append(w.b, b...) }
func (w *writer) string(s string) { w.uint(uint64(len(s))); w.b = append(w.b, s...) }
func (w *writer) bool(b bool)     { w.byte(map[bool]byte{true: 1}[b]) }

// fixed writes n in 8 bytes whatever its value, so that the size of an intent is known before the
// version of its mark is.
func (w *writer) fixed(n int64) { w.b = binary.BigEndian.AppendUint64(w.b, uint64(n)) }

// reader decodes a stored value. After the first error it returns zeros.
type reader struct {
	b      []byte
	failed bool
}

func (r *reader) take(n uint64) []byte {
	if r.failed || n > uint64(len(r.b)) {
		r.failed, r.b = true, nil
		return nil
	}
	taken := r.b[:n:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.failed, r.b = true, nil
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) int() int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.failed, r.b = true, nil
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) fixed() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r *reader) bytes() []byte  { return r.take(r.uint()) }
func (r *reader) string() string { return string(r.bytes()) }
func (r *reader) bool() bool     { return r.byte() != 0 }

// count reads the length of a list. Each entry takes at least one byte, which bounds a damaged
// length.
func (r *reader) count() int {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.failed, r.b = true, nil
		return 0
	}
	return int(n)
}

// open returns a reader of a stored value, or an error for a value of a newer format.
func open(value []byte) (*reader, error) {
	r := &reader{b: value}
	switch v := r.byte(); {
	case r.failed || v == 0:
		return nil, errDamaged
	case v > format:
		return nil, fmt.Errorf("the value is of format %d, this version reads up to %d: upgrade it", v, format)
	}
	return r, nil
}

// end returns an error unless the value was read exactly to its end.
func (r *reader) end() error {
	if r.failed || len(r.b) > 0 {
		return errDamaged
	}
	return nil
}

// guards writes the guards of the other run's batch. check has refused a fence and a token.
func (w *writer) guards(g runstore.Guards) {
	w.uint(uint64(len(g.Versions)))
	for _, v := range g.Versions {
		w.string(string(v.Key))
		w.int(int64(v.Version))
	}
	w.int(int64(g.NextSeq))
	w.uint(uint64(len(g.Statuses)))
	for _, s := range g.Statuses {
		w.int(int64(s))
	}
}

func (r *reader) guards() (g runstore.Guards) {
	for range r.count() {
		key := runstore.RecordKey(r.string())
		g.Versions = append(g.Versions, runstore.VersionGuard{Key: key, Version: runstore.Version(r.int())})
	}
	g.NextSeq = runstore.Seq(r.int())
	for range r.count() {
		g.Statuses = append(g.Statuses, runstore.Status(r.int()))
	}
	return g
}

func (w *writer) writes(all runstore.Writes) {
	w.uint(uint64(len(all.Events)))
	for _, e := range all.Events {
		w.string(e.Kind)
		w.bytes(e.Data)
	}
	w.uint(uint64(len(all.Records)))
	for _, c := range all.Records {
		w.string(string(c.Key))
		w.bytes(c.Value)
		w.bool(c.Delete)
		w.uint(uint64(len(c.Index)))
		for _, p := range c.Index {
			w.string(string(p.Index))
			w.when(p.At)
		}
		w.uint(uint64(c.Event))
	}
	w.bool(all.Status != nil)
	if all.Status != nil {
		w.int(int64(*all.Status))
	}
	w.when(all.Runnable)
	w.bool(all.Release)
}

func (r *reader) writes() (all runstore.Writes) {
	for range r.count() {
		kind := r.string()
		all.Append(kind, r.bytes())
	}
	for range r.count() {
		c := runstore.RecordWrite{Key: runstore.RecordKey(r.string()), Value: r.bytes(), Delete: r.bool()}
		for range r.count() {
			name := runstore.IndexName(r.string())
			c.Index = append(c.Index, runstore.Place{Index: name, At: r.when()})
		}
		c.Event = int(r.uint())
		all.Records = append(all.Records, c)
	}
	if r.bool() {
		status := runstore.Status(r.int())
		all.Status = &status
	}
	all.Runnable = r.when()
	all.Release = r.bool()
	return all
}

// The encodings of a time. A relative time stays relative: it counts from the commit that applies
// the write.
const (
	whenUnset byte = iota
	whenNever
	whenAt
	whenAfter
)

func (w *writer) when(at runstore.When) {
	if at.IsZero() {
		w.byte(whenUnset)
		return
	}
	if d, relative := at.Offset(); relative {
		w.byte(whenAfter)
		w.int(int64(d))
		return
	}
	if t := at.Resolve(time.Time{}); !t.IsZero() {
		w.byte(whenAt)
		w.int(runstore.Micros(t))
		return
	}
	w.byte(whenNever)
}

func (r *reader) when() runstore.When {
	switch r.byte() {
	case whenUnset:
		return runstore.When{}
	case whenNever:
		return runstore.Never()
	case whenAt:
		return runstore.At(runstore.FromMicros(r.int()))
	case whenAfter:
		return runstore.After(time.Duration(r.int()))
	default:
		r.failed = true
		return runstore.When{}
	}
}
