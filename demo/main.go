package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:])) }

// roles are the roles in which the demo starts this program.
var roles = map[string]func(args []string) int{"bank": runBank, "worker": runWorker}

// minTTL is the shortest lease that leaves time for the heartbeats of a busy host.
const minTTL = 500 * time.Millisecond

// run returns the exit status.
func run(args []string) int {
	if len(args) > 0 && roles[args[0]] != nil {
		return roles[args[0]](args[1:])
	}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	ttl := flags.Duration("ttl", 2*time.Second, "how long a lease lasts without a heartbeat")
	limit := flags.Duration("timeout", time.Minute, "give up after this")
	binary := flags.String("tapestore", "", "the tapestore command; built from this module when empty")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if flags.NArg() > 0 || *ttl < minTTL {
		fmt.Fprintf(os.Stderr, "demo: want no arguments and a -ttl of %v or more\n", minTTL)
		return 2
	}
	// If the reader of the output is gone (SIGPIPE), the demo must still clean up.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE)
	defer stop()
	err := demo(ctx, os.Stdout, options{ttl: *ttl, limit: *limit, tapestore: *binary})
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "demo:", err)
	if ctx.Err() != nil {
		return 130
	}
	return 1
}

// options configures the demo.
type options struct {
	ttl        time.Duration
	limit      time.Duration
	tapestore  string
	ignoreKeys bool // the bank applies every call; tests verify that the checks detect it
}

// demo runs the script, prints it to out and returns an error if a check failed. When it returns,
// its processes and files are gone.
func demo(ctx context.Context, out io.Writer, opts options) (err error) {
	dir, err := os.MkdirTemp("", "tapestore-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if opts.tapestore == "" {
		fmt.Fprintln(out, "building cmd/tapestore …")
		opts.tapestore = filepath.Join(dir, "tapestore")
		if err := build(ctx, opts.tapestore); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, opts.limit, fmt.Errorf("not over after %v", opts.limit))
	defer cancel()
	s := newEnvironment(dir, opts, out)
	seen, err := s.play(ctx)
	s.close()
	if err != nil {
		// The cause of the end matters more than the call that noticed it.
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		return err
	}
	return seen.print(out)
}

// build builds the real command.
func build(ctx context.Context, target string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", target, "github.com/tapestore/tapestore/cmd/tapestore")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd, err, text)
	}
	return nil
}
