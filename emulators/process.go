package emulators

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
)

// process is a program that this process started and that ends with it.
type process struct {
	cmd   *exec.Cmd
	watch *deathWatch
	// done is closed when the process has ended and was waited for; err is then its exit error.
	done chan struct{}
	err  error
}

// startProcess starts cmd in a process group of its own, so that a Ctrl-C for this process does not
// reach it. It arranges that signal reaches the program when this process ends in whatever way.
func startProcess(cmd *exec.Cmd, signal parentDeathSignal) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
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
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	watch, err := signal.afterStart(cmd.Process.Pid)
	if err != nil {
		return nil, errors.Join(err, p.kill())
	}
	p.watch = watch
	return p, nil
}

// ended reports whether the process is gone.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal sends a signal, and returns nil if the process has ended already.
func (p *process) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// kill ends the process at once and waits for its end.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	p.watch.stop()
	return nil
}
