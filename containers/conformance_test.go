package containers

import (
	"context"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
)

func TestConformance(t *testing.T) {
	needImage(t)
	t.Setenv("EMULATORS_POSTGRES", emulators.TierContainer)
	server, err := postgresemulator.Shared(context.WithoutCancel(t.Context())) // the server lives as long as the process
	if err != nil {
		t.Fatal(err)
	}
	t.Log(server.Engine())
	if server.Engine().Tier != emulators.TierContainer {
		t.Fatalf("the server is a %s", server.Engine().Tier)
	}
	if !strings.HasPrefix(server.Address(), loopback+":") {
		t.Errorf("the server is at %s, want %s only", server.Address(), loopback)
	}
	conformance.Run(t, engines.Postgres(server, nil))
}
