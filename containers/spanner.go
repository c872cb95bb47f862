package containers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
)

const (
	// spannerImage is Google's image with the emulator alone. Its version is fixed: later ones have
	// lost writes of multiplexed sessions without an error.
	spannerImage         = "gcr.io/cloud-spanner-emulator/emulator:1.5.28"
	spannerImageVariable = "EMULATORS_SPANNER_IMAGE"

	// spannerBound limits the start, without the pull, to 1 minute.
	spannerBound = time.Minute
)

var spannerPort = network.MustParsePort("9010/tcp")

// spanner is an emulator in a container.
type spanner struct{ *running }

// startSpanner starts an emulator and waits until it answers an RPC.
func startSpanner(ctx context.Context) (*spanner, error) {
	image := cmp.Or(os.Getenv(spannerImageVariable), spannerImage)
	r, err := run(ctx, testcontainers.ContainerRequest{
		Image: image,
		// The image's own entrypoint puts a REST gateway in front, and passes no flags to the
		// emulator.
		Entrypoint: []string{"./emulator_main"},
		Cmd:        []string{"--host_port=0.0.0.0:" + spannerPort.Port(), "--disable_query_null_filtered_index_check"},
	}, spannerPort, 0)
	if err != nil {
		return nil, fmt.Errorf("image %s (%s chooses another): %w", image, spannerImageVariable, err)
	}
	s := &spanner{r}
	if err := s.await(ctx, spannerBound, s.probe); err != nil {
		return nil, errors.Join(fmt.Errorf("image %s: %w", image, err), s.Close())
	}
	return s, nil
}

// URL returns the emulator's host and port.
func (s *spanner) URL() string { return net.JoinHostPort(loopback, s.port) }

func (s *spanner) probe(ctx context.Context) error {
	server, err := spanneremulator.At(ctx, s.URL())
	if err != nil {
		return err
	}
	return server.Close()
}
