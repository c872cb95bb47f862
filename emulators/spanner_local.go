package emulators

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
)

// startLocal runs the emulator's program and puts the proxy in front of it.
func (s *SpannerServer) startLocal(ctx context.Context, program string) error {
	if p := s.opts.AbortProbability; p != nil && (*p < 0 || *p > 100) {
		return fmt.Errorf("the option AbortProbability is %d; it is a percentage", *p)
	}
	s.program, s.engine.Version = program, spannerVersion(program)
	if err := s.run(ctx); err != nil {
		return err
	}
	return s.proxy.listen(ctx)
}

// run starts the program and connects the proxy to it. The caller holds life, or is
// alone.
func (s *SpannerServer) run(ctx context.Context) (err error) {
	said := &spannerOutput{found: make(chan struct{})}
	// Port 0, not one that was free a moment ago: the program shares a port that is
	// taken with whoever has it, and says nothing.
	args := []string{"--host_port=127.0.0.1:0", "--disable_query_null_filtered_index_check"}
	if p := s.opts.AbortProbability; p != nil {
		args = append(args, "--abort_current_transaction_probability="+strconv.Itoa(*p))
	}
	cmd := exec.Command(s.program, args...)
	cmd.Dir = os.TempDir()
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"} // it must not depend on its starter's
	for _, name := range []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Stdout, cmd.Stderr = said, said
	if s.process, err = startProcess(cmd, whenOrphanedKill); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("%s does not say within %v where it listens", s.program, startBound))
	defer cancel()
	select {
	case <-said.found:
	case <-s.process.done:
		return fmt.Errorf("%s ended while it started: %v\n%s", s.program, s.process.err, said)
	case <-ctx.Done():
		return fmt.Errorf("%w; it said:\n%s", context.Cause(ctx), said)
	}
	if err := s.connect(ctx, said.address); err != nil {
		return fmt.Errorf("%w; %s said:\n%s", err, s.program, said)
	}
	return nil
}

// Restart ends the emulator, also one that hangs or has ended by itself, and starts it
// again at the same Address. All that it held is lost: databases, sessions,
// transactions. It is for whoever is alone with the server; clients under way get
// UNAVAILABLE or NOT_FOUND, and must be made anew.
//
// Errors: ErrNotOwned when this process did not start the emulator. After another error
// the emulator is down, and Restart may be called again.
func (s *SpannerServer) Restart(ctx context.Context) error {
	s.lifeMu.Lock()
	defer s.lifeMu.Unlock()
	return s.restart(ctx)
}

// restart is Restart for who holds life.
func (s *SpannerServer) restart(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("emulators: spanner: restart: %w", err)
		}
	}()
	if s.program == "" {
		return fmt.Errorf("%w: it is a %s", ErrNotOwned, s.engine.Tier)
	}
	if s.stopped {
		return errors.New("the server is closed")
	}
	if s.process != nil {
		if err := s.process.kill(); err != nil {
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

// spannerOutput is what the emulator prints: among it the port that it was given.
type spannerOutput struct {
	found   chan struct{} // closed when there is an address
	address string

	mu   sync.Mutex
	text bytes.Buffer
}

var spannerListensAt = regexp.MustCompile(`Server address: (127\.0\.0\.1:\d+)\n`)

func (o *spannerOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	const most = 4096
	o.text.Write(p[:min(len(p), max(0, most-o.text.Len()))])
	if o.address == "" {
		if m := spannerListensAt.FindSubmatch(o.text.Bytes()); m != nil {
			o.address = string(m[1])
			close(o.found)
		}
	}
	return len(p), nil
}

func (o *spannerOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
