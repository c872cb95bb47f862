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

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
)

const (
	// bigtableImage is Google's image with the emulators of its SDK.
	bigtableImage         = "gcr.io/google.com/cloudsdktool/google-cloud-cli:emulators"
	bigtableImageVariable = "EMULATORS_BIGTABLE_IMAGE"

	// bigtableBound limits the start, without the pull, to 2 minutes: gcloud starts slowly.
	bigtableBound = 2 * time.Minute
)

var bigtablePort = network.MustParsePort("8086/tcp")

// bigtable is an emulator in a container.
type bigtable struct{ *running }

// startBigtable starts an emulator and waits until it answers an RPC.
func startBigtable(ctx context.Context) (*bigtable, error) {
	image := cmp.Or(os.Getenv(bigtableImageVariable), bigtableImage)
	r, err := run(ctx, testcontainers.ContainerRequest{
		Image: image,
		Cmd:   []string{"gcloud", "beta", "emulators", "bigtable", "start", "--host-port=0.0.0.0:" + bigtablePort.Port()},
	}, bigtablePort, 0)
	if err != nil {
		return nil, fmt.Errorf("image %s (%s chooses another): %w", image, bigtableImageVariable, err)
	}
	b := &bigtable{r}
	if err := b.await(ctx, bigtableBound, b.probe); err != nil {
		return nil, errors.Join(fmt.Errorf("image %s: %w", image, err), b.Close())
	}
	return b, nil
}

// URL returns the emulator's host and port.
func (b *bigtable) URL() string { return net.JoinHostPort(loopback, b.port) }

func (b *bigtable) probe(ctx context.Context) error {
	s, err := bigtableemulator.At(ctx, b.URL())
	if err != nil {
		return err
	}
	return s.Close()
}
