package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines"
	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
)

// emulatorFiles returns an image that holds only the emulator, built from the same Go package as
// Google's.
func emulatorFiles(ctx context.Context) (_ *imageFiles, changes []string, err error) {
	dir, err := os.MkdirTemp("", "tapestore-test-image-")
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	files := &imageFiles{texts: map[string]string{}}
	for name, source := range map[string]string{
		"cbtemulator": "cloud.google.com/go/bigtable/cmd/emulator",
		"gcloud":      "./testdata/gcloud",
	} {
		file := filepath.Join(dir, name)
		build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", file, source)
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=") // not the environment of this test
		if out, err := build.CombinedOutput(); err != nil {
			return nil, nil, fmt.Errorf("%s: %w\n%s", build, err, out)
		}
		program, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		files.texts["/"+name] = string(program)
	}
	return files, []string{`ENV PATH=/`}, nil
}

// startEmulator starts the emulator in a container, for package emulators.
func startEmulator(t *testing.T) *bigtableemulator.Server {
	t.Helper()
	bigtableBuilt.need(t)
	t.Setenv("EMULATORS_BIGTABLE", emulators.TierContainer)
	server, err := bigtableemulator.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

func TestBigtableConformance(t *testing.T) {
	server := startEmulator(t)
	t.Log(server.Engine())
	if e := server.Engine(); e.Tier != emulators.TierContainer || e.Version != os.Getenv(bigtableImageVariable) {
		t.Fatalf("the emulator is %s", e)
	}
	if !strings.HasPrefix(server.Address(), loopback+":") {
		t.Errorf("the emulator is at %s, want %s only", server.Address(), loopback)
	}
	conformance.Run(t, engines.Bigtable(server, nil))
}

// TestBigtableImageThatIsNone checks that a container that is not an emulator is reported with its
// output, and removed.
func TestBigtableImageThatIsNone(t *testing.T) {
	provider := needImage(t)
	t.Setenv(bigtableImageVariable, os.Getenv(postgresImageVariable))
	before := ours(t, provider)
	_, err := startBigtable(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the container ended; it said") {
		t.Fatalf("got %v, want the container's end", err)
	}
	if after := ours(t, provider); after != before {
		t.Errorf("%d containers, before there were %d", after, before)
	}
}
