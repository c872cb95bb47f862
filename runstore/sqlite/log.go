package sqlite

import (
	"context"
	"os"
	"time"
)

const (
	// maxLog is the size from which the writer truncates the write-ahead log: 64 MiB.
	maxLog = 64 << 20
	// trimEvery is how many transactions pass between two checks of the log's size.
	trimEvery = 32
	// trimTimeout is how long the writer waits for this handle's readers: 100 ms.
	trimTimeout = 100 * time.Millisecond
)

// trimLog truncates a large log that overlapping readers keep from being reset: SQLite resets the
// log only in a moment without readers. It blocks this handle's readers between two of their reads.
// If readers of other processes prevent the truncation, a later call tries again. Its caller leads
// the writer.
func (db *database) trimLog(c *conn) {
	if db.trims++; db.trims%trimEvery != 0 || db.readers == db.writers {
		return
	}
	if info, err := os.Stat(db.path + "-wal"); err != nil || info.Size() < db.opts.maxLog {
		return
	}
	timeout := time.NewTimer(trimTimeout)
	defer timeout.Stop()
	var held []*conn
	defer func() {
		for _, r := range held {
			db.readers <- r
		}
	}()
	for range cap(db.readers) {
		select {
		case r := <-db.readers:
			held = append(held, r)
		case <-timeout.C:
			return
		}
	}
	_, _ = c.one(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)") // on BUSY a later call tries again
}
