package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tapestore/tapestore/internal/dirsync"
	"github.com/tapestore/tapestore/runstore"
)

// ExportOptions configures an export. A zero field takes its default; nil options mean all defaults.
type ExportOptions struct {
	// Label names the source for people, up to 256 bytes. [ExportDir] continues only an archive of the
	// same label. It must hold no password.
	Label string
	// PartBytes is the size at which [ExportDir] begins a new file. Default 64 MiB. An export that was
	// killed writes at most one file and one run again.
	PartBytes int64
	// Progress is called after each run with the counts until then.
	Progress func(Counts)
}

// defaultPartBytes is 64 MiB.
const defaultPartBytes = 64 << 20

func (o *ExportOptions) resolve() ExportOptions {
	var all ExportOptions
	if o != nil {
		all = *o
	}
	if all.PartBytes <= 0 {
		all.PartBytes = defaultPartBytes
	}
	if all.Progress == nil {
		all.Progress = func(Counts) {}
	}
	all.Label = clip(all.Label)
	return all
}

// Export writes an archive of all runs of a store to a stream. After an error the stream has an
// incomplete archive, which readers refuse.
//
// Errors: ErrUnsupported if the store is no runstore.Mover; ErrEpochRaised; those of the store; those of
// out.
func Export(ctx context.Context, store runstore.RunStore, out io.Writer, opts *ExportOptions) (Counts, error) {
	o := opts.resolve()
	buffered := bufio.NewWriterSize(out, 256<<10)
	w, err := NewWriter(ctx, store, buffered, o.Label)
	if err != nil {
		return Counts{}, err
	}
	err = w.from.runs(ctx, "", func(id runstore.RunID) error {
		_, err := w.WriteRun(ctx, id)
		o.Progress(w.counts)
		return err
	})
	if err == nil {
		err = w.checkEpoch(ctx)
	}
	if err == nil {
		err = w.Close()
	}
	return w.counts, errors.Join(err, buffered.Flush())
}

// ErrComplete reports that a directory has a complete archive, so that there is nothing to continue.
var ErrComplete = errors.New("the directory has a complete archive")

// ExportDir writes an archive of all runs of a store to a directory, in files of about
// [ExportOptions.PartBytes]. A repeat after a crash continues after the last complete file: each run of
// the earlier files is in the state in which it was then. The order of the runs is that of the source's
// engine, so an export is continued from the same store only. When the epoch of the store is raised, a new
// file begins, which names the new epoch. Only the user of the process can read the files, and the
// directories that ExportDir makes.
//
// Errors: as [Export]; ErrComplete; ErrInUse; a *DamageError if the last file is damaged; ErrInvalid if
// the directory has an archive of another label.
func ExportDir(ctx context.Context, store runstore.RunStore, dir string, opts *ExportOptions) (Counts, error) {
	o := opts.resolve()
	from, err := newSource(store)
	if err != nil {
		return Counts{}, err
	}
	d := &dirExport{dir: dir, from: from, opts: o}
	if err := makeDir(dir, dirsync.Sync); err != nil {
		return Counts{}, err
	}
	unlock, err := Lock(filepath.Join(dir, lockName))
	if err != nil {
		return Counts{}, err
	}
	defer unlock()
	if err := d.resume(ctx); err != nil {
		return d.counts, err
	}
	for last := false; !last; {
		if last, err = d.part(ctx); err != nil {
			return d.counts, err
		}
	}
	return d.counts, nil
}

// dirExport is the state of an export into a directory, between two files.
type dirExport struct {
	dir    string
	from   source
	opts   ExportOptions
	header *header // of the next file
	counts Counts
	after  runstore.RunID
}

