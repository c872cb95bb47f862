package host

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
)

// Process is a program that this process started and that ends with it.
type Process struct {
	Cmd *exec.Cmd
	// Done is closed when the process has ended and was waited for; Err is then its exit error.
	Done chan struct{}
	Err  error

	watch *DeathWatch
}

// StartProcess starts cmd in a new process group, so that a Ctrl-C for this process does not reach
// cmd. When this process ends, even if it is killed, cmd receives signal.
func StartProcess(cmd *exec.Cmd, signal ParentDeathSignal) (*Process, error) {
	p := &Process{Cmd: cmd, Done: make(chan struct{})}
	ownGroup(cmd)
	signal.atStart(cmd)
	started := make(chan error)
	go func() {
		// Linux ties the signal to the thread that forked, not to the process: the
		// thread must live, and do nothing else, until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.Err = cmd.Wait()
			close(p.Done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	watch, err := signal.afterStart(cmd.Process.Pid)
	if err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	p.watch = watch
	return p, nil
}

// Ended reports whether the process is gone.
func (p *Process) Ended() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// Signal sends a signal, and returns nil if the process has ended already.
func (p *Process) Signal(s os.Signal) error {
	if err := p.Cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill ends the process at once and waits for its end.
func (p *Process) Kill() error {
	if err := p.Cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.Done
	p.Release()
	return nil
}

// Release ends what watches the process for this process's end. It must be called when the process
// has ended; Kill does so.
func (p *Process) Release() { p.watch.Stop() }
