package tape

import (
	"context"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// leftOut limits the log of what lists leave out. Lists are repeated, that of the matcher twice a second, and find
// the same damaged record each time.
type leftOut struct {
	mu     sync.Mutex
	logged map[leftOutID]time.Time // when it was last logged
}

type leftOutID struct {
	what string
	run  runstore.RunID
	key  runstore.RecordKey
}

const (
	// leftOutEvery is 1 min, after which what is still left out is logged again.
	leftOutEvery = time.Minute
	// maxLeftOut bounds the memory of leftOut: when there are as many records, all are dropped, and some are
	// logged more often.
	maxLeftOut = 1024
)

// due reports whether a record that is left out is to be logged now.
func (l *leftOut) due(id leftOutID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, ok := l.logged[id]; ok && time.Since(last) < leftOutEvery {
		return false
	}
	if l.logged == nil || len(l.logged) >= maxLeftOut {
		l.logged = map[leftOutID]time.Time{}
	}
	l.logged[id] = time.Now()
	return true
}

// leaveOut logs that a list of what leaves out a record, or a run for the empty key: once a minute for each.
func (t *Tape) leaveOut(ctx context.Context, what string, run runstore.RunID, key runstore.RecordKey, err error) {
	if !t.leftOut.due(leftOutID{what, run, key}) {
		return
	}
	args := []any{"run", run, "error", err}
	if key != "" {
		args = append(args, "record", clip(string(key), 64))
	}
	t.log.WarnContext(ctx, "a list of "+what+" leaves one out", args...)
}
