package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// Source is an archive to read: a stream, a file or a directory.
type Source struct {
	stream io.Reader
	label  string // of the stream
	files  []string
}

// Stream returns the archive that a stream holds, which can be read once. name is its name in errors.
func Stream(name string, in io.Reader) *Source { return &Source{stream: in, label: name} }

// Open returns the archive in a file, or that of [ExportDir] in a directory. It reads nothing yet.
func Open(path string) (*Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return &Source{files: []string{path}}, nil
	}
	complete, partial, err := listParts(path)
	switch {
	case err != nil:
		return nil, err
	case len(complete) == 0 && partial:
		return nil, &DamageError{path, 0, "the export into this directory has not finished: repeat it"}
	case len(complete) == 0:
		return nil, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "archive", Problem: fmt.Sprintf("there is none in %q: it has no file %s", path, partName(1))}
	}
	return &Source{files: complete}, nil
}

// Repeatable reports whether the archive can be read more than once.
func (s *Source) Repeatable() bool { return s.stream == nil }

// reading is one reading of an archive.
type reading struct {
	header *header // of the first file
	counts Counts
}

// newest returns the header with the highest epoch: a directory whose export was continued after an epoch
// was raised has several.
func (s *Source) newest() (*header, error) {
	var newest *header
	for _, name := range s.files {
		h, err := headerOf(name)
		if err != nil {
			return nil, err
		}
		if newest == nil || h.Epoch > newest.Epoch {
			newest = h
		}
	}
	return newest, nil
}

// headerOf reads the header of a file.
func headerOf(name string) (*header, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return newFileReader(name, f).first()
}

// read passes the runs of the archive to a sink. start, if not nil, is called once, before any run, with
// the header that has the highest epoch.
func (s *Source) read(ctx context.Context, start func(*header) error, to sink) (reading, error) {
	var all reading
	var before *header
	sum, last := "", false
	one := func(name string, in io.Reader) error {
		f := newFileReader(name, in)
		h, err := f.header(before, sum)
		if err != nil {
			return err
		}
		if before = h; all.header == nil {
			all.header = h
		}
		if start != nil && s.stream != nil {
			if err := start(h); err != nil {
				return err
			}
		}
		closing, err := (&runReader{fileReader: f, to: to, epoch: runstore.Epoch(h.Epoch), counts: &all.counts}).read(ctx)
		if err != nil {
			return err
		}
		sum, last = f.sum, closing.Last
		return nil
	}
	if s.stream != nil {
		err := one(s.label, s.stream)
		if err == nil && !last {
			err = &DamageError{s.label, 1, "this is only the first file of an archive of several"}
		}
		return all, err
	}
	if start != nil {
		h, err := s.newest()
		if err != nil {
			return all, err
		}
		if err := start(h); err != nil {
			return all, err
		}
	}
	for i, name := range s.files {
		if last {
			return all, &DamageError{name, 1, "the archive ends with the file before"}
		}
		f, err := os.Open(name)
		if err != nil {
			return all, err
		}
		err = one(name, f)
		_ = f.Close() // it was only read
		if err != nil {
			return all, err
		}
		if i == len(s.files)-1 && !last {
			return all, &DamageError{name, 1, "the file is not the last of its archive, and the next one is missing: it was lost, or the export has not finished"}
		}
	}
	return all, nil
}

// Check reads the whole archive and checks every sum. The counts are those of what was read.
//
// Errors: *DamageError for the first damage; ErrUnsupported for a newer format; those of reading.
func Check(ctx context.Context, s *Source) (Counts, error) {
	all, err := s.read(ctx, nil, nothing{})
	return all.counts, err
}

// nothing is a sink that drops everything.
type nothing struct{}

func (nothing) head(context.Context, head) error                    { return nil }
func (nothing) record(context.Context, runstore.PlacedRecord) error { return nil }
func (nothing) event(context.Context, runstore.Event) error         { return nil }
func (nothing) end(context.Context) error                           { return nil }
func (nothing) discard(context.Context) error                       { return nil }

// The names of the files of a directory.
const (
	partPrefix    = "runs-"
	partSuffix    = ".jsonl"
	partialSuffix = ".partial" // of a file that is being written
	lockName      = "export"   // what an export locks
)

func partName(n int) string { return fmt.Sprintf("%s%06d%s", partPrefix, n, partSuffix) }

// listParts returns the complete files of a directory in their order, and whether there is a partial
// one. A missing directory has none.
func listParts(dir string) (complete []string, partial bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case !strings.HasPrefix(name, partPrefix):
		case strings.HasSuffix(name, partSuffix):
			complete = append(complete, filepath.Join(dir, name))
		case strings.HasSuffix(name, partSuffix+partialSuffix):
			partial = true
		}
	}
	slices.Sort(complete)
	return complete, partial, nil
}
