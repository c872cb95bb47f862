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
	// keeperVariable makes a program the keeper of an owner's containers.
	keeperVariable = "TAPESTORE_CONTAINERS_KEEPER"
	// keeperReady is what a keeper says when it is one.
	keeperReady = "keeping"
	// keeperGrace is how long a container may still appear that the engine was asked
	// for just before the owner ended.
	keeperGrace = 10 * time.Second
)

// keeper is the process that removes this one's containers after its end.
type keeper struct {
	mu   sync.Mutex
	cmd  *exec.Cmd
	pipe io.Writer // its end is this process's
}

// theKeeper is started with the first container.
var theKeeper keeper

// expect announces a container that is about to be made.
func (k *keeper) expect(host, owner string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cmd == nil {
		if err := k.start(host, owner); err != nil {
			return fmt.Errorf("nobody would remove the container of a killed process: %w", err)
		}
	}
	_, err := k.pipe.Write([]byte("+"))
	return err
}

// forget takes an announcement back: the container is gone, or was never made.
func (k *keeper) forget() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.pipe.Write([]byte("-"))
	return err
}

// start runs this program once more and waits until it keeps.
func (k *keeper) start(host, owner string) (err error) {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(program)
	cmd.Dir = os.TempDir() // not one that somebody wants to remove
	cmd.Env = append(os.Environ(), keeperVariable+"="+owner, client.EnvOverrideHost+"="+host)
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
		_ = cmd.Wait() // closes answer; the keeper says nothing more
	}()
	select {
	case line := <-said:
		if strings.TrimSpace(line) == keeperReady {
			k.cmd, k.pipe = cmd, pipe
			return nil
		}
		err = fmt.Errorf("%s said %q and not %q", program, line, keeperReady)
	case <-time.After(removeBound):
		err = fmt.Errorf("%s did not answer within %v", program, removeBound)
	}
	_ = cmd.Process.Kill() // or it has ended
	return err
}

// keep is the keeper: it waits for the end of its input, which is that of its
// owner, and removes what the owner left.
func keep(owner string) (status int) {
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // they are for the owner; we follow it
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
	fmt.Println(keeperReady)
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
		return 1 // and leave it to the next sweep: there is nobody to tell
	}
	return 0
}

// removeOwned removes an owner's containers, also those that are still being made.
func removeOwned(docker client.APIClient, owner string, left int) error {
	ctx, cancel := context.WithTimeout(context.Background(), keeperGrace+removeBound)
	defer cancel()
	var failed error
	for until := time.Now().Add(keeperGrace); left > 0 && time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
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
