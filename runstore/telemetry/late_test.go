package telemetry_test

import (
	"os"
	"os/exec"
	"testing"

	"go.opentelemetry.io/otel"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/telemetry"
)

// An SDK may be installed after the store was wrapped. The providers are global, so the test runs in
// a process of its own.
func TestLateSDK(t *testing.T) {
	if os.Getenv("TAPESTORE_TEST_LATE") == "" {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestLateSDK$")
		cmd.Env = append(os.Environ(), "TAPESTORE_TEST_LATE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	s := telemetry.Wrap(memory.New(nil).Open(), "memory", nil)
	create := func(id runstore.RunID) {
		if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	create("before")
	c := newCollected()
	otel.SetMeterProvider(c.opts.MeterProvider)
	otel.SetTracerProvider(c.opts.TracerProvider)
	create("after")
	expect(t, c.values(t), map[string]string{"tapestore.store.operation.duration{engine=memory,operation=create_run,outcome=ok}": "1×"})
	if n := len(c.spans.GetSpans()); n != 1 {
		t.Errorf("%d spans, want one", n)
	}
}
