package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// subject is a system that the suite runs on.
type subject struct {
	harness conformance.Harness
	about   string // description of what was started or found; empty if nothing was
	close   func() error
}

func subjectOf(ctx context.Context, given suiteFlags) (subject, error) {
	switch {
	case given.engine != "":
		start, ok := starters[given.engine]
		if !ok {
			return subject{}, fmt.Errorf("--engine is %q; it is %s", given.engine, engineNames())
		}
		return start(ctx)
	case given.store != "":
		address, err := storeURL(given.store)
		if err != nil {
			return subject{}, fmt.Errorf("--store %w", err)
		}
		on, err := subjectAt(ctx, address)
		if err != nil {
			return on, fmt.Errorf("--store: %w", err)
		}
		return on, nil
	default:
		return subject{}, errors.New("name an engine with --engine or a store with --store URL, or ask for --all engines or the --gallery")
	}
}

// subjectAt returns a subject that makes stores like the one at a URL.
func subjectAt(ctx context.Context, url string) (subject, error) {
	u, err := runstore.ParseURL(url)
	if err != nil {
		return subject{}, err
	}
	switch u.Scheme {
	case "memory":
		return subject{embedded.Memory(), "", nothing}, u.RejectUnknownParams()
	case "sqlite":
		return sqliteAt(ctx, u)
	case "postgres", "postgresql", "alloydb", "bigtable", "spanner":
		target, err := engines.At(ctx, u)
		if err != nil {
			return subject{}, err
		}
		return subject{target.Harness, target.String(), target.Close}, nil
	default:
		return subject{}, fmt.Errorf("there is no harness for %q; there is one for memory, sqlite, postgres, alloydb, bigtable and spanner", u.Scheme)
	}
}

func nothing() error { return nil }

func sqliteAt(ctx context.Context, u runstore.URL) (subject, error) {
	path, opts, err := sqlite.ParseURL(u)
	if err != nil {
		return subject{}, err
	}
	if path == sqlite.Memory {
		return subject{embedded.SQLiteInMemory(*opts), "", nothing}, nil
	}
	if info, err := os.Stat(path); path == "" || err == nil && !info.Mode().IsRegular() {
		return subject{}, fmt.Errorf("%q is no file; write sqlite::memory: or sqlite:FILE", path)
	}
	opts.MustExist = false // each case gets a file of its own
	on, err := sqliteIn(ctx, filepath.Dir(path), filepath.Base(path)+".conformance-", opts)
	on.about = ""
	return on, err
}

// sqliteIn returns a subject whose cases use files in a new directory inside parent.
func sqliteIn(ctx context.Context, parent, prefix string, opts *sqlite.Options) (subject, error) {
	base, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return subject{}, err
	}
	dirs := caseDirs{base}
	about, err := probe(ctx, base, opts)
	if err != nil {
		return subject{}, errors.Join(err, dirs.remove())
	}
	return subject{embedded.SQLite(dirs.next, *opts), about, dirs.remove}, nil
}

// probe opens a store as the cases will, so that a problem with the location or the options is
// reported once, and not as the result of every case.
func probe(ctx context.Context, dir string, opts *sqlite.Options) (about string, err error) {
	s, err := sqlite.Open(ctx, filepath.Join(dir, "probe.db"), opts)
	if err != nil {
		return "", err
	}
	d, err := s.Describe(ctx)
	return describe(d), errors.Join(err, s.Close())
}

func describe(d runstore.Description) string {
	return fmt.Sprintf("%s %s (%s)", d.Engine, d.Version, d.Tier)
}

// caseDirs gives every case a directory of its own inside base, which is removed at the end.
type caseDirs struct{ base string }

func (d caseDirs) next(t conformance.T) string {
	dir, err := os.MkdirTemp(d.base, "case-")
	if err != nil {
		t.Fatalf("no directory for the case: %v", err)
	}
	return dir
}

func (d caseDirs) remove() error { return os.RemoveAll(d.base) }
