package faultstest

import (
	"context"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/faultynetwork"
	"github.com/tapestore/tapestore/runstore"
)

var (
	_ conformance.Faults = (*faultynetwork.Link)(nil)
	_ conformance.Server = (*server)(nil)
)

// Harness makes stores behind a network, on servers of their own. Without flaws they pass the whole
// suite.
func Harness(f Flaws) conformance.Harness {
	start := func(t conformance.T) *server {
		s, err := newServer(t.Context())
		if err != nil {
			t.Fatalf("server: %v", err)
		}
		s.forgets = f.Forgets
		t.Cleanup(func() {
			if err := s.close(); err != nil {
				t.Errorf("server: %v", err)
			}
		})
		return s
	}
	instance := func(s *server) conformance.Instance {
		open := func(ctx context.Context, address string) (runstore.RunStore, error) {
			c := &client{flaws: f, server: s, address: address, local: s.store.Open()}
			var err error
			c.opened, err = c.local.Now(ctx)
			return c, err
		}
		near := func(ctx context.Context) (runstore.RunStore, error) { return open(ctx, s.address) }
		return conformance.Instance{
			Open:         near, // no OpenSkewed: handles read only the store's clock
			AdvanceClock: s.store.Advance,
			BlockWriters: func(conformance.T) (func(ctx context.Context, n int) error, func()) { return s.store.Stall() },
			Network: func(t conformance.T) conformance.Network {
				l, err := faultynetwork.New(t.Context(), s.address)
				if err != nil {
					t.Fatalf("link: %v", err)
				}
				t.Cleanup(func() { _ = l.Close() })
				return conformance.Network{
					Open:   func(ctx context.Context) (runstore.RunStore, error) { return open(ctx, l.Address()) },
					Faults: l,
				}
			},
		}
	}
	return conformance.Harness{
		New: func(t conformance.T) conformance.Instance { return instance(start(t)) },
		NewServed: func(t conformance.T) (conformance.Instance, conformance.Server) {
			s := start(t)
			return instance(s), s
		},
	}
}
