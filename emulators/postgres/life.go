package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

// lockLocal returns the private server with its mutex locked, or an error if there is none or it is
// closed.
func (s *Server) lockLocal(op string) (*localServer, error) {
	if s.local == nil {
		return nil, fmt.Errorf("emulators: postgres: %s: %w: it is a %s", op, emulators.ErrNotOwned, s.engine.Tier)
	}
	s.local.mu.Lock()
	if s.local.closed {
		s.local.mu.Unlock()
		return nil, fmt.Errorf("emulators: postgres: %s: the server is closed", op)
	}
	return s.local, nil
}

// Kill ends the server as a crash does: the server and all its children get SIGKILL in the middle
// of their work. When Kill returns they are gone, and the port and the directory are free. Killing
// a server that is down does nothing.
func (s *Server) Kill() error {
	l, err := s.lockLocal("kill")
	if err != nil {
		return err
	}
	defer l.mu.Unlock()
	return l.kill()
}

// Restart starts the server again, on the same data and port, and returns when a query succeeds,
// after any recovery. A running server is first shut down cleanly. After an error the server is
// down, and Restart may be called again.
func (s *Server) Restart(ctx context.Context) error {
	l, err := s.lockLocal("restart")
	if err != nil {
		return err
	}
	defer l.mu.Unlock()
	if err := l.stop(host.SignalFast); err != nil {
		return fmt.Errorf("emulators: postgres: restart: %w", err)
	}
	if _, err := l.start(ctx); err != nil {
		return fmt.Errorf("emulators: postgres: restart: %w", err)
	}
	return nil
}

// Freeze stops the server and all its children where they are, with their connections open: to
// clients the server hangs, and the system accepts new connections that get no reply. Thaw ends the
// freeze.
func (s *Server) Freeze() error {
	l, err := s.lockLocal("freeze")
	if err != nil {
		return err
	}
	defer l.mu.Unlock()
	if err := l.freeze(); err != nil {
		return fmt.Errorf("emulators: postgres: freeze: %w", err)
	}
	return nil
}

// Thaw resumes a frozen server.
func (s *Server) Thaw() error {
	l, err := s.lockLocal("thaw")
	if err != nil {
		return err
	}
	defer l.mu.Unlock()
	return l.thaw()
}

// Close ends the server and removes its directory, unless Options named one. A server that
// this process did not start keeps running, without the databases that were created in it. A second
// Close does nothing.
func (s *Server) Close() error {
	s.closing.Do(func() {
		if s.local == nil && s.container == nil {
			s.closeErr = s.dropAll()
		}
		_ = s.sessions.close() // fails if the server was killed or frozen
		switch {
		case s.local != nil:
			s.closeErr = s.local.close()
		case s.container != nil:
			s.closeErr = s.container.Close()
		}
	})
	return s.closeErr
}

// kill ends all processes of the server. The caller holds mu.
func (l *localServer) kill() error {
	l.frozen.Stop()
	l.frozen = nil
	children := host.ProcessesIn(l.data) // first: some systems find them only by their server
	if l.proc != nil {
		if err := l.proc.Kill(); err != nil {
			return err
		}
		l.proc = nil
	}
	return errors.Join(host.SignalAll(children, os.Kill), l.clearDead())
}

// clearDead removes what dead processes of the server left in its directory. This process has
// locked the directory, so a process that still runs there has lost its owner; clearDead kills it.
func (l *localServer) clearDead() error {
	if err := endProcessesIn(l.data); err != nil {
		return err
	}
	if !host.FindsAllProcesses {
		return nil
	}
	// The files name a process id, which may belong to another process by now; the server
	// would then refuse to start.
	files, err := filepath.Glob(filepath.Join(l.sockets(), ".s.PGSQL.*"))
	for _, file := range append(files, filepath.Join(l.data, "postmaster.pid")) {
		if failed := os.Remove(file); !errors.Is(failed, os.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// endProcessesIn kills the processes of a data directory until none is left.
func endProcessesIn(data string) error {
	return host.Await(host.StopBound, func() (bool, error) {
		pids := host.ProcessesIn(data)
		return len(pids) == 0, host.SignalAll(pids, os.Kill)
	})
}

// stop shuts the server down by a signal, or kills it after StopBound. The caller holds mu.
func (l *localServer) stop(signal os.Signal) error {
	if l.proc == nil {
		return nil
	}
	if err := errors.Join(l.thaw(), l.proc.Signal(signal)); err != nil {
		return err
	}
	bound := time.NewTimer(host.StopBound)
	defer bound.Stop()
	select {
	case <-l.proc.Done:
	case <-bound.C:
	}
	return l.kill()
}

// freeze stops all processes of the server. The caller holds mu.
func (l *localServer) freeze() error {
	if !host.CanFreeze {
		return fmt.Errorf("processes cannot be stopped here: %w", errors.ErrUnsupported)
	}
	if l.proc == nil || l.proc.Ended() {
		return errors.New("the server is down")
	}
	if l.frozen != nil {
		return nil
	}
	// The server first, so that it starts no more children.
	if err := l.proc.Signal(host.SignalStop); err != nil {
		return err
	}
	var pids []int
	err := host.Await(host.StopBound, func() (bool, error) {
		pids = host.ProcessesIn(l.data)
		if err := host.SignalAll(pids, host.SignalStop); err != nil {
			return false, err
		}
		for _, pid := range pids {
			if !host.IsStopped(pid) {
				return false, nil
			}
		}
		return true, nil
	})
	// A stopped process does not act on the signal of this process's end, so a shell wakes it then.
	if err == nil {
		l.frozen, err = host.WatchDeath("CONT", pids...)
	}
	if err != nil {
		return errors.Join(err, host.SignalAll(pids, host.SignalContinue), l.proc.Signal(host.SignalContinue))
	}
	return nil
}

// thaw resumes all processes of the server. The caller holds mu.
func (l *localServer) thaw() error {
	if l.frozen == nil {
		return nil
	}
	l.frozen.Stop()
	l.frozen = nil
	return errors.Join(host.SignalAll(host.ProcessesIn(l.data), host.SignalContinue), l.proc.Signal(host.SignalContinue))
}

// close ends the server for good.
func (l *localServer) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	signal := host.SignalFast
	if l.dir.Temporary {
		signal = host.SignalImmediate // the data is removed anyway
	}
	return errors.Join(l.stop(signal), l.dir.Close())
}
