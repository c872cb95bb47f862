package containers

import (
	"context"
	"os"
	"sync"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// ryukVariable disables Ryuk. testcontainers reads it once, when it first looks for the engine.
const ryukVariable = "TESTCONTAINERS_RYUK_DISABLED"

var ryukDecided sync.Once

// decideRyuk disables the reaper of testcontainers (Ryuk) unless its image is present or can be
// pulled. It tries the network only if the engine's image has to be pulled too, because a machine
// that has the engine's image may be offline.
func decideRyuk(ctx context.Context, engineImage string) {
	if os.Getenv(ryukVariable) != "" {
		return
	}
	docker, err := client.New(client.FromEnv)
	if err == nil {
		defer docker.Close()
		has := func(image string) bool {
			_, err := docker.ImageInspect(ctx, image)
			return err == nil
		}
		//lint:ignore SA1019 what replaced it is internal
		ryuk := testcontainers.ReaperDefaultImage
		if has(ryuk) {
			return
		}
		if !has(engineImage) && pull(ctx, docker, ryuk) == nil {
			return
		}
	}
	_ = os.Setenv(ryukVariable, "true") // a valid name and value
}

// pull fetches an image.
func pull(ctx context.Context, docker client.APIClient, image string) error {
	response, err := docker.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return err
	}
	defer response.Close()
	return response.Wait(ctx)
}
