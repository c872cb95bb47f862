// Package containers starts engines in containers for package emulators. It is a module of its own,
// so that only programs that import it depend on the library that starts containers. Importing it
// is enough:
//
//	import _ "github.com/tapestore/tapestore/containers"
//
// Neither this module nor the one that it requires has a released version yet, so a module outside
// this repository points both to a checkout:
//
//	go mod edit -replace github.com/tapestore/tapestore=CHECKOUT
//	go mod edit -replace github.com/tapestore/tapestore/containers=CHECKOUT/containers
//	go get github.com/tapestore/tapestore/containers@v0.0.0
//
// With the import, package emulators/postgres uses a container where this machine has no server of
// its own, or where EMULATORS=container or EMULATORS_POSTGRES=container asks for one. So does
// package emulators/spanner, with EMULATORS_SPANNER=container. Package emulators/bigtable uses one
// only where EMULATORS=container or EMULATORS_BIGTABLE=container asks for it.
//
// # Images
//
// Postgres uses the official image, or the one that EMULATORS_POSTGRES_IMAGE names. A custom image
// must handle PGDATA, POSTGRES_HOST_AUTH_METHOD, POSTGRES_INITDB_ARGS and a command that begins
// with postgres as the official one does.
//
// Bigtable uses the emulator in Google's SDK image, or the image that EMULATORS_BIGTABLE_IMAGE
// names, which must support the command gcloud beta emulators bigtable start --host-port=ADDRESS.
//
// Spanner uses Google's image of the emulator, or the image that EMULATORS_SPANNER_IMAGE names,
// which must have the program at the same path: ./emulator_main.
//
// An image that the engine already has is used as it is; only a missing image is pulled.
//
// Data is kept in memory and the server listens on a port of 127.0.0.1, so Docker must run on this
// machine. Commits do not wait for a disk, as with a private server.
//
// # Removal
//
// A container and its volumes are removed by the first of these mechanisms to reach it:
//
//   - Close;
//   - the reaper, when the process that started the container ends in any way, SIGKILL included.
//     The reaper is a second process of the same program, in a session of its own, which waits for
//     the end of its parent. It starts before main and before any test;
//   - the next start: every container has a label that names its process, and a sweep removes the
//     containers whose process is gone;
//   - the Docker engine, when the container ends by itself, for example with the machine.
//
// The reaper of testcontainers (Ryuk) is used in addition if its image is present, or if the
// engine's image has to be pulled anyway; otherwise it is disabled. TESTCONTAINERS_RYUK_DISABLED,
// if set, overrides this choice.
package containers

import (
	"context"
	"os"

	"github.com/tapestore/tapestore/emulators"
)

// init runs the reaper if the environment asks for it, and does not return then. Otherwise it
// registers the containers of the three engines with package emulators.
func init() {
	if owner := os.Getenv(reaperVariable); owner != "" {
		os.Exit(reap(owner))
	}
	emulators.RegisterContainer("postgres", func(ctx context.Context) (emulators.ContainerServer, error) {
		p, err := startPostgres(ctx)
		if err != nil {
			return nil, err
		}
		return p, nil
	})
	emulators.RegisterContainer("bigtable", func(ctx context.Context) (emulators.ContainerServer, error) {
		b, err := startBigtable(ctx)
		if err != nil {
			return nil, err
		}
		return b, nil
	})
	emulators.RegisterContainer("spanner", func(ctx context.Context) (emulators.ContainerServer, error) {
		s, err := startSpanner(ctx)
		if err != nil {
			return nil, err
		}
		return s, nil
	})
}
