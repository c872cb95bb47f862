package containers

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/testcontainers/testcontainers-go"

	"github.com/tapestore/tapestore/conformance"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
)

func TestMain(m *testing.M) {
	conformance.RunChild() // before the test starts anything that the child does not need
	runDoomed()
	code := m.Run()
	for _, end := range []func() error{postgresemulator.CloseShared, postgresBuilt.remove, bigtableBuilt.remove, spannerBuilt.remove} {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// docker returns the Docker engine, or skips the test if the machine has none.
func docker(t *testing.T) *testcontainers.DockerProvider {
	t.Helper()
	// A start would decide this first.
	if os.Getenv(postgresImageVariable) == "" {
		t.Setenv(postgresImageVariable, postgresImage)
	}
	ryukDecided.Do(func() { decideRyuk(t.Context(), os.Getenv(postgresImageVariable)) })
	provider, err := dockerEngine(t.Context())
	if err != nil {
		t.Skipf("not applicable: %v", err)
	}
	t.Cleanup(func() {
		if err := provider.Close(); err != nil {
			t.Error(err)
		}
	})
	return provider
}

// start starts a server in a container from the image under test.
func start(t *testing.T) *postgres {
	t.Helper()
	needImage(t)
	p, err := startPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// exists reports whether a container exists.
func exists(t *testing.T, provider *testcontainers.DockerProvider, id string) bool {
	t.Helper()
	containers, err := owned(context.WithoutCancel(t.Context()), provider.Client(), "")
	if err != nil {
		t.Fatal(err)
	}
	_, there := containers[id]
	return there
}
