package engines_test

import (
	"os"
	"testing"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/engines"
	"github.com/tapestore/tapestore/conformance/effort"
)

// TestSmoke runs every part on every engine at the smallest scale. It checks what the parts read
// back, and no speed.
func TestSmoke(t *testing.T) {
	for _, starter := range engines.Starters() {
		t.Run(starter.Name, func(t *testing.T) {
			switch name := starter.Name; {
			case effort.Full():
			case name == "alloydb":
				t.Skip("left to make test-full: the smoke run on AlloyDB, which measures what the one on Postgres does")
			case name == "spanner":
				t.Skip("left to make test-full: the smoke run on Spanner, whose parts are those of the other engines; TestNetworks starts it")
			}
			report, err := bench.Run(t.Context(), []bench.Starter{starter}, bench.Options{Scale: bench.Smoke()})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range report.Faults {
				t.Errorf("%s %s: %s", f.Part, f.System, f.Text)
			}
			if missing := report.Systems[0].Missing; missing != "" && os.Getenv("CI") == "" {
				t.Skipf("not applicable: %s", missing)
			} else if missing != "" {
				t.Fatal(missing)
			}
			for _, part := range bench.PartNames() {
				if !hasResult(report, part) {
					t.Errorf("part %s has no result and no note", part)
				}
			}
		})
	}
}

func hasResult(report bench.Report, part string) bool {
	for _, r := range report.Results {
		if r.Part == part && len(r.Metrics) > 0 {
			return true
		}
	}
	for _, n := range report.Notes {
		if n.Part == part {
			return true
		}
	}
	return false
}
