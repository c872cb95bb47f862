package containers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// loopback is the only address at which ports are published, because the servers trust every
// client.
const loopback = "127.0.0.1"

// dockerEngine finds the Docker engine and checks that it answers.
func dockerEngine(ctx context.Context) (*testcontainers.DockerProvider, error) {
	provider, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(log.New(io.Discard, "", 0)))
	if err == nil {
		err = provider.Health(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("the Docker engine does not answer: %w", err)
	}
	return provider, nil
}

// running is a container that this process started.
type running struct {
	image  string
	port   string // on loopback
	output *output

	docker    client.APIClient
	container testcontainers.Container
	unsure    bool // the container may not exist: the start was abandoned before the reply
	closing   sync.Once
	closed    error
}

// run starts a container that publishes one port. Every container that run returns is covered by
// the reaper.
func run(ctx context.Context, req testcontainers.ContainerRequest, port network.Port, shared int64) (_ *running, err error) {
	ryukDecided.Do(func() { decideRyuk(ctx, req.Image) })
	provider, err := dockerEngine(ctx)
	if err != nil {
		return nil, err
	}
	r := &running{image: req.Image, docker: provider.Client(), output: newOutput()}
	if err := sweep(ctx, r.docker); err != nil {
		return nil, fmt.Errorf("sweep containers of processes that are gone: %w", err)
	}
	owner, err := thisProcess()
	if err != nil {
		return nil, err
	}
	if err := theReaper.expect(r.docker.DaemonHost(), owner); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	req.Labels = map[string]string{ownerLabel: owner}
	req.ExposedPorts = []string{port.String()}
	req.HostConfigModifier = func(c *container.HostConfig) {
		c.AutoRemove = true
		c.ShmSize = shared
		c.PortBindings = network.PortMap{port: {{HostIP: netip.MustParseAddr(loopback)}}}
	}
	req.LifecycleHooks = []testcontainers.ContainerLifecycleHooks{{
		PostCreates: []testcontainers.ContainerHook{r.attach}, // before the container can print anything
	}}
	if r.container, err = provider.CreateContainer(ctx, req); err != nil {
		r.unsure = r.container == nil && ctx.Err() != nil
		return nil, err
	}
	if err := r.container.Start(ctx); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	mapped, err := r.container.MappedPort(ctx, port.String())
	if err != nil {
		return nil, errors.Join(err, r.ended())
	}
	r.port = mapped.Port()
	return r, nil
}

// attach reads the container's output, because its logs are removed with it.
func (r *running) attach(ctx context.Context, c testcontainers.Container) error {
	stream, err := r.docker.ContainerAttach(ctx, c.GetContainerID(), client.ContainerAttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	go func() {
		defer stream.Close()
		r.output.read(stream.Reader)
	}()
	return nil
}

// await waits until the engine answers a probe. The bound only limits the wait on a broken machine
// when the caller's ctx has no deadline.
func (r *running) await(ctx context.Context, bound time.Duration, probe func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound,
		fmt.Errorf("no answer at %s:%s within %v (Docker must run on this machine)", loopback, r.port, bound))
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		once, done := context.WithTimeout(ctx, 5*time.Second)
		err := probe(once)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-r.output.done:
			return r.ended()
		case <-ctx.Done():
			return fmt.Errorf("%w (last: %w); the container said:\n%s", context.Cause(ctx), err, r.output)
		case <-ticker.C:
		}
	}
}

// ended returns an error with the container's last output if the container has ended, else nil.
func (r *running) ended() error {
	select {
	case <-r.output.done:
		return fmt.Errorf("the container ended; it said:\n%s", r.output)
	default:
		return nil
	}
}

// Image returns the image that the container was made from.
func (r *running) Image() string { return r.image }

// Close ends and removes the container. Further calls do nothing.
func (r *running) Close() error {
	r.closing.Do(func() {
		if r.container != nil {
			// Terminate would wait for a clean shutdown, but the data is not needed.
			if r.closed = remove(context.Background(), r.docker, r.container.GetContainerID()); r.closed != nil {
				return // the reaper still counts the container
			}
		}
		if !r.unsure {
			r.closed = theReaper.forget()
		}
	})
	return r.closed
}
