package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// A witness is a small file beside the database that remembers how far the
// database had come. When the database is older than its witness, a backup was
// restored or acknowledged commits were lost at a power cut
// (synchronous=NORMAL); when the witness is missing or of another incarnation,
// the database was copied. Each raises the epoch when the store is opened, so
// that no token and no position is given out twice (I2, I10).
//
// It is written after each commit and before the commit is acknowledged, and never synced:
// a kill of the process loses nothing of it, and a power cut makes it lag behind. A witness
// that lags proves nothing and harms nothing.
type witness struct {
	path string

	mu    sync.Mutex
	file  *os.File
	known progress // as this handle wrote it last
	line  []byte   // kept for the next write
}

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

// write writes p down, unless this handle did so before: another process may have come
// further since. Two processes that commit at the same moment may write in the other order;
// then the witness lags by one commit until the next one.
//
// A failure is no error of the commit, which is in the database. It removes the witness:
// one that lags would let a restored backup pass for the database, and none at all only
// raises the epoch.
func (w *witness) write(p progress) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil { // first when the store is opened: later the process may have no descriptor left
		file, err := os.OpenFile(w.path, os.O_WRONLY|os.O_CREATE, 0o644) // as the database is
		if err != nil {
			_ = os.Remove(w.path)
			return
		}
		w.file = file
	}
	if p == w.known {
		return
	}
	w.line = p.append(w.line[:0])
	if _, err := w.file.WriteAt(w.line, 0); err != nil {
		_ = w.file.Close()
		_ = os.Remove(w.path)
		w.file, w.known = nil, progress{}
		return
	}
	w.known = p
}

// append appends p as a line of JSON. The line is fixed in length, so that every write replaces
// the one before it whole. Package fmt would take as long as the write itself.
func (p progress) append(line []byte) []byte {
	line = append(line, `{"Incarnation":`...)
	line = strconv.AppendQuote(line, p.Incarnation)
	line = append(line, `,"Changes":`...)
	line = appendPadded(line, p.Changes)
	line = append(line, `,"Position":`...)
	line = appendPadded(line, int64(p.Position))
	return append(line, "}\n"...)
}

// appendPadded appends n, after as many spaces as make it 20 bytes: no int64 is longer.
func appendPadded(line []byte, n int64) []byte {
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], n, 10)
	return append(append(line, "                    "[len(text):]...), text...)
}

// close closes the file. The last commit is written down already.
func (w *witness) close() {
	if w == nil {
		return
	}
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
	endAllGrants   = `UPDATE runs SET grant_state = 3, place = iif(purged, NULL, runnable), owner = x'', reactor = x'', strict = 0, preempted_from = x'', preempt_reason = x'' WHERE grant_state = 1`
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
		if ok {
			w.known = seen // what stands there need not be written again
		}
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
