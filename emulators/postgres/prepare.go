package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tapestore/tapestore/emulators/internal/host"
)

// prepare creates the data directory, unless an earlier start did.
func (l *localServer) prepare(ctx context.Context, opts *Options) error {
	l.data = filepath.Join(l.dir.Path, "data")
	var err error
	info, missing := os.Stat(l.data)
	if missing == nil {
		l.account = host.OwnerOf(info) // the user that created the data, and can read it
	} else if l.account, err = host.EngineAccount("postgres", "nobody"); err != nil {
		return err
	}
	if err := l.account.CanReach(l.dir.Path); err != nil {
		return err
	}
	if err := l.account.CanReach(l.bin); err != nil {
		return err
	}
	if err := os.MkdirAll(l.sockets(), 0o755); err != nil {
		return err
	}
	if err := l.account.Own(l.sockets()); err != nil {
		return err
	}
	if missing != nil {
		return l.initdb(ctx, opts.Durable)
	}
	// The last owner's server may still be ending.
	if err := host.Await(host.StopBound, func() (bool, error) { return len(host.ProcessesIn(l.data)) == 0, ctx.Err() }); err != nil {
		return fmt.Errorf("a server without an owner still runs in %s: %w", l.data, err)
	}
	return l.clearDead()
}

// sockets returns the directory of the server's Unix socket.
func (l *localServer) sockets() string { return filepath.Join(l.dir.Path, "run") }

// initdb creates the data directory. It is renamed to its final name when it is complete, so that
// an interrupted start leaves no incomplete one.
func (l *localServer) initdb(ctx context.Context, sync bool) error {
	unfinished := l.data + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := os.Mkdir(unfinished, 0o700); err != nil {
		return err
	}
	if err := l.account.Own(unfinished); err != nil {
		return err
	}
	args := []string{"-D", unfinished, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C"}
	if !sync {
		args = append(args, "--no-sync")
	}
	log, err := os.Create(filepath.Join(l.dir.Path, "initdb.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	proc, err := host.StartProcess(l.command("initdb", unfinished, log, args...), host.WhenOrphanedKill)
	if err != nil {
		return err
	}
	select {
	case <-proc.Done:
		proc.Release()
	case <-ctx.Done():
		return errors.Join(ctx.Err(), proc.Kill(), endProcessesIn(unfinished))
	}
	if proc.Err != nil {
		return fmt.Errorf("initdb: %w\n%s", proc.Err, tail(log.Name(), 0))
	}
	return os.Rename(unfinished, l.data)
}
