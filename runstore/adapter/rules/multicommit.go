package rules

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// MultiCommitID returns the id of a commit of several runs: a hash of the runs and their batch ids,
// in any order. A store that finds the id beside one remembered result knows that the whole commit
// was applied, including on runs that remember nothing of it. The id is nil if no batch has an id,
// because such a commit is never a repeat. Stores keep its 16 bytes, so its derivation must not
// change.
func MultiCommitID(batches []runstore.Batch) []byte {
	if !slices.ContainsFunc(batches, func(b runstore.Batch) bool { return b.ID != "" }) {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(batches), func(a, b runstore.Batch) int {
		return cmp.Compare(a.Run(), b.Run()) // no run occurs twice
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
