package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/show"
)

// benchOutput is the destination of a report. What it writes to is opened before the run, so that
// an unwritable destination is found before hours of measuring.
type benchOutput struct {
	stdout io.Writer
	files  []benchFile
}

// benchFile is one file of a report.
type benchFile struct {
	path string // empty for standard output
	open *os.File
	// direct is true if open is what the path names: a device, a pipe, or what a symbolic link leads
	// to, none of which may be replaced. Otherwise open is a temporary file, which replaces a regular
	// file once it is complete.
	direct bool
	write  func(io.Writer, bench.Report) error
}

// benchFormats are the functions that write a report, by the name of the format.
var benchFormats = map[string]func(io.Writer, bench.Report) error{"text": show.Text, "json": show.JSON, "html": show.HTML}

func newBenchOutput(stdout io.Writer, format, path string) (*benchOutput, error) {
	write, ok := benchFormats[format]
	if !ok {
		return nil, fmt.Errorf("--format is %q; it is text, json or html", format)
	}
	if format == "html" && path == "" {
		path = "bench.html"
	}
	o := &benchOutput{stdout: stdout}
	if path == "" {
		o.files = []benchFile{{write: write}}
		return o, nil
	}
	o.files = []benchFile{{path: path, write: write}}
	if format == "html" && !special(path) { // nothing is beside a device
		beside := strings.TrimSuffix(path, filepath.Ext(path)) + ".json"
		if beside == path {
			return nil, fmt.Errorf("--out is %q, the name of the raw samples beside the page; name the page, such as bench.html", path)
		}
		o.files = append(o.files, benchFile{path: beside, write: show.JSON})
	}
	for i := range o.files {
		if err := o.files[i].prepare(); err != nil {
			o.discard()
			return nil, fmt.Errorf("--out: %w", err)
		}
	}
	return o, nil
}

// special reports whether a path names a device or a pipe, also where these lead to a file, as
// /dev/stdout may.
func special(path string) bool {
	info, err := os.Stat(path)
	return err == nil && (!info.Mode().IsRegular() || strings.HasPrefix(path, "/dev/"))
}

// linked reports whether a path names a symbolic link.
func linked(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&os.ModeSymlink != 0
}

// prepare opens the file, or a temporary one beside it.
func (f *benchFile) prepare() (err error) {
	if info, err := os.Stat(f.path); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory", f.path)
	}
	if f.direct = special(f.path) || linked(f.path); f.direct {
		f.open, err = os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE, 0o644)
		return err
	}
	f.open, err = os.CreateTemp(filepath.Dir(f.path), ".tapestore-bench-")
	return err
}

// write writes the report to each destination, and returns the names of the files that are complete,
// and an error for each that is not.
func (o *benchOutput) write(r bench.Report) (wrote []string, err error) {
	for _, f := range o.files {
		failed := f.writeTo(o.stdout, r)
		switch {
		case failed != nil:
			err = errors.Join(err, fmt.Errorf("the report cannot be written: %w", failed))
		case f.path != "":
			wrote = append(wrote, f.path)
		}
	}
	return wrote, err
}

func (f benchFile) writeTo(stdout io.Writer, r bench.Report) error {
	if f.open == nil {
		return f.write(stdout, r)
	}
	if f.direct {
		if info, err := f.open.Stat(); err == nil && info.Mode().IsRegular() { // behind a link
			if err := f.open.Truncate(0); err != nil {
				return err
			}
		}
		return errors.Join(f.write(f.open, r), f.open.Close())
	}
	// A temporary file is private; a report should have the usual permissions.
	if err := errors.Join(f.write(f.open, r), f.open.Chmod(0o644), f.open.Close()); err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return os.Rename(f.open.Name(), f.path)
}

// rescue prints a report that could not be written: to standard output, or to stderr if standard
// output fails too.
func (o *benchOutput) rescue(stderr io.Writer, r bench.Report) error {
	if o.files[0].path != "" && show.Text(o.stdout, r) == nil {
		return nil
	}
	return show.Text(stderr, r)
}

// discard closes what is open, and removes the temporary files that have replaced nothing.
func (o *benchOutput) discard() {
	for _, f := range o.files {
		if f.open == nil {
			continue
		}
		_ = f.open.Close()
		if !f.direct {
			_ = os.Remove(f.open.Name()) // after write the file does not exist
		}
	}
}
