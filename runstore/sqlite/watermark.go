package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/tapestore/tapestore/internal/filelock"
	"github.com/tapestore/tapestore/runstore"
)

// A watermark is the high-water mark of a database: a small file beside the database (its name ends
// in -witness, and messages call it the witness file) that records how much the database had
// committed. Opening the store compares the two and raises the epoch in three cases, so that no token
// and no position is given out twice (I2, I10):
//
//   - The database is older than its watermark: a backup was restored.
//   - The watermark is missing or belongs to another incarnation: the database was copied.
//   - The store was opened with synchronous=NORMAL in an earlier boot of the host: a power cut may have
//     lost acknowledged commits, and their watermarks too. The database records that boot.
//
// It is not simple because several processes write the file.
//
//  1. A write transaction takes the file's lock (flock) as it begins, and holds it until its commit
//     is recorded. So the records are in the order of the commits, and none replaces a higher
//     watermark by a lower one. A process that is paused with the lock is like one that is paused
//     with SQLite's write lock: in other processes the callers wait before anything of theirs is
//     applied, and can give up.
//  2. A commit is acknowledged only after it is recorded. The file is never synced: a kill of the
//     process loses nothing of it, and a power cut makes it lag behind. A watermark that lags
//     raises no epoch and does no harm.
//  3. A watermark that cannot be written is removed. A process whose file was removed by another
//     process opens the file that is there now. It looks whether its own is still there when another
//     connection has committed, because only a process that has committed removes the file, and every
//     lookEvery transactions, for a file that was replaced by hand.
//  4. The last byte of the file is a mark: '\t' from before a COMMIT that applies a write until its outcome is
//     known, else '\n'. A failed COMMIT and a killed process leave '\t'. Then the log may hold a commit in
//     doubt: if all processes are killed, the next opening recovers it. So a transaction that finds another byte
//     than '\n', or no file, changes a row. Its commit overwrites the one in doubt before its callers get an
//     answer.
//
// The leader of the writer uses it, so it needs no lock within the process.
type watermark struct {
	path  string
	file  *os.File
	id    os.FileInfo // identifies file
	known progress    // the progress that this handle wrote into file last, or found there
	line  []byte      // the line written last, a buffer; all lines have its length
	mark  [1]byte     // a buffer

	marked bool  // begin has marked the file
	fault  error // if a test sets it, every mark fails with it

	unseen int // transactions since file was last found at path
}

// lookEvery is 32. A look takes 1.4 µs. On Linux from 6.13 it also makes the next write stamp the file
// anew, and the stamp is part of the next sync: 50 µs of 200 µs, if each transaction looked
// (BenchmarkLoneWriter).
const lookEvery = 32

// progress is how much a database has committed.
type progress struct {
	Incarnation string
	Changes     int64
	Position    runstore.Position

	unsynced string // the boot of the host in which commits were not synced, see noteUnsynced; not in the file
}

func (p progress) behind(w progress) bool { return p.Changes < w.Changes || p.Position < w.Position }

// changes returns a number that grows with every change of the store. A transaction that only
// refused writes, or only set the clock, does not change it.
func (p progress) changes() int64 { return p.Changes + int64(p.Position) }

// read returns the recorded progress; ok is false when there is no watermark.
func (w *watermark) read() (p progress, ok bool, err error) {
	text, err := os.ReadFile(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return progress{}, false, nil
	}
	if err != nil {
		return progress{}, false, err
	}
	ok = json.Unmarshal(text, &p) == nil // a torn file or one of another format counts as missing
	return p, ok, nil
}

// lock locks the file for a write transaction, and opens or creates it as needed. It returns false
// while another process or handle has it locked. alone reports that no other connection has committed
// since the last call.
//
// A file that cannot be opened or locked does not prevent the transaction: begin then empties it, and record removes it.
func (w *watermark) lock(alone bool) bool {
	if w == nil {
		return true
	}
	if w.file == nil && w.open() != nil {
		return true
	}
	locked, err := filelock.Try(w.file)
	if err == nil && !locked {
		return false
	}
	var there os.FileInfo
	if err == nil {
		if w.unseen++; alone && w.unseen < lookEvery {
			return true
		}
		w.unseen = 0
		there, err = os.Stat(w.path)
	}
	if err == nil && os.SameFile(there, w.id) {
		return true
	}
	w.close()
	return err != nil && !errors.Is(err, fs.ErrNotExist) // otherwise the caller tries again with the file that is there now
}