// resume reads the last complete file, if there is any, and prepares the header of the next one.
func (d *dirExport) resume(ctx context.Context) error {
	complete, _, err := listParts(d.dir)
	if err != nil {
		return err
	}
	if len(complete) == 0 {
		d.header, err = newHeader(ctx, d.from.store, d.opts.Label)
		return err
	}
	name := complete[len(complete)-1]
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	f := newFileReader(name, in)
	l, _, err := f.next()
	if err != nil {
		return err
	}
	h := l.Header
	switch {
	case h == nil:
		return f.damage("the first line is no header")
	case h.Part != len(complete) || filepath.Base(name) != partName(h.Part):
		return f.damage("this is file %d of the archive, and the directory has %d", h.Part, len(complete))
	case h.Source != d.opts.Label:
		return &runstore.InputError{Kind: runstore.ErrInvalid, Field: "directory", Problem: fmt.Sprintf(
			"%q has an unfinished archive of %q; name another directory, or delete it", d.dir, h.Source)}
	}
	closing, err := f.skipToClose(ctx)
	switch {
	case err != nil:
		return err
	case closing.Last:
		return fmt.Errorf("%q: %w; name another directory", d.dir, ErrComplete)
	}
	d.counts, d.after = closing.Counts, runstore.RunID(closing.After)
	h.Part, h.Previous = h.Part+1, f.sum
	d.header = h
	return nil
}

// makeDir makes a directory that does not exist, with its parents. sync makes the names in a directory
// durable. An earlier attempt may have been killed before it did so; for a directory that exists, an
// error of sync is ignored, because the parent need not be readable.
func makeDir(dir string, sync func(dir string) error) error {
	parent := filepath.Dir(filepath.Clean(dir))
	if _, err := os.Stat(dir); err == nil {
		_ = sync(parent)
		return nil
	}
	if parent != dir {
		if err := makeDir(parent, sync); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return sync(parent)
}

// createPartial creates the file of an archive that is being written, readable for the user of the process
// only. A file of that name is replaced: it is of an export that was killed, because the caller has the lock.
func createPartial(name string) (*os.File, error) {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// skipToClose reads the rest of a file without looking at its runs, and returns its close.
func (r *fileReader) skipToClose(ctx context.Context) (*closing, error) {
	for {
		l, _, err := r.next()
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		if l.Close != nil {
			return l.Close, r.atEnd()
		}
	}
}

// errFull ends the runs of a file.
var errFull = errors.New("the file is full")

// part writes the next file. It gets its name when it is complete and on the disk.
func (d *dirExport) part(ctx context.Context) (last bool, err error) {
	if err := d.header.readEpochs(ctx, d.from.store); err != nil {
		return false, err
	}
	name := filepath.Join(d.dir, partName(d.header.Part))
	f, err := createPartial(name + partialSuffix)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // after an error; else it is closed already
	buffered := bufio.NewWriterSize(f, 256<<10)
	w, err := startWriter(d.from, buffered, d.header, d.counts)
	if err != nil {
		return false, err
	}
	w.after = d.after
	some := false // every file has a run, however small its bound is
	err = d.from.runs(ctx, d.after, func(id runstore.RunID) error {
		if some && w.out.bytes >= d.opts.PartBytes {
			return errFull
		}
		_, err := w.WriteRun(ctx, id)
		if some && errors.Is(err, ErrEpochRaised) { // the next header has the new epoch
			return errFull
		}
		some = true
		d.opts.Progress(w.counts)
		return err
	})
	if last = err == nil; last {
		if err = w.checkEpoch(ctx); errors.Is(err, ErrEpochRaised) { // the header of one more file has the new epoch
			last, err = false, errFull
		}
	}
	if err != nil && !errors.Is(err, errFull) {
		return false, err
	}
	if err := errors.Join(w.close(last), buffered.Flush(), f.Sync(), f.Close()); err != nil {
		return false, err
	}
	if err := errors.Join(os.Rename(name+partialSuffix, name), dirsync.Sync(d.dir)); err != nil {
		return false, err
	}
	d.counts, d.after = w.counts, w.after
	next := *d.header
	next.Part, next.Previous = next.Part+1, w.out.sum
	d.header = &next
	return last, nil
}
