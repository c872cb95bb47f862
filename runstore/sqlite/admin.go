package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
	"github.com/tapestore/tapestore/runstore/admin"
)

func init() {
	admin.Register("sqlite", admin.Engine{
		Plan: func(ctx context.Context, u runstore.URL) (admin.Plan, error) {
			path, opts, err := ParseURL(u)
			if err != nil {
				return admin.Plan{}, err
			}
			p, err := plan(ctx, path, opts)
			if err != nil {
				err = outcome.Wrap("plan sqlite migration", "", classify("", explain(path, err)))
			}
			return p, err
		},
		Apply: func(ctx context.Context, u runstore.URL) error {
			path, opts, err := ParseURL(u)
			if err != nil {
				return err
			}
			if path == Memory {
				return errMemory
			}
			opts.MustExist, opts.ReadOnly = false, false
			s, err := Open(ctx, path, opts)
			if err != nil {
				return err
			}
			return s.Close()
		},
		Check: check,
	})
}

var errMemory = adapter.Invalid("store URL", "a database in memory has the schema of its program; there is nothing to migrate")

// plan reads the version of a file, over a connection that cannot write.
func plan(ctx context.Context, path string, options *Options) (admin.Plan, error) {
	p := admin.Plan{Holder: "file " + path, Program: len(migrations)}
	if path == Memory {
		return p, errMemory
	}
	if _, err := options.withDefaults(); err != nil {
		return p, err
	}
	abs, err := checkPath(path, false)
	if err != nil {
		return p, err
	}
	if _, err := os.Stat(abs); errors.Is(err, fs.ErrNotExist) {
		p.Steps = append(p.Steps, admin.Step{Name: "create the file"})
	} else {
		err := look(ctx, abs, func(c *conn) (err error) {
			p.Version, err = identify(ctx, c)
			return err
		})
		if err != nil {
			return p, err
		}
	}
	for i := p.Version; i < len(migrations); i++ {
		p.Steps = append(p.Steps, admin.Step{
			Name:       "version " + migrations[i].Name,
			Statements: []string{strings.TrimSpace(migrations[i].Text), fmt.Sprintf("PRAGMA user_version = %d;", i+1)},
		})
	}
	return p, nil
}

// look calls f with a connection that cannot write. If no other is open, its close copies the log of a process
// that was killed into the file, and deletes the log. mode=ro would prevent that, but would also leave the log of a server that
// ends meanwhile, for a later copy of the file to miss.
func look(ctx context.Context, path string, f func(c *conn) error) error {
	db := &database{path: path}
	db.damage.path, db.damage.logger = path, slog.New(slog.DiscardHandler) // the caller reports the error
	c, err := db.connect(ctx, "query_only(1)")
	if err != nil {
		return err
	}
	err = db.catchDamage(func() error { return retryWhileBusy(ctx, func() error { return f(c) }) })
	return errors.Join(err, c.close())
}

// check checks the file and the library.
func check(ctx context.Context, u runstore.URL) []admin.Finding {
	var r admin.Report
	path, opts, err := ParseURL(u)
	if err != nil {
		r.Fail("store URL", err.Error(), "write sqlite:FILE?key=value")
		return r
	}
	if path == Memory {
		r.OK("schema", "a database in memory has the schema of its program")
		return r
	}
	p, err := plan(ctx, path, opts)
	if err != nil {
		err = explain(path, err)
	}
	r.Schema(p, err)
	if err != nil || p.Version == 0 {
		return r
	}
	if path, err = checkPath(path, true); err != nil {
		r.Fail("file", err.Error(), "repeat")
		return r
	}
	version, mode := "", ""
	err = look(ctx, path, func(c *conn) error {
		for query, into := range map[string]*string{sqlVersionRead: &version, "PRAGMA journal_mode": &mode} {
			row, err := c.one(ctx, query)
			if err != nil {
				return err
			}
			*into = row[0].(string)
		}
		return nil
	})
	if err != nil {
		r.Fail("file", err.Error(), "see the message")
		return r
	}
	r.OK("library", "SQLite %s", version)
	if mode == "wal" {
		r.OK("journal mode", "write-ahead log")
	} else {
		r.Warn("journal mode", mode+" instead of wal", "nothing: the next opening for writing sets it; a copy made by VACUUM INTO does not have it")
	}
	if opts.Synchronous != "" && opts.Synchronous != Full {
		r.Warn("synchronous", string(opts.Synchronous)+": a power cut may lose acknowledged commits", "remove synchronous from the URL, or accept the loss")
	} else {
		r.OK("synchronous", "FULL: acknowledged commits survive a power cut")
	}
	checkFiles(path, &r)
	if len(p.Steps) == 0 { // an older schema is a failure, because of which nothing opens the store
		checkIncarnation(ctx, path, &r)
	}
	return r
}

// checkIncarnation checks whether the next opening for writing raises the epoch. It reads the
// watermark before the database: a server that commits in between is then ahead of the watermark, and
// never behind it.
func checkIncarnation(ctx context.Context, path string, r *admin.Report) {
	seen, ok, err := (&watermark{path: path + "-witness"}).read()
	var have progress
	if err == nil {
		err = look(ctx, path, func(c *conn) (err error) {
			have, err = readProgress(ctx, c)
			return err
		})
	}
	if err != nil {
		r.Fail("incarnation", err.Error(), "see the message")
		return
	}
	boot, _ := newSystemClock().Up()
	if reason := reasonToRaise(have, seen, ok, boot); reason != "" {
		r.KeepClosed("incarnation", reason+": the next program that opens the store for writing raises the epoch",
			"expected after a restore, and after a boot of the host with synchronous=normal: start the server; otherwise check the URL, and that FILE-witness was not deleted")
		return
	}
	r.OK("incarnation", "the file is the one that its witness file belongs to, and not older")
}

// checkFiles checks that this user may write the file, the files beside it and the directory, in
// which SQLite creates them. It opens none of them: closing a file drops every lock that this process
// has on it, those of an open store included.
func checkFiles(path string, r *admin.Report) {
	const advice = "run as the user that serves, or change the owner: a server writes the file, FILE-wal, FILE-shm and FILE-witness"
	for _, name := range []string{path, path + "-wal", path + "-shm", path + "-witness"} {
		if err := writable(name, false); err != nil && !errors.Is(err, fs.ErrNotExist) { // SQLite, or the store, creates it
			r.Warn("permissions", fmt.Sprintf("this user may not write %s: %v", name, err), advice)
			return
		}
	}
	if dir := filepath.Dir(path); writable(dir, true) != nil {
		r.Warn("permissions", "this user may not create files in "+dir, advice)
		return
	}
	r.OK("permissions", "this user may write the file and its directory")
}