// open opens the file at path. This happens when the store is opened, because later the process may
// have no descriptor left.
func (w *watermark) open() error {
	file, err := os.OpenFile(w.path, os.O_RDWR|os.O_CREATE, 0o644) // the mode of the database file
	if err != nil {
		return err
	}
	if w.id, err = file.Stat(); err != nil {
		return errors.Join(err, file.Close())
	}
	w.file, w.known = file, progress{}
	return nil
}

// record records the progress of the transaction that has just committed, and unlocks the file.
//
// A failure is not an error of the commit, which is in the database. It removes the file: a
// watermark that lags behind would hide the restore of a backup, and a missing one only raises the
// epoch.
func (w *watermark) record(p progress) {
	if w == nil {
		return
	}
	if p != w.known {
		if err := w.write(p); err != nil {
			w.remove()
			return
		}
		w.known = p
	}
	w.unlock()
}

func (w *watermark) write(p progress) error {
	w.line = p.append(w.line[:0])
	if w.file == nil {
		return fs.ErrClosed
	}
	_, err := w.file.WriteAt(w.line, 0)
	return err
}

// The marks, which JSON allows behind a value.
const (
	markSettled   = '\n' // the end of the line, so that record settles the commit that it records
	markUnsettled = '\t'
)

// begin marks that a COMMIT begins. It returns an error, and leaves the file as it is, if the disk is full: some
// file systems copy what is overwritten. A file that cannot be marked for another reason is emptied.
func (w *watermark) begin() error {
	if w == nil {
		return nil
	}
	err := w.setMark(markUnsettled)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return err
	}
	if w.marked = err == nil; !w.marked {
		w.empty()
	}
	return nil
}

// settle marks that the log holds no commit in doubt, unless begin has emptied the file. After a failure, the next
// transaction changes a row in vain.
func (w *watermark) settle() {
	if w != nil && w.marked {
		_ = w.setMark(markSettled)
	}
}

func (w *watermark) setMark(mark byte) error {
	if w.file == nil {
		return fs.ErrClosed
	}
	if w.fault != nil {
		return w.fault
	}
	w.mark[0] = mark
	_, err := w.file.WriteAt(w.mark[:], int64(len(w.line))-1)
	return err
}

// inDoubt reports whether the log may hold a commit in doubt. The file is locked, if there is one.
func (w *watermark) inDoubt() bool {
	if w == nil {
		return false
	}
	if w.file == nil {
		return true
	}
	_, err := w.file.ReadAt(w.mark[:], int64(len(w.line))-1)
	return err != nil || w.mark[0] != markSettled
}

// remove removes the file. It is also emptied, because Windows removes no file that another process has open.
func (w *watermark) remove() {
	w.empty()
	w.close()
	_ = os.Remove(w.path)
}

// empty empties the file, which counts as missing. A process that has it open finds no mark.
func (w *watermark) empty() {
	if w.file == nil || w.file.Truncate(0) != nil {
		_ = os.Truncate(w.path, 0)
	}
}

// unlock releases the lock of a transaction that has ended.
func (w *watermark) unlock() {
	if w != nil && w.file != nil {
		filelock.Release(w.file)
	}
}

// close closes the file, which releases its lock. The last commit is already recorded in it.
func (w *watermark) close() {
	if w != nil && w.file != nil {
		_ = w.file.Close() // the file is never synced, so an error loses nothing
		w.file = nil
	}
}

// append appends p as a line of JSON. All lines of a database have the same length, so that a write
// replaces the previous line completely. Package fmt would take as long as the write itself.
func (p progress) append(line []byte) []byte {
	line = append(line, `{"Incarnation":"`...)
	line = append(line, p.Incarnation...) // of rand.Text, so nothing needs quoting
	line = append(line, `","Changes":`...)
	line = appendPadded(line, p.Changes)
	line = append(line, `,"Position":`...)
	line = appendPadded(line, int64(p.Position))
	return append(line, "}\n"...)
}

