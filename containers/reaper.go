package containers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/client"
)

const (
	// reaperVariable, set to an owner, makes a program run as the reaper of that owner's
	// containers.
	reaperVariable = "TAPESTORE_CONTAINERS_REAPER"
	// reaperReady is the line that a reaper prints once it is ready.
	reaperReady = "ready"
	// reaperGrace is how long the reaper waits for a container to appear whose creation was
	// requested just before the owner ended: 10 s.
	reaperGrace = 10 * time.Second
)

// reaper is a child process that removes the containers of this process after its end.
type reaper struct {
	mu   sync.Mutex
	cmd  *exec.Cmd
	pipe io.Writer // the reaper sees its end when this process ends
}

// theReaper is the reaper of this process. The first container starts it.
var theReaper reaper

// expect announces to the reaper a container that is about to be created.
func (k *reaper) expect(host, owner string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cmd == nil {
		if err := k.start(host, owner); err != nil {
			return fmt.Errorf("no reaper would remove the container of a killed process: %w", err)
		}
	}
	_, err := k.pipe.Write([]byte("+"))
	return err
}

// forget withdraws an announcement: the container is gone, or was never created.
func (k *reaper) forget() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.pipe.Write([]byte("-"))
	return err
}

// start runs this program again as a reaper and waits until it is ready.
func (k *reaper) start(host, owner string) (err error) {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(program)
	cmd.Dir = os.TempDir() // a directory that nothing tries to remove
	cmd.Env = append(os.Environ(), reaperVariable+"="+owner, client.EnvOverrideHost+"="+host)
	cmd.SysProcAttr = ownSession()
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	answer, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(answer).ReadString('\n')
		said <- line
		_ = cmd.Wait() // closes answer; the reaper prints nothing more
	}()
	select {
	case line := <-said:
		if strings.TrimSpace(line) == reaperReady {
			k.cmd, k.pipe = cmd, pipe
			return nil
		}
		err = fmt.Errorf("%s said %q and not %q", program, line, reaperReady)
	case <-time.After(removeBound):
		err = fmt.Errorf("%s did not answer within %v", program, removeBound)
	}
	_ = cmd.Process.Kill() // it may have ended already
	return err
}

// reap is the main function of the reaper: it waits for the end of its input, which ends with the
// owner, and removes the containers that the owner left.
func reap(owner string) (status int) {
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // these signals end the owner, and the reaper follows
	docker, err := client.New(client.FromEnv)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), removeBound)
		_, err = docker.Ping(ctx, client.PingOptions{})
		cancel()
	}
	if err != nil {
		fmt.Println("the Docker engine does not answer:", err)
		return 1
	}
	fmt.Println(reaperReady)
	left := 0
	input := bufio.NewReader(os.Stdin)
	for {
		b, err := input.ReadByte()
		if err != nil {
			break
		}
		switch b {
		case '+':
			left++
		case '-':
			left--
		}
	}
	if left == 0 {
		return 0
	}
	if removeOwned(docker, owner, left) != nil {
		return 1 // the next sweep removes them; the owner is gone, so no process can read an error
	}
	return 0
}

// removeOwned removes an owner's containers, including those that are still being created.
func removeOwned(docker client.APIClient, owner string, left int) error {
	ctx, cancel := context.WithTimeout(context.Background(), reaperGrace+removeBound)
	defer cancel()
	var failed error
	for until := time.Now().Add(reaperGrace); left > 0 && time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		containers, err := owned(ctx, docker, owner)
		failed = err
		for id := range containers {
			if err := remove(ctx, docker, id); err != nil {
				failed = errors.Join(failed, err)
				continue
			}
			left--
		}
	}
	return failed
}
