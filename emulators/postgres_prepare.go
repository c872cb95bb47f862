package emulators

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// prepare creates the data directory, unless an earlier start did.
func (l *localPostgres) prepare(ctx context.Context, opts *PostgresOptions) error {
	l.data = filepath.Join(l.dir.path, "data")
	var err error
	info, missing := os.Stat(l.data)
	if missing == nil {
		l.account = ownerOf(info) // the user that created the data, and can read it
	} else if l.account, err = engineAccount("postgres", "nobody"); err != nil {
		return err
	}
	if err := l.account.canReach(l.dir.path); err != nil {
		return err
	}
	if err := l.account.canReach(l.bin); err != nil {
		return err
	}
	if err := os.MkdirAll(l.sockets(), 0o755); err != nil {
		return err
	}
	if err := l.account.own(l.sockets()); err != nil {
		return err
	}
	if missing != nil {
		return l.initdb(ctx, opts.Durable)
	}
	// The last owner's server may still be ending.
	if err := await(stopBound, func() (bool, error) { return len(processesIn(l.data)) == 0, ctx.Err() }); err != nil {
		return fmt.Errorf("a server without an owner still runs in %s: %w", l.data, err)
	}
	return l.clearDead()
}

// sockets returns the directory of the server's Unix socket.
func (l *localPostgres) sockets() string { return filepath.Join(l.dir.path, "run") }

// initdb creates the data directory. It is renamed to its final name when it is complete, so that
// an interrupted start leaves no incomplete one.
func (l *localPostgres) initdb(ctx context.Context, sync bool) error {
	unfinished := l.data + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := os.Mkdir(unfinished, 0o700); err != nil {
		return err
	}
	if err := l.account.own(unfinished); err != nil {
		return err
	}
	args := []string{"-D", unfinished, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C"}
	if !sync {
		args = append(args, "--no-sync")
	}
	log, err := os.Create(filepath.Join(l.dir.path, "initdb.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	proc, err := startProcess(l.command("initdb", unfinished, log, args...), whenOrphanedKill)
	if err != nil {
		return err
	}
	select {
	case <-proc.done:
		proc.watch.stop()
	case <-ctx.Done():
		return errors.Join(ctx.Err(), proc.kill(), endProcessesIn(unfinished))
	}
	if proc.err != nil {
		return fmt.Errorf("initdb: %w\n%s", proc.err, tail(log.Name(), 0))
	}
	return os.Rename(unfinished, l.data)
}
