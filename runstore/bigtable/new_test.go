package bigtable_test

import (
	"context"
	"errors"
	"testing"

	client "cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/conformance"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// callersClient makes a client as a program makes its own, over a connection to the emulator.
func callersClient(t testing.TB, table bigtableemulator.TableName) *client.Client {
	t.Helper()
	config := client.ClientConfig{MetricsProvider: client.NoopMetricsProvider{}, DisableDynamicChannelPool: true, DisableConnectionRecycler: true,
		DisableDirectAccess: true, DisableSession: true}
	c, err := client.NewClientWithConfig(context.WithoutCancel(t.Context()), table.Project, table.Instance, config, rawOptions(t)...)
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func optionsOf(t testing.TB, table bigtableemulator.TableName) *bigtable.Options {
	return &bigtable.Options{Project: table.Project, Instance: table.Instance, Table: table.Table, Emulator: server(t).Address(), RetryTimeout: hang}
}

func TestConformanceOverACallersClient(t *testing.T) {
	s := server(t)
	shared := callersClient(t, s.NewTable())
	conformance.RunCases(t, conformance.Harness{Tier: "emulator", New: func(t conformance.T) conformance.Instance {
		table := s.NewTable()
		t.Cleanup(func() {
			if err := s.Drop(context.Background(), table); err != nil {
				t.Errorf("%v", err)
			}
		})
		return conformance.Instance{Open: func(ctx context.Context) (runstore.RunStore, error) {
			return bigtable.New(ctx, shared, &bigtable.Options{
				Project: table.Project, Instance: table.Instance, Table: table.Table, Emulator: s.Address(), RetryTimeout: hang,
			})
		}}
	}},
		"I3/zombie-whole-batch-is-refused",
		"I4/a-batch-applies-whole",
		"I8/a-repeat-gets-the-first-result",
		"I10/a-tailing-reader-misses-nothing",
		"I11/a-closed-store-answers-nothing-else",
	)
}

// The client stays the caller's.
func TestNewLeavesTheClientOpen(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	if _, err := bigtable.New(t.Context(), nil, optionsOf(t, table)); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("no client: %v, want ErrInvalid", err)
	}
	c := callersClient(t, table)
	for range 2 {
		s, err := bigtable.New(t.Context(), c, optionsOf(t, table))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.GetRun(t.Context(), "run"); !errors.Is(err, runstore.ErrNotFound) {
			t.Errorf("get run: %v, want ErrNotFound", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
