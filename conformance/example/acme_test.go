package acme_test

import (
	"context"
	"testing"

	"example.com/acme"
	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/runstore"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Harness{New: func(conformance.T) conformance.Instance {
		server := acme.NewServer() // empty, for this case only
		return conformance.Instance{
			Open:         func(ctx context.Context) (runstore.RunStore, error) { return acme.Open(ctx, server) },
			AdvanceClock: server.Advance,
		}
	}})
}
