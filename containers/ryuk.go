package containers

import (
	"context"
	"os"
	"sync"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// ryukVariable is read once, by testcontainers, when it first looks for the engine.
const ryukVariable = "TESTCONTAINERS_RYUK_DISABLED"

var ryukDecided sync.Once

// decideRyuk turns the reaper of testcontainers off where it would only keep a
// container from starting. The network is asked for its image only if the engine's
// has to come from there too: who has that one may well be offline.
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
