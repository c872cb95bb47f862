// Package containers starts engines in containers for package emulators. It is a
// module of its own, so that only programs which import it carry the library that
// starts containers. Importing it is enough:
//
//	import _ "github.com/tapestore/tapestore/containers"
//
// Neither this module nor the one that it requires has a released version yet, so a module
// outside this repository leads both to a checkout:
//
//	go mod edit -replace github.com/tapestore/tapestore=CHECKOUT
//	go mod edit -replace github.com/tapestore/tapestore/containers=CHECKOUT/containers
//	go get github.com/tapestore/tapestore/containers@v0.0.0
//
// From then on emulators.Postgres takes a container where this machine has no
// server of its own, or where EMULATORS=container or EMULATORS_POSTGRES=container
// asks for one; so does emulators.Spanner, with EMULATORS_SPANNER=container; and
// emulators.Bigtable where EMULATORS=container or EMULATORS_BIGTABLE=container does.
//
// # Images
//
// Postgres is the official image, or the one that EMULATORS_POSTGRES_IMAGE names.
// An image that the engine has is used as it is; only one that is missing is
// pulled. An image of one's own must do what the official one does with PGDATA,
// POSTGRES_HOST_AUTH_METHOD, POSTGRES_INITDB_ARGS and a command that begins with
// postgres.
//
// Bigtable is the emulator in Google's image of its SDK, or in the one that
// EMULATORS_BIGTABLE_IMAGE names, which must do what that one does with the command
// gcloud beta emulators bigtable start --host-port=ADDRESS.
//
// Spanner is Google's image of the emulator, or the one that EMULATORS_SPANNER_IMAGE
// names, which must have the program as that one does: ./emulator_main.
//
// The data is in memory and the server listens on a port of 127.0.0.1, so Docker
// must run on this machine. Commits do not wait for a disk, as with a private
// server.
//
// # Removal
//
// A container is removed, together with its volumes, by the first of these that
// comes to it:
//
//   - Close;
//   - the keeper, when the process that started the container ends in whatever way,
//     SIGKILL included: it is that program once more, in a session of its own, which
//     waits for its parent's end before main or any test begins;
//   - the next start: every container bears a label that names its process, and one
//     whose process is gone is swept;
//   - the Docker engine, when the container ends by itself, as with the machine.
//
// The reaper of testcontainers (Ryuk) is used besides when its image is there, or
// comes along when the engine's image has to be pulled anyway; otherwise it is
// turned off. TESTCONTAINERS_RYUK_DISABLED, if set, decides instead.
package containers

import (
	"context"
	"os"

	"github.com/tapestore/tapestore/emulators"
)

func init() {
	if owner := os.Getenv(keeperVariable); owner != "" {
		os.Exit(keep(owner))
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
