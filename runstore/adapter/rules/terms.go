package rules

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// TermList holds the terms of a run before that of its last grant, the newest first, in a form that
// stores keep: at most [runstore.RememberedTerms] - 1, and fewer where they would take more than
// [MaxTermList] bytes, but never fewer than three. The zero value is empty.
//
// The first byte is the version of the encoding. Each term follows as its length and its fields. A
// later version may add fields at the end of a term; readers ignore what they do not know.
type TermList []byte

const termListVersion = 1

// MaxTermList is the largest [TermList] in bytes. 4 KiB: 32 terms with names of 80 bytes, or four
// with the longest names and reasons. Each grant replaces the list.
const MaxTermList = 4 << 10

var errTermList = errors.New("a list of terms cannot be decoded")

// With returns the list with t prepended, and without the oldest terms if there are too many. Terms
// with a token that is not below t's are dropped: a history that the store has lost had them. If l
// cannot be decoded, what can be is kept: a damaged list prevents no grant. With does not change l.
func (l TermList) With(t runstore.Term) TermList {
	var fields []byte
	for _, n := range []uint64{
		uint64(t.Token), uint64(runstore.Micros(t.GrantedAt)), uint64(runstore.Micros(t.ExpiresAt)), uint64(runstore.Micros(t.EndedAt)), uint64(t.End),
	} {
		fields = binary.AppendUvarint(fields, n)
	}
	for _, s := range []string{string(t.Owner), string(t.Reactor), t.Reason} {
		fields = append(binary.AppendUvarint(fields, uint64(len(s))), s...)
	}
	next := append(binary.AppendUvarint([]byte{termListVersion}, uint64(len(fields))), fields...)
	n := 1
	_ = l.each(func(entry, fields []byte) error {
		old, err := decodeTerm(fields)
		switch {
		case err != nil || old.Token >= t.Token:
		case n == runstore.RememberedTerms-1 || len(next)+len(entry) > MaxTermList:
			return errTermList // ends the loop
		default:
			next, n = append(next, entry...), n+1
		}
		return nil
	})
	return next
}

// each calls f for each term of the list, with its encoding and the part of it that has the fields.
func (l TermList) each(f func(entry, fields []byte) error) error {
	if len(l) == 0 {
		return nil
	}
	if l[0] != termListVersion {
		return errTermList
	}
	for rest := []byte(l[1:]); len(rest) > 0; {
		size, used := binary.Uvarint(rest)
		if used <= 0 || uint64(len(rest)-used) < size {
			return errTermList
		}
		end := used + int(size)
		if err := f(rest[:end], rest[used:end]); err != nil {
			return err
		}
		rest = rest[end:]
	}
	return nil
}

// decode returns the terms, the newest first.
func (l TermList) decode() (terms []runstore.Term, err error) {
	err = l.each(func(_, fields []byte) error {
		t, err := decodeTerm(fields)
		terms = append(terms, t)
		return err
	})
	return terms, err
}

// decodeTerm returns the term that has the fields.
func decodeTerm(fields []byte) (runstore.Term, error) {
	var numbers [5]uint64
	for i := range numbers {
		n, used := binary.Uvarint(fields)
		if used <= 0 {
			return runstore.Term{}, errTermList
		}
		numbers[i], fields = n, fields[used:]
	}
	var names [3]string
	for i := range names {
		size, used := binary.Uvarint(fields)
		if used <= 0 || uint64(len(fields)-used) < size {
			return runstore.Term{}, errTermList
		}
		names[i], fields = string(fields[used:used+int(size)]), fields[used+int(size):]
	}
	return runstore.Term{
		Token: runstore.Token(numbers[0]), Owner: runstore.Owner(names[0]), Reactor: runstore.Reactor(names[1]),
		GrantedAt: runstore.FromMicros(int64(numbers[1])), ExpiresAt: runstore.FromMicros(int64(numbers[2])),
		EndedAt: runstore.FromMicros(int64(numbers[3])), End: runstore.GrantEnd(numbers[4]), Reason: names[2],
	}, nil
}

// lastTerm returns the term of the run's last grant, and false if there was none, or if it is not
// known whose it was: a program that kept no terms has ended it.
func (h Head) lastTerm() (t runstore.Term, ok bool) {
	switch h.State {
	case None:
		return t, false
	case Current:
		t = runstore.Term{Owner: h.Holder.Owner, Reactor: h.Holder.Reactor, GrantedAt: h.Holder.GrantedAt}
	case Released:
		t = h.Last
		t.End = runstore.EndReleased
	default:
		t = h.Last
		t.End = runstore.EndRevoked
	}
	t.Token, t.ExpiresAt = h.Token, h.ExpiresAt
	return t, t.Owner != ""
}

// ListTerms returns the terms in the form in which runstore.TermReader returns them: the oldest
// first, that of the last grant last.
//
// Error: [runstore.CorruptError] if the list cannot be decoded.
func (h Head) ListTerms() ([]runstore.Term, error) {
	terms, err := h.Terms.decode()
	if err != nil {
		return nil, &runstore.CorruptError{Run: h.ID, Cause: err}
	}
	slices.Reverse(terms)
	if last, ok := h.lastTerm(); ok {
		terms = append(terms, last)
	}
	return terms, nil
}
