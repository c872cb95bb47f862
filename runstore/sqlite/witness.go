package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/localclock"
)

// A witness is a small file beside the database that remembers how far the
// database had come. When the database is older than its witness, a backup was
// restored or acknowledged commits were lost at a power cut
// (synchronous=NORMAL); when the witness is missing or of another incarnation,
// the database was copied. Each raises the epoch when the store is opened, so
// that no token and no position is given out twice (I2, I10).
//
// It is written after each commit and never synced: a witness that lags behind
// its database proves nothing and harms nothing.
type witness struct {
	path string

	mu    sync.Mutex
	file  *os.File
	last  localclock.Reading // of the last write
	known progress
}

// witnessPace bounds how often appends alone are written down. Grants always
// are: a lost one would lower the token.
const witnessPace = 50 * time.Millisecond

// progress is how far a database has come.
type progress struct {
	Incarnation string
	Changes     int64
	Position    runstore.Position
}

func (p progress) behind(w progress) bool { return p.Changes < w.Changes || p.Position < w.Position }

// read returns what the witness remembers; ok is false when there is none.
func (w *witness) read() (p progress, ok bool, err error) {
	text, err := os.ReadFile(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return progress{}, false, nil
	}
	if err != nil {
		return progress{}, false, err
	}
	// A torn or foreign file is as good as none.
	return p, json.Unmarshal(text, &p) == nil, nil
}

// write remembers p. A failure is no error: the file is only a witness.
func (w *witness) write(p progress) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var here localclock.Clock
	if p.Changes == w.known.Changes && here.Since(w.last) < witnessPace {
		return
	}
	w.last, w.known = here.Read(), p
	if w.file == nil {
		file, err := os.OpenFile(w.path, os.O_WRONLY|os.O_CREATE, 0o644) // as the database is
		if err != nil {
			return
		}
		w.file = file
	}
	// Fixed in length, so that every write replaces the one before it whole.
	line := fmt.Sprintf("{\"Incarnation\":%q,\"Changes\":%20d,\"Position\":%20d}\n", p.Incarnation, p.Changes, p.Position)
	_, _ = w.file.WriteAt([]byte(line), 0)
}

// close writes down the last appends, which the pace may have kept back.
func (w *witness) close(p progress) {
	if w == nil {
		return
	}
	w.mu.Lock()
	w.last = localclock.Reading{}
	w.mu.Unlock()
	w.write(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil {
		_ = w.file.Close() // nothing of it is synced anyway
		w.file = nil
	}
}

const (
	selectProgress = `SELECT incarnation, changes, epoch, (SELECT coalesce(max(pos), 0) FROM events) FROM store`
	selectEpoch    = `SELECT epoch FROM store`
	updateEpoch    = `UPDATE store SET epoch = ?, changes = max(changes, ?) + 1`
	insertEpoch    = `INSERT INTO epochs (epoch, at, reason) VALUES (?, ?, ?)`
	endAllGrants   = `UPDATE runs SET grant_state = 3, owner = x'', reactor = x'', strict = 0, preempted_from = x'', preempt_reason = x'' WHERE grant_state = 1`
	insertMark     = `INSERT INTO events (pos, run, seq, kind, data, time, token, owner) VALUES (?, 0, 0, '', x'', ?, 0, x'')`
)

// compare raises the epoch if the witness tells that the database went back or
// was copied. The transaction is a writing one.
func (w *witness) compare(ctx context.Context, tx *conn, now time.Time) error {
	if w == nil {
		return nil
	}
	row, err := tx.one(ctx, selectProgress)
	if err != nil {
		return err
	}
	have := progress{text[string](row[0]), row[1].(int64), runstore.Position(row[3].(int64))}
	seen, ok, err := w.read()
	if err != nil {
		return err
	}
	reason := ""
	switch {
	case !ok && (have.Changes > 0 || have.Position > 0):
		reason = "the database was moved here without its witness file"
	case ok && seen.Incarnation != have.Incarnation:
		reason = "the database is a copy of another one"
	case ok && have.behind(seen):
		reason = "the database is older than its witness file: a backup was restored or commits were lost"
	}
	if reason == "" {
		return nil
	}
	_, err = raise(ctx, tx, reason, seen.Changes, now)
	return err
}

// raise starts a new epoch: every grant ends, and tokens and positions go on
// above all of the epochs before it.
func raise(ctx context.Context, tx *conn, reason string, changes int64, now time.Time) (runstore.Epoch, error) {
	row, err := tx.one(ctx, selectEpoch)
	if err != nil {
		return 0, err
	}
	epoch := runstore.Epoch(row[0].(int64)) + 1
	if err := runstore.CheckEpoch(epoch); err != nil {
		return 0, err
	}
	for _, step := range []func() (int64, error){
		func() (int64, error) { return tx.exec(ctx, updateEpoch, int64(epoch), changes) },
		func() (int64, error) { return tx.exec(ctx, insertEpoch, int64(epoch), now.UnixMicro(), reason) },
		func() (int64, error) { return tx.exec(ctx, endAllGrants) },
		func() (int64, error) { return tx.exec(ctx, insertMark, int64(epoch.Floor()), now.UnixMicro()) },
	} {
		if _, err := step(); err != nil {
			return 0, err
		}
	}
	return epoch, nil
}
