package sqlite

import (
	"context"
	"os"
	"time"
)

const (
	// maxLog is the size from which the write-ahead log is emptied by force.
	maxLog = 64 << 20
	// trimEvery is how many transactions pass between two looks at its size.
	trimEvery = 32
	// trimPatience bounds how long writers wait for readers for it.
	trimTimeout = 100 * time.Millisecond
)

// trimLog empties a log that overlapping readers keep from being reset: SQLite does
// that only in a moment without any. It holds this handle's readers back between
// two of their reads. Readers of other processes may prevent it; then it is tried
// again later. Whoever calls it leads the writer.
func (s *core) trimLog(c *conn) {
	if s.trims++; s.trims%trimEvery != 0 || s.readers == s.writers {
		return
	}
	if info, err := os.Stat(s.path + "-wal"); err != nil || info.Size() < maxLog {
		return
	}
	timeout := time.NewTimer(trimTimeout)
	defer timeout.Stop()
	var held []*conn
	defer func() {
		for _, r := range held {
			s.readers <- r
		}
	}()
	for range cap(s.readers) {
		select {
		case r := <-s.readers:
			held = append(held, r)
		case <-timeout.C:
			return
		}
	}
	_, _ = c.one(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)") // BUSY: another time
}
