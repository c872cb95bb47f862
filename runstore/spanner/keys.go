package spanner

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/tapestore/tapestore/runstore"
)

// runKey is the primary key of a run's row, and the shard of the run's entries in tables and
// indexes that are ordered by time.
type runKey struct {
	hash  int64
	run   []byte
	shard int64
}

// keyOf derives the hash and the shard from the SHA-256 of the id, so that increasing ids make no
// hot spot.
func keyOf(id runstore.RunID) runKey {
	sum := sha256.Sum256([]byte(id))
	return runKey{int64(binary.BigEndian.Uint64(sum[:8])), []byte(id), int64(sum[8] % shards)}
}

// stored returns a copy of s that is never nil, for a column that is NOT NULL.
func stored[T ~string | ~[]byte](s T) []byte { return append([]byte{}, s...) }
