package retain

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/internal/dirsync"
	"github.com/tapestore/tapestore/runstore"
)

// Target is where archived runs go. Names are relative paths with slashes, of letters, digits and the
// characters "=", "-", "_" and ".".
type Target interface {
	// Write makes an object of what write writes, and replaces the one of that name, if there is one. The
	// object appears complete or not at all: not if write returns an error, and not if the process ends.
	Write(ctx context.Context, name string, write func(io.Writer) error) error
	// Open returns an object for reading. The error matches fs.ErrNotExist if there is none.
	Open(ctx context.Context, name string) (io.ReadCloser, error)
	// String names the target for people, without secrets.
	String() string
}

// Syncer is implemented by a [Target] whose objects can be visible before they are durable.
type Syncer interface {
	// Sync makes an object durable that Open has returned.
	Sync(name string) error
}

// ObjectName returns the name of the object that has the archive of a state. States with different
// digests have different names. The first directory is a hash of the run's id, so that all objects of a
// run are in one directory, and a directory of a million runs has thousands of objects.
func ObjectName(s archive.RunState) string {
	return fmt.Sprintf("%s/%s.%d.%d.%.32s.jsonl", hashOf(s.Run.ID), escape(string(s.Run.ID)), int64(s.Run.Token), int64(s.Run.LastSeq), s.Digest)
}

// hashOf returns the name of the directory of a run's objects.
func hashOf(id runstore.RunID) string {
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprintf("%x", sum[:1])
}

// maxEscaped bounds the part of an object's name that shows the run's id, 120 bytes: with numbers and
// digest the name has less than 255, the limit of most file systems. A longer id is cut; the digest
// distinguishes the runs.
const maxEscaped = 120

// escape returns an id with every byte but letters, digits, "-" and "_" as = and two hexadecimal digits.
func escape(id string) string {
	var b strings.Builder
	for i := range len(id) {
		c := id[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02x", c)
		}
		if b.Len() > maxEscaped {
			break
		}
	}
	text := b.String()
	return text[:min(len(text), maxEscaped)]
}

// Dir is a directory as a target. It must exist: one that is missing may be a volume that is not mounted.
// Files and the directories in it are for this user only. A process that is killed can leave a file that ends in [PartialSuffix], which may be deleted while no other pass runs.
type Dir string

// PartialSuffix is the end of the names of files that are being written.
const PartialSuffix = ".partial"

// String implements [Target].
func (d Dir) String() string { return string(d) }

// Write implements [Target]: the file is synced and then renamed.
func (d Dir) Write(_ context.Context, name string, write func(io.Writer) error) (err error) {
	path := filepath.Join(string(d), filepath.FromSlash(name))
	dir := filepath.Dir(path)
	if err := d.Check(); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.CreateTemp(dir, "*"+PartialSuffix)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return errors.Join(dirsync.Sync(dir), dirsync.Sync(string(d)))
}

// Check returns an error unless d is a directory that exists.
func (d Dir) Check() error {
	switch info, err := os.Stat(string(d)); {
	case err != nil:
		return fmt.Errorf("the directory of the archive must exist, and is not made, because it may be a volume that is not mounted: %w", err)
	case !info.IsDir():
		return fmt.Errorf("the archive %s is no directory", d)
	}
	return nil
}

// Sync implements [Syncer].
func (d Dir) Sync(name string) error {
	path := filepath.Join(string(d), filepath.FromSlash(name))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), dirsync.Sync(filepath.Dir(path)), dirsync.Sync(string(d)))
}

// Open implements [Target].
func (d Dir) Open(_ context.Context, name string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(d), filepath.FromSlash(name)))
}
