package containers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
)

const (
	// postgresImage is the official image, in its smallest variant.
	postgresImage         = "postgres:17-alpine"
	postgresImageVariable = "EMULATORS_POSTGRES_IMAGE"

	// postgresBound limits the start, without the pull, to 2 minutes. It matters only on a broken
	// machine, when the caller's ctx has no deadline.
	postgresBound = 2 * time.Minute
)

var postgresPort = network.MustParsePort("5432/tcp")

// postgresSettings are the settings of package emulators/postgres' private servers.
var postgresSettings = []string{
	"fsync=off",
	"full_page_writes=off",
	"synchronous_commit=on",
	"max_connections=500",
	"shared_buffers=64MB",
	"max_wal_size=256MB",
}

// postgres is a server in a container.
type postgres struct{ *running }

// startPostgres starts a server and waits until it answers a query.
func startPostgres(ctx context.Context) (*postgres, error) {
	image := cmp.Or(os.Getenv(postgresImageVariable), postgresImage)
	command := []string{"postgres"}
	for _, setting := range postgresSettings {
		command = append(command, "-c", setting)
	}
	r, err := run(ctx, testcontainers.ContainerRequest{
		Image: image,
		Cmd:   command,
		Env: map[string]string{
			"PGDATA":                    "/pgdata/data", // not the image's default, which is a volume on a disk
			"POSTGRES_HOST_AUTH_METHOD": "trust",
			"POSTGRES_INITDB_ARGS":      "--no-sync -E UTF8 --locale=C",
			"TZ":                        "UTC",
		},
		Tmpfs: map[string]string{"/pgdata": "rw"},
	}, postgresPort, 256<<20)
	if err != nil {
		return nil, fmt.Errorf("image %s (%s chooses another): %w", image, postgresImageVariable, err)
	}
	p := &postgres{r}
	if err := p.await(ctx, postgresBound, p.probe); err != nil {
		return nil, errors.Join(fmt.Errorf("image %s: %w", image, err), p.Close())
	}
	return p, nil
}

// URL returns the URL of the maintenance database.
func (p *postgres) URL() string {
	return (&url.URL{
		Scheme:   "postgres",
		User:     url.User("postgres"),
		Host:     net.JoinHostPort(loopback, p.port),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}).String()
}

// probe checks that a query answers. While the official image initializes its data, its temporary
// server does not listen on this port.
func (p *postgres) probe(ctx context.Context) error {
	c, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, "SELECT 1")
	return errors.Join(err, c.Close(ctx))
}
