package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// interruptible returns a context of the command that the first SIGINT or SIGTERM ends. A second one kills
// the process, even at a prompt. The caller calls stop when the command has ended.
func interruptible(cmd *cobra.Command) (ctx context.Context, stop context.CancelFunc) {
	ctx, stop = signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// watchReaders makes a command end like an interrupted one, with its cleanup, when the reader of its output
// has gone. Without it, the Go runtime kills the process at the first write of that kind to standard output
// or standard error (SIGPIPE). It returns a context that such a write ends, with the error of the write as
// its cause.
//
// An ignored signal would be inherited by child processes; one that is delivered to a channel is not.
// Whether a signal comes from the output or from a connection is not known, so the context is not ended by
// the signal but by the write.
func watchReaders(ctx context.Context, root *cobra.Command) context.Context {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, end := context.WithCancelCause(ctx)
	watch := func(f *os.File, set func(io.Writer)) {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice == 0 { // a terminal has no reader
			set(&watched{f, end})
		}
	}
	watch(os.Stdout, root.SetOut)
	watch(os.Stderr, root.SetErr)
	return ctx
}

// watched is an output that reports when its reader has gone.
type watched struct {
	to   io.Writer
	gone context.CancelCauseFunc
}

// Write implements io.Writer.
func (w *watched) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("the reader of the output has gone: %w", err)
		w.gone(err)
	}
	return n, err
}
