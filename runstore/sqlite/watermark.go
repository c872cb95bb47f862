package sqlite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// A watermark is a small file beside the database that remembers how far the
// database had come. When the database is older than its watermark, a backup was
// restored or acknowledged commits were lost at a power cut
// (synchronous=NORMAL); when the watermark is missing or of another incarnation,
// the database was copied. Each raises the epoch when the store is opened, so
// that no token and no position is given out twice (I2, I10).
//
// It is written after each commit and before the commit is acknowledged, and never synced:
// a kill of the process loses nothing of it, and a power cut makes it lag behind. A watermark
// that lags proves nothing and harms nothing.
//
// Several processes write it, and one that was paused after its commit writes late. So a write
// holds a lock on the file (flock), and leaves a file alone that is as far as itself. A process
// whose file was removed, by the failed write of another one, opens the one that is there now.
type watermark struct {
	path string

	mu    sync.Mutex
	file  *os.File
	info  fs.FileInfo // of file
	known progress    // as this handle wrote it last
	line  []byte      // what it wrote then
	found [256]byte   // what is in the file, longer than every line
}

// progress is how far a database has come.
type progress struct {
	Incarnation string
	Changes     int64
	Position    runstore.Position
}

func (p progress) behind(w progress) bool { return p.Changes < w.Changes || p.Position < w.Position }

// read returns what the watermark remembers; ok is false when there is none.
func (w *watermark) read() (p progress, ok bool, err error) {
	text, err := os.ReadFile(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return progress{}, false, nil
	}
	if err != nil {
		return progress{}, false, err
	}
	// A torn or foreign file is as good as none.
	p, ok = parse(text)
	return p, ok, nil
}

// write writes p down, unless this handle did so before: another process may have come
// further since.
//
// A failure is no error of the commit, which is in the database. It removes the watermark:
// one that lags would let a restored backup pass for the database, and none at all only
// raises the epoch.
func (w *watermark) write(p progress) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file != nil && p == w.known {
		return
	}
	if err := w.advance(p); err != nil {
		if w.file != nil {
			_ = w.file.Close()
		}
		_ = os.Remove(w.path)
		w.file, w.known = nil, progress{}
		return
	}
	w.known = p
}

// advance writes p into the file, unless another process has come as far.
func (w *watermark) advance(p progress) error {
	if err := w.lock(); err != nil {
		return err
	}
	defer unlockFile(w.file)
	n, err := w.file.ReadAt(w.found[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if found := w.found[:n]; !bytes.Equal(found, w.line) { // else p is further
		if seen, ok := parse(found); ok && seen.Incarnation == p.Incarnation && !seen.behind(p) {
			return nil
		}
	}
	w.line = p.append(w.line[:0])
	_, err = w.file.WriteAt(w.line, 0)
	return err
}

// lock locks the file that stands at path, which it opens or creates as needed: first when the
// store is opened, because later the process may have no descriptor left.
func (w *watermark) lock() error {
	for {
		if w.file == nil {
			file, err := os.OpenFile(w.path, os.O_RDWR|os.O_CREATE, 0o644) // as the database is
			if err != nil {
				return err
			}
			if w.info, err = file.Stat(); err != nil {
				return errors.Join(err, file.Close())
			}
			w.file, w.line = file, w.line[:0]
		}
		lockFile(w.file)
		there, err := os.Stat(w.path)
		if err == nil && os.SameFile(there, w.info) {
			return nil
		}
		_ = w.file.Close() // nothing of it is synced anyway
		w.file = nil
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

func parse(text []byte) (p progress, ok bool) {
	return p, json.Unmarshal(text, &p) == nil
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
func (w *watermark) close() {
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

// compare raises the epoch if the watermark tells that the database went back or
// was copied. The transaction is a writing one.
func (w *watermark) compare(ctx context.Context, tx *conn, now time.Time) error {
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
