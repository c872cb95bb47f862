package bench_test

import (
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

func TestProtocolReportsWhatAStoreLoses(t *testing.T) {
	t.Parallel()
	report := run(t, "protocol", func(s runstore.RunStore) runstore.RunStore { return s })
	const want = 19
	if len(report.Faults) > 0 || len(report.Results) != want {
		t.Errorf("%d results, want %d; faults: %s", len(report.Results), want, faults(report))
	}
	for _, r := range report.Results {
		if m, ok := r.Metric("store calls per RPC"); r.Group == "RPCs" && (!ok || m.Value() <= 0) {
			t.Errorf("%s: store calls per RPC: %v", r.Side, m.Samples)
		}
	}
	report = run(t, "protocol", func(s runstore.RunStore) runstore.RunStore { return lossy{RunStore: s, journal: true} })
	if !strings.Contains(faults(report), "RecordDecision, 1 clients: reading back: entry 2 of run") {
		t.Errorf("faults: %s", faults(report))
	}
}
