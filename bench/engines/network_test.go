package engines_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/tapestore/tapestore/bench/engines"
	"github.com/tapestore/tapestore/runstore"
)

// TestNetworks checks that a network to an engine counts requests, and that one to an emulator adds
// its delay.
func TestNetworks(t *testing.T) {
	for _, starter := range engines.Starters() {
		t.Run(starter.Name, func(t *testing.T) {
			target, err := starter.Start(t.Context())
			if err != nil && starter.Missing(err) && os.Getenv("CI") == "" {
				t.Skipf("not applicable: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ended(t, target.Close()) })
			store, err := target.NewStore(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ended(t, store.Drop()) })
			if store.Network == nil {
				if target.System.Emulated() {
					t.Error("an emulator without a network")
				}
				return
			}
			network, err := store.Network(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if network.Close != nil {
				t.Cleanup(func() { ended(t, network.Close()) })
			}
			handle, err := network.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ended(t, handle.Close()) })
			const reads = 10
			count := network.Requests
			if count == nil {
				count = func() int64 { return 0 }
			}
			before, began := count(), time.Now()
			for range reads {
				if _, err := handle.GetRun(t.Context(), "absent"); !errors.Is(err, runstore.ErrNotFound) {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); target.System.Emulated() && took < reads*4*time.Millisecond {
				t.Errorf("%d reads took %v", reads, took)
			}
			if sent := count() - before; network.Requests != nil && sent < reads {
				t.Errorf("%d reads sent %d requests", reads, sent)
			}
		})
	}
}

func ended(t *testing.T, err error) {
	if err != nil {
		t.Error(err)
	}
}
