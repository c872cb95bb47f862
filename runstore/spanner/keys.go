package spanner

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/tapestore/tapestore/runstore"
)

// runKey is the key of a run's row, and the shard of its entries in what is ordered by
// time.
type runKey struct {
	hash  int64
	run   []byte
	shard int64
}

func keyOf(id runstore.RunID) runKey {
	sum := sha256.Sum256([]byte(id))
	return runKey{int64(binary.BigEndian.Uint64(sum[:8])), []byte(id), int64(sum[8] % shards)}
}

// stored returns bytes for a column that takes no NULL.
func stored[T ~string | ~[]byte](s T) []byte { return append([]byte{}, s...) }
