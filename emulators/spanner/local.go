package spanner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
)

// startLocal starts the emulator's program and the proxy in front of it.
func (s *Server) startLocal(ctx context.Context, program string) error {
	if p := s.opts.AbortProbability; p != nil && (*p < 0 || *p > 100) {
		return fmt.Errorf("the option AbortProbability is %d; it is a percentage", *p)
	}
	s.program, s.engine.Version = program, versionOf(program)
	if err := s.run(ctx); err != nil {
		return err
	}
	return s.proxy.listen(ctx)
}

// run starts the program and connects the proxy to it. The caller holds lifeMu, or has not shared s
// yet.
func (s *Server) run(ctx context.Context) (err error) {
	said := host.NewOutput(listensAt)
	// Port 0, not a port that was free a moment ago: the program silently shares a port that
	// another process has.
	args := []string{"--host_port=127.0.0.1:0", "--disable_query_null_filtered_index_check"}
	if p := s.opts.AbortProbability; p != nil {
		args = append(args, "--abort_current_transaction_probability="+strconv.Itoa(*p))
	}
	cmd := exec.Command(s.program, args...)
	cmd.Dir = os.TempDir()
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"} // independent of this process's environment
	for _, name := range []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Stdout, cmd.Stderr = said, said
	if s.process, err = host.StartProcess(cmd, host.WhenOrphanedKill); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, host.StartBound, fmt.Errorf("%s does not say within %v where it listens", s.program, host.StartBound))
	defer cancel()
	select {
	case <-said.Found:
	case <-s.process.Done:
		return fmt.Errorf("%s ended while it started: %v\n%s", s.program, s.process.Err, said)
	case <-ctx.Done():
		return fmt.Errorf("%w; it said:\n%s", context.Cause(ctx), said)
	}
	if err := s.connect(ctx, said.Address); err != nil {
		return fmt.Errorf("%w; %s said:\n%s", err, s.program, said)
	}
	return nil
}

// Restart ends the emulator, even if it hangs or has ended by itself, and starts it again at the
// same Address. All data is lost: databases, sessions, transactions. The caller must be the
// server's only user: clients with calls in flight get UNAVAILABLE or NOT_FOUND and must be created
// anew.
//
// Errors: emulators.ErrNotOwned if this process did not start the emulator. After any other error
// the emulator is down, and Restart may be called again.
func (s *Server) Restart(ctx context.Context) error {
	s.lifeMu.Lock()
	defer s.lifeMu.Unlock()
	return s.restart(ctx)
}

// restart is Restart for a caller that holds lifeMu.
func (s *Server) restart(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("emulators: spanner: restart: %w", err)
		}
	}()
	if s.program == "" {
		return fmt.Errorf("%w: it is a %s", emulators.ErrNotOwned, s.engine.Tier)
	}
	if s.stopped {
		return errors.New("the server is closed")
	}
	if s.process != nil {
		if err := s.process.Kill(); err != nil {
			return err
		}
	}
	if b := s.proxy.backend.Load(); b != nil {
		if err := b.close(); err != nil {
			return err
		}
	}
	s.databases.forgetAll()
	return s.run(ctx)
}

var listensAt = regexp.MustCompile(`Server address: (127\.0\.0\.1:\d+)\n`)
