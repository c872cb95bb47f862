package tapeserver_test

import (
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// countUnfenced serves a store and returns a client, and the metric of its drivers' writes without a fence.
func countUnfenced(t *testing.T, store *memory.Store, mode tape.FenceMode) (c tapepb.TapeClient, writes func() int64) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	c, _ = start(t, store.Open(), &tapeserver.Options{
		Fence: mode, Logger: quietly, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
	})
	return c, func() int64 { return series(t, reader)["tapestore.server.unfenced.writes{}"] }
}

// TestOnlyUnfencedWritesOfDriversAreCounted checks that the metric counts each write that needs a driver's
// authority and was made without a fence: none that needs no authority, and none that was refused.
func TestOnlyUnfencedWritesOfDriversAreCounted(t *testing.T) {
	t.Parallel()
	for _, mode := range []tape.FenceMode{tape.FencePresented, tape.FenceRequired, tape.FenceConnection} {
		for _, w := range calls {
			t.Run(mode.String()+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				store := memory.New(nil)
				free, _ := start(t, store.Open(), &tapeserver.Options{Logger: quietly})
				r := prepare(t, free)
				c, writes := countUnfenced(t, store, mode)
				err := w.do(t.Context(), c, r.GetRunId(), nil)
				want := int64(0)
				if mode == tape.FencePresented && !w.free() {
					want = 1
				}
				if got := writes(); got != want {
					t.Errorf("%d writes without a fence, want %d; the call returned %v", got, want, err)
				}
			})
		}
	}
}

func TestWritesThatNeedNoFenceAreNotCounted(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	c, writes := countUnfenced(t, store, tape.FencePresented)
	id := prepare(t, c).GetRunId()
	before := writes()
	if _, err := c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "outbox", Status: confirmed}); err != nil {
		t.Errorf("a dispatcher's CompleteEffect: %v", err)
	}
	_, err := c.CompleteEffect(t.Context(), &tapepb.CompleteEffectRequest{RunId: id, IdempotencyKey: "none"})
	wantStatus(t, "CompleteEffect of no effect", err, codes.FailedPrecondition, "before begin_effect")
	_, err = c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: "none"})
	wantStatus(t, "RecordDecision of no run", err, codes.NotFound, "no such run")
	if _, err := c.EndRun(t.Context(), &tapepb.EndRunRequest{RunId: id, Status: tapepb.RunStatus_RUN_STATUS_CANCELLED}); err != nil {
		t.Errorf("an operator's EndRun: %v", err)
	}
	if got := writes() - before; got != 0 {
		t.Errorf("%d writes of drivers without a fence, want none", got)
	}
}
