// Package reload keeps a value that is made from files in step with the files.
package reload

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxBytes is the size of the largest file: 4 MiB, a revocation list of about 100,000 entries.
	MaxBytes = 4 << 20
	// Interval is the time between two looks at the files. Polling needs no support of the file
	// system and follows symbolic links, which orchestrators exchange to replace files.
	Interval = 10 * time.Second
)

// Value is a value that is made from files. Its methods are safe for concurrent use.
type Value[T any] struct {
	paths []string
	parse func(files [][]byte) (T, error)
	value atomic.Pointer[T]

	mu     sync.Mutex // serializes looks at the files
	seen   [sha256.Size]byte
	failed string // the error of the last look; "" if it had none
}

// Load reads the files and makes the value from their contents, which parse receives in the order of
// the paths.
//
// Errors: those of parse, and of the file system; a file of more than MaxBytes.
func Load[T any](paths []string, parse func(files [][]byte) (T, error)) (*Value[T], error) {
	v := &Value[T]{paths: paths, parse: parse}
	if _, err := v.Check(); err != nil {
		return nil, err
	}
	return v, nil
}

// Get returns the value of the last look at the files that succeeded.
func (v *Value[T]) Get() T { return *v.value.Load() }

// Check looks at the files and makes a new value if their contents have changed. It reports whether
// there is a new value. After an error the former value stays; an error that repeats is returned
// once.
func (v *Value[T]) Check() (changed bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	changed, err = v.check()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == v.failed {
		return changed, nil
	}
	v.failed = text
	return changed, err
}

func (v *Value[T]) check() (changed bool, err error) {
	files := make([][]byte, len(v.paths))
	sum := sha256.New()
	for i, path := range v.paths {
		if files[i], err = read(path); err != nil {
			return false, err
		}
		_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(files[i])))) // a hash returns no error
		_, _ = sum.Write(files[i])
	}
	seen := [sha256.Size]byte(sum.Sum(nil))
	if v.value.Load() != nil && seen == v.seen {
		return false, nil
	}
	value, err := v.parse(files)
	if err != nil {
		return false, err
	}
	v.seen = seen
	v.value.Store(&value)
	return true, nil
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err == nil && len(data) > MaxBytes {
		err = errors.New("has more than 4 MiB")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// Watch looks at the files at every interval until ctx ends. It logs each new value, and each error
// once, under the name what.
func (v *Value[T]) Watch(ctx context.Context, interval time.Duration, what string, log *slog.Logger) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		switch changed, err := v.Check(); {
		case err != nil:
			log.Error("cannot read the changed "+what+"; the former stays in use", "error", err)
		case changed:
			log.Info("read the changed "+what, "files", v.paths)
		}
	}
}
