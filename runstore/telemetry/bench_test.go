package telemetry_test

import (
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/localclock"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/telemetry"
)

var localClock localclock.Clock

// BenchmarkCommit measures a fenced commit of one event to the memory store: as it is, wrapped
// without an SDK, and wrapped with metrics collected.
func BenchmarkCommit(b *testing.B) {
	for _, c := range []struct {
		name string
		wrap func(runstore.RunStore) runstore.RunStore
	}{
		{"bare", func(s runstore.RunStore) runstore.RunStore { return s }},
		{"wrapped", func(s runstore.RunStore) runstore.RunStore { return telemetry.Wrap(s, "memory", nil) }},
		{"metrics", func(s runstore.RunStore) runstore.RunStore {
			return telemetry.Wrap(s, "memory", &telemetry.Options{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))})
		}},
	} {
		for _, op := range []string{"commit", "get"} {
			b.Run(op+"/"+c.name, func(b *testing.B) {
				s := c.wrap(memory.New(nil).Open())
				lease := spec("a")
				created, err := s.CreateRun(b.Context(), runstore.RunSpec{ID: "r", Lease: &lease})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if op == "get" {
						_, err = s.GetRun(b.Context(), "r")
					} else {
						batch := runstore.NewBatch("r", created.Lease.Fence())
						batch.Put("k", nil)
						_, err = s.Commit(b.Context(), batch)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