// appendPadded appends n, padded with spaces to 20 bytes: the length of the longest int64.
func appendPadded(line []byte, n int64) []byte {
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], n, 10)
	return append(append(line, "                    "[len(text):]...), text...)
}

// reasonToRaise returns why opening a database whose progress is have raises its epoch, or "" if it
// does not. seen and ok are what read has returned, and boot is the present boot of the host.
func reasonToRaise(have, seen progress, ok bool, boot string) string {
	switch {
	case !ok && (have.Changes > 0 || have.Position > 0):
		return "the database was moved here without its witness file"
	case ok && seen.Incarnation != have.Incarnation:
		return "the database is a copy of another one"
	case ok && have.behind(seen):
		return "the database is older than its witness file: a backup was restored or commits were lost"
	case have.unsynced != "" && have.unsynced != boot: // a boot that is not known may be another one
		return "the host has started again since the store was opened with synchronous=NORMAL: commits may be lost"
	}
	return ""
}

// readProgress returns how much the database has committed.
func readProgress(ctx context.Context, c *conn) (progress, error) {
	row, err := c.one(ctx, sqlProgressRead)
	if err != nil {
		return progress{}, err
	}
	unsynced, _ := row[3].(string) // NULL without one
	return progress{text[string](row[0]), row[1].(int64), runstore.Position(row[2].(int64)), unsynced}, nil
}

// noteUnsynced records the boot of the host for a store that is opened with NORMAL, so that the first
// opening in another boot raises the epoch. An opening with FULL in another boot ends that; in the same boot,
// handles with NORMAL may be open.
func (db *database) noteUnsynced(ctx context.Context, tx *conn, now time.Time, boot string) error {
	note := db.progress.unsynced
	switch {
	case boot == "": // not known: the note stays for a process that knows its boot
	case db.opts.Synchronous == Normal:
		note = boot
	case note != boot:
		note = ""
	}
	if note == db.progress.unsynced {
		return nil
	}
	_, err := tx.exec(ctx, sqlUnsyncedSet, now.UnixMicro(), note)
	return err
}

// compare raises the epoch if the database was rolled back or copied, or may have lost commits. tx must be
// in a write transaction.
func (w *watermark) compare(ctx context.Context, tx *conn, now time.Time, boot string) error {
	if w == nil {
		return nil
	}
	have, err := readProgress(ctx, tx)
	if err != nil {
		return err
	}
	seen, ok, err := w.read()
	if err != nil {
		return err
	}
	reason := reasonToRaise(have, seen, ok, boot)
	if reason == "" {
		return nil
	}
	_, err = raise(ctx, tx, reason, seen, now)
	return err
}

// raise starts a new epoch: every grant ends, and tokens and positions continue above all those of
// the epochs before it. seen is the progress that the watermark recorded, zero without one: if the
// same backup was restored before, the watermark is in an epoch that the database does not know.
func raise(ctx context.Context, tx *conn, reason string, seen progress, now time.Time) (runstore.Epoch, error) {
	row, err := tx.one(ctx, sqlStateRead)
	if err != nil {
		return 0, err
	}
	epoch := max(runstore.Epoch(row[1].(int64)), runstore.Token(seen.Position).Epoch()) + 1 // positions and tokens have the same floor
	if err := runstore.CheckEpoch(epoch); err != nil {
		return 0, err
	}
	for _, step := range []func() (int64, error){
		func() (int64, error) { return tx.exec(ctx, sqlEpochRaise, int64(epoch), seen.Changes) },
		func() (int64, error) { return tx.exec(ctx, sqlEpochInsert, int64(epoch), now.UnixMicro(), reason) },
		func() (int64, error) { return tx.exec(ctx, sqlEpochEndGrants, now.UnixMicro()) },
		func() (int64, error) { return tx.exec(ctx, sqlEventMark, int64(epoch.Floor()), now.UnixMicro()) },
	} {
		if _, err := step(); err != nil {
			return 0, err
		}
	}
	return epoch, nil
}
