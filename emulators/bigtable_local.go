package emulators

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync"
)

// startLocal starts the emulator's program and the gate in front of it.
func (s *BigtableServer) startLocal(ctx context.Context, program string) (err error) {
	if s.engine.Version, err = cbtemulatorVersion(program); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	said := &bigtableOutput{found: make(chan struct{})}
	cmd := exec.Command(program, "-host", "127.0.0.1", "-port", "0")
	cmd.Dir = os.TempDir()
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"} // independent of this process's environment
	cmd.Stdout, cmd.Stderr = said, said
	if s.process, err = startProcess(cmd, whenOrphanedKill); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("%s does not say within %v where it listens", program, startBound))
	defer cancel()
	select {
	case <-said.found:
	case <-s.process.done:
		return fmt.Errorf("%s ended while it started: %v\n%s", program, s.process.err, said)
	case <-ctx.Done():
		return fmt.Errorf("%w; it said:\n%s", context.Cause(ctx), said)
	}
	if err := s.behindProxy(ctx, said.address); err != nil {
		return fmt.Errorf("%w; %s said:\n%s", err, program, said)
	}
	return nil
}

// bigtableOutput collects the emulator's output and finds its address in it.
type bigtableOutput struct {
	found   chan struct{} // closed when there is an address
	address string

	mu   sync.Mutex
	text bytes.Buffer
}

var bigtableListensAt = regexp.MustCompile(`running on (127\.0\.0\.1:\d+)\n`)

func (a *bigtableOutput) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	const most = 4096
	a.text.Write(p[:min(len(p), max(0, most-a.text.Len()))])
	if a.address == "" {
		if m := bigtableListensAt.FindSubmatch(a.text.Bytes()); m != nil {
			a.address = string(m[1])
			close(a.found)
		}
	}
	return len(p), nil
}

func (a *bigtableOutput) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text.String()
}
