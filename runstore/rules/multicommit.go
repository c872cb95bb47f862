package rules

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// MultiCommitID names a commit of several runs by the runs and their ids, in whatever order. A
// store that finds it beside one remembered result knows that all of the commit was
// made, also on runs that remember nothing of it. It is nil if no batch has an id: such
// a commit is never a repeat. Stores keep its 16 bytes, so what it is made of must not
// change.
func MultiCommitID(batches []runstore.Batch) []byte {
	if !slices.ContainsFunc(batches, func(b runstore.Batch) bool { return b.ID != "" }) {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(batches), func(a, b runstore.Batch) int {
		return cmp.Compare(a.Run(), b.Run()) // no run is named twice
	})
	var text []byte
	for _, b := range sorted {
		for _, part := range []string{string(b.Run()), string(b.ID)} {
			text = binary.AppendUvarint(text, uint64(len(part)))
			text = append(text, part...)
		}
	}
	sum := sha256.Sum256(text)
	return sum[:16]
}
