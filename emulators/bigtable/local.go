package bigtable

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"

	"github.com/tapestore/tapestore/emulators/internal/host"
)

// startLocal starts the emulator's program and the gate in front of it.
func (s *Server) startLocal(ctx context.Context, program string) (err error) {
	if s.engine.Version, err = cbtemulatorVersion(program); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	said := host.NewOutput(listensAt)
	cmd := exec.Command(program, "-host", "127.0.0.1", "-port", "0")
	cmd.Dir = os.TempDir()
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"} // independent of this process's environment
	cmd.Stdout, cmd.Stderr = said, said
	if s.process, err = host.StartProcess(cmd, host.WhenOrphanedKill); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, host.StartBound, fmt.Errorf("%s does not say within %v where it listens", program, host.StartBound))
	defer cancel()
	select {
	case <-said.Found:
	case <-s.process.Done:
		return fmt.Errorf("%s ended while it started: %v\n%s", program, s.process.Err, said)
	case <-ctx.Done():
		return fmt.Errorf("%w; it said:\n%s", context.Cause(ctx), said)
	}
	if err := s.behindProxy(ctx, said.Address); err != nil {
		return fmt.Errorf("%w; %s said:\n%s", err, program, said)
	}
	return nil
}

var listensAt = regexp.MustCompile(`running on (127\.0\.0\.1:\d+)\n`)
