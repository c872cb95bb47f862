package rules

import (
	"bytes"
	"crypto/sha256"

	"github.com/tapestore/tapestore/runstore"
)

// FormerGrants are the ids of the grants that a run had before its last one, the newest
// first: eight bytes of each id's SHA-256, because an id is secret and may be long. It
// holds the last [runstore.RememberedGrants]. Stores keep these bytes, so what they are
// made of must not change.
//
// Eight bytes are enough: that a fresh random id equals one of 64 by chance has a
// probability of 2^-58, and its only effect is that the request is refused.
type FormerGrants []byte

// formerSize is how many bytes an id takes in FormerGrants.
const formerSize = 8

// Former returns the bytes that stand for a grant's id in [FormerGrants].
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

// With returns the grants with id before them, and without the oldest if there are too
// many. It does not change f.
func (f FormerGrants) With(id runstore.GrantID) FormerGrants {
	const most = formerSize * (runstore.RememberedGrants - 1)
	return append(Former(id), f[:min(len(f), most)]...)
}

// NewGrant judges whether id may become the id of a new grant of the run: it returns
// ErrFenced if id is that of the run's last grant or of one of [Head.Former]. A grant's
// id names that grant for ever, so a late copy of a request never makes a second grant.
//
// The caller has dealt with a request whose own grant is current.
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
