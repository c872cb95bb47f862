package rules

import (
	"bytes"
	"crypto/sha256"

	"github.com/tapestore/tapestore/runstore"
)

// FormerGrants holds the ids of the grants that a run had before its last one, the newest first,
// at most [runstore.RememberedGrants]. Each id is stored as the first eight bytes of its SHA-256,
// because an id is secret and may be long. Stores keep these bytes, so their derivation must not
// change.
//
// Eight bytes are enough: a fresh random id collides with one of 64 with a probability of 2^-58,
// and the only effect of a collision is that the request is refused.
type FormerGrants []byte

// formerSize is the size of an id in FormerGrants: 8 bytes.
const formerSize = 8

// Former returns the bytes that represent a grant's id in [FormerGrants].
func Former(id runstore.GrantID) []byte {
	sum := sha256.Sum256([]byte(id))
	return sum[:formerSize]
}

// Has reports whether id is the id of one of the grants.
func (f FormerGrants) Has(id runstore.GrantID) bool {
	want := Former(id)
	for ; len(f) >= formerSize; f = f[formerSize:] {
		if bytes.Equal(f[:formerSize], want) {
			return true
		}
	}
	return false
}

// With returns the grants with id prepended, and without the oldest if there are too many. It does
// not change f.
func (f FormerGrants) With(id runstore.GrantID) FormerGrants {
	const most = formerSize * (runstore.RememberedGrants - 1)
	return append(Former(id), f[:min(len(f), most)]...)
}

// NewGrant reports whether id may become the id of a new grant of the run: it returns ErrFenced if
// id is that of the run's last grant or of one of [Head.Former]. A grant's id is never used for a
// second grant, so a late copy of a request never makes one.
//
// The caller has already handled a request whose own grant is current.
func (h Head) NewGrant(id runstore.GrantID) error {
	switch {
	case id == "":
		return nil
	case h.State != None && id == h.Grant:
		return &runstore.FencedError{Presented: h.Token, Current: h.Token, Holder: h.Holder}
	case h.Former.Has(id):
		return &runstore.FencedError{Current: h.Token, Holder: h.Holder}
	}
	return nil
}
