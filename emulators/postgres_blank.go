package emulators

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// blankTurn admits one maker of the archive at a time.
var blankTurn sync.Mutex

// copyBlank makes the data directory as initdb does, from an archive of what initdb once made.
// initdb takes half a second of CPU, a copy 40 ms. The archive is in the user's cache directory,
// one for each build of PostgreSQL. Where it cannot be had or kept, initdb does.
//
// All copies have the system identifier of the archive. PostgresOptions.Dir gets one of its own.
func (l *localPostgres) copyBlank(ctx context.Context) error {
	name, err := l.blankName()
	if err != nil {
		return l.initdb(ctx, false)
	}
	blankTurn.Lock()
	defer blankTurn.Unlock()
	if l.unpack(name) == nil {
		return ctx.Err()
	}
	if err := l.initdb(ctx, false); err != nil {
		return err
	}
	_ = pack(name, l.data) // the next start tries again
	return nil
}

// blankName is the archive's file for the programs that l uses.
func (l *localPostgres) blankName() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	key := sha256.New()
	fmt.Fprintln(key, initdbOptions)
	for _, program := range []string{"initdb", "postgres"} {
		path, err := filepath.EvalSymlinks(filepath.Join(l.bin, executableName(program)))
		if err != nil {
			return "", err
		}
		info, err := os.Stat(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(key, path, info.Size(), info.ModTime().UnixNano())
	}
	return filepath.Join(cache, "tapestore", fmt.Sprintf("postgres-%x.tar", key.Sum(nil)[:8])), nil
}

// pack writes the files of dir to an archive, which gets its name when it is complete.
func pack(name, dir string) (err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	archive := tar.NewWriter(file)
	if err := errors.Join(archive.AddFS(os.DirFS(dir)), archive.Close(), file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

// unpack makes the data directory of an archive's files. It leaves nothing when it fails.
func (l *localPostgres) unpack(name string) (err error) {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	unfinished := l.data + ".new"
	defer func() {
		if err != nil {
			_ = os.RemoveAll(unfinished)
		}
	}()
	if err := l.makeDir(unfinished); err != nil {
		return err
	}
	for archive := tar.NewReader(file); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return os.Rename(unfinished, l.data)
		}
		if err != nil {
			return err
		}
		path := filepath.Join(unfinished, filepath.FromSlash(header.Name))
		if header.Typeflag == tar.TypeDir {
			err = l.makeDir(path)
		} else {
			err = l.makeFile(path, archive)
		}
		if err != nil {
			return err
		}
	}
}

func (l *localPostgres) makeDir(path string) error {
	return errors.Join(os.Mkdir(path, 0o700), l.account.own(path))
}

func (l *localPostgres) makeFile(path string, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close(), l.account.own(path))
}
