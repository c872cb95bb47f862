package containers

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/doctor"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
)

// spannerFiles returns an image that holds only this machine's own emulator and the libraries that
// the loader maps for it.
func spannerFiles(ctx context.Context) (*imageFiles, []string, error) {
	for _, finding := range doctor.Run(ctx) {
		if finding.Engine != "spanner" || finding.Tier != emulators.TierLocal {
			continue
		}
		if !finding.Found {
			return nil, nil, fmt.Errorf("%w: no emulator to make an image of: %s", emulators.ErrMissing, finding)
		}
		libraries, err := dynamicLibraries(ctx, finding.Where)
		if err != nil {
			return nil, nil, err
		}
		program, err := os.ReadFile(finding.Where)
		if err != nil {
			return nil, nil, err
		}
		// Without the service's time zone the emulator ends at the first statement.
		files := &imageFiles{texts: map[string]string{"/emulator_main": string(program)}, from: append(libraries, "/usr/share/zoneinfo/America/Los_Angeles")}
		return files, []string{`WORKDIR /`}, nil
	}
	return nil, nil, emulators.ErrMissing
}

func TestSpannerContainer(t *testing.T) {
	spannerBuilt.need(t)
	t.Setenv("EMULATORS_SPANNER", emulators.TierContainer)
	server, err := spanneremulator.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	t.Log(server.Engine())
	if e := server.Engine(); e.Tier != emulators.TierContainer || e.Version != os.Getenv(spannerImageVariable) {
		t.Fatalf("the emulator is %s", e)
	}
	if !strings.HasPrefix(server.Address(), loopback+":") {
		t.Errorf("the emulator is at %s, want %s only", server.Address(), loopback)
	}
	db, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Drop(t.Context(), db); err != nil {
		t.Error(err)
	}
	zero := 0
	if _, err := spanneremulator.Start(t.Context(), &spanneremulator.Options{AbortProbability: &zero}); err == nil {
		t.Error("an emulator in a container takes a probability that it cannot be told")
	}
}

// TestSpannerConformance runs some cases of each kind: all of them take Spanner's emulator minutes,
// and package runstore/spanner runs them on the same program. An emulator in a container takes no
// AbortProbability; its default is sufficient for the cases of fencing too.
func TestSpannerConformance(t *testing.T) {
	spannerBuilt.need(t)
	t.Setenv("EMULATORS_SPANNER", emulators.TierContainer)
	server, err := spanneremulator.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	some := regexp.MustCompile("^(I1/run-shows|I2/tokens|I3/(token-alone|write-in-flight-at-a-preempt)|I4/a-batch|I7/expiry-is-the-store-clock|I12/ttl)")
	report := conformance.Execute(t.Context(), engines.Spanner(server, server, nil), some)
	if report.Tier != emulators.TierContainer || report.Summary.Failed > 0 || report.Summary.Passed < 5 {
		t.Errorf("got %+v", report)
	}
	t.Logf("%+v", report.Summary)
}

// TestSpannerImageThatIsNone checks that a container that is not an emulator is reported with its
// output, and removed.
func TestSpannerImageThatIsNone(t *testing.T) {
	provider := needImage(t)
	t.Setenv(spannerImageVariable, os.Getenv(postgresImageVariable))
	before := ours(t, provider)
	if _, err := startSpanner(t.Context()); err == nil {
		t.Fatal("a server of PostgreSQL passes for an emulator of Spanner")
	}
	if after := ours(t, provider); after != before {
		t.Errorf("%d containers, before there were %d", after, before)
	}
}
