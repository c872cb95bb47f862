package emulators

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSpannerTier(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:9010"
	program := filepath.Join(t.TempDir(), "my emulator")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		variables   map[string]string
		wanted      string // by the options
		tier, fails string
	}{
		{map[string]string{"EMULATORS_SPANNER_BIN": program}, "", TierLocal, ""},
		{map[string]string{"SPANNER_EMULATOR_HOST": address, "EMULATORS_SPANNER_BIN": program}, "", TierService, ""},
		{map[string]string{"SPANNER_EMULATOR_HOST": address, "EMULATORS_SPANNER_BIN": program, "EMULATORS": "local"}, "", TierLocal, ""},
		{map[string]string{"SPANNER_EMULATOR_HOST": address, "EMULATORS": "local"}, TierService, TierService, ""},
		{map[string]string{"EMULATORS": "container", "EMULATORS_SPANNER": "local", "EMULATORS_SPANNER_BIN": program}, "", TierLocal, ""},
		{map[string]string{"EMULATORS_SPANNER_BIN": program + "s"}, "", "", "that is no program"},
		{map[string]string{"EMULATORS": "service"}, "", "", "EMULATORS=service, but SPANNER_EMULATOR_HOST"},
		{map[string]string{"EMULATORS_SPANNER": "local"}, "", "", "EMULATORS_SPANNER=local, but engine not found: no emulator_main"},
		{map[string]string{"EMULATORS_SPANNER": "container", "EMULATORS_SPANNER_BIN": program}, "", "", `RegisterContainer("spanner"`},
		{map[string]string{"EMULATORS_SPANNER": "emulator"}, "", "", `EMULATORS_SPANNER="emulator" is not a tier of spanner; it can be local, container or service`},
		{nil, "docker", "", `the option Tier="docker" is not a tier of spanner`},
	} {
		tier, how, err := aMachine(c.variables).spannerTier(t.Context(), c.wanted)
		switch {
		case c.fails != "":
			if !contains(err, c.fails) || errors.Is(err, ErrMissing) {
				t.Errorf("%v: got error %v, want %q and not ErrMissing", c.variables, err, c.fails)
			}
		case err != nil || tier != c.tier:
			t.Errorf("%v: got %s, %v; want %s", c.variables, tier, err, c.tier)
		case tier == TierService && how.address != address, tier == TierLocal && how.program != program:
			t.Errorf("%v: got %+v", c.variables, how)
		}
	}
	_, err := spannerOn(t.Context(), aMachine(nil), nil)
	if !errors.Is(err, ErrMissing) || !contains(err, installSpanner) || !contains(err, "SPANNER_EMULATOR_HOST") {
		t.Errorf("a bare machine: %v, want ErrMissing and what to do", err)
	}
}

// Not parallel: a program that was just written cannot be run while another test
// forks.
func TestWhereTheSpannerEmulatorIsFound(t *testing.T) {
	root := t.TempDir()
	onPath := programs(t, filepath.Join(root, "path"), spannerProgram)
	below := filepath.Join(root, "below")
	belowPath := programs(t, filepath.Join(below, spannerComponent), spannerProgram)
	// An SDK whose gcloud is a link, as the packages make it.
	sdk := filepath.Join(root, "sdk")
	programs(t, filepath.Join(sdk, "platform", "bigtable-emulator"), cbtemulator)
	inSDK := programs(t, filepath.Join(sdk, "bin", spannerComponent), spannerProgram)
	links := filepath.Join(root, "links")
	gcloud := filepath.Join(programs(t, filepath.Join(sdk, "bin"), "gcloud"), "gcloud")
	if err := errors.Join(os.MkdirAll(links, 0o755), os.Symlink(gcloud, filepath.Join(links, "gcloud"))); err != nil {
		t.Fatal(err)
	}
	asked := filepath.Join(root, "asked")
	byGcloud := programs(t, filepath.Join(asked, "bin", spannerComponent), spannerProgram)
	wrapper := programs(t, filepath.Join(root, "wrapper"), "gcloud")
	writeScript(t, wrapper, "gcloud", "echo "+asked)
	packaged := programs(t, filepath.Join(root, "lib", spannerComponent), spannerProgram)
	named := filepath.Join(programs(t, filepath.Join(root, "named"), "other"), "other")
	for _, c := range []struct {
		name      string
		variables map[string]string
		want      string
	}{
		{"named program", map[string]string{"EMULATORS_SPANNER_BIN": named, "PATH": onPath}, named},
		{"search path", map[string]string{"PATH": links + string(os.PathListSeparator) + onPath}, filepath.Join(onPath, spannerProgram)},
		{"below the search path", map[string]string{"PATH": below}, filepath.Join(belowPath, spannerProgram)},
		{"beside gcloud", map[string]string{"PATH": links}, filepath.Join(inSDK, spannerProgram)},
		{"where gcloud says", map[string]string{"PATH": wrapper}, filepath.Join(byGcloud, spannerProgram)},
		{"package", nil, filepath.Join(packaged, spannerProgram)},
	} {
		m := aMachine(c.variables)
		m.globs[engineSpanner] = []string{packaged}
		if got, err := m.findSpanner(t.Context()); got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	_, err := aMachine(map[string]string{"PATH": "/nowhere"}).findSpanner(t.Context())
	for _, part := range []string{"EMULATORS_SPANNER_BIN", "/nowhere", "gcloud (not on PATH)"} {
		if !contains(err, part) || !errors.Is(err, ErrMissing) {
			t.Errorf("a bare machine: %v, want ErrMissing with %q", err, part)
		}
	}
	// What the SDK says of the program.
	if got := spannerVersion(filepath.Join(inSDK, spannerProgram)); got != spannerUnknownVersion {
		t.Errorf("an SDK that tells nothing has %q", got)
	}
	installed := filepath.Join(sdk, ".install")
	const snapshot = `{"components": [{"id": "core", "version": {"version_string": "9"}},
		{"id": "cloud-spanner-emulator-linux-x86_64", "version": {"version_string": "1.6.7"}}]}`
	if err := errors.Join(os.Mkdir(installed, 0o755),
		os.WriteFile(filepath.Join(installed, "cloud-spanner-emulator-linux-arm.snapshot.json"), []byte("not JSON"), 0o644),
		os.WriteFile(filepath.Join(installed, "cloud-spanner-emulator-linux-x86_64.snapshot.json"), []byte(snapshot), 0o644)); err != nil {
		t.Fatal(err)
	}
	if got := spannerVersion(filepath.Join(inSDK, spannerProgram)); got != "emulator 1.6.7" {
		t.Errorf("got version %q, want that of the SDK", got)
	}
}

// Not parallel, as above. A program that is something else is told of with what it said.
func TestSpannerProgramThatIsNone(t *testing.T) {
	dir := programs(t, t.TempDir(), spannerProgram)
	writeScript(t, dir, spannerProgram, "echo out of order; exit 3")
	program := filepath.Join(dir, spannerProgram)
	m := aMachine(map[string]string{"EMULATORS_SPANNER_BIN": program})
	_, err := spannerOn(t.Context(), m, nil)
	for _, part := range []string{program, "out of order", "exit status 3"} {
		if !contains(err, part) {
			t.Errorf("a script: %v, want an error with %q", err, part)
		}
	}
	if f := finding(t, doctorSpanner(t.Context(), m), engineSpanner, TierLocal); f.Found || !strings.Contains(f.Problem, "out of order") || f.Install == "" {
		t.Errorf("the doctor says %v", f)
	}
}

func TestSpannerOptionsThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, p := range []int{-1, 101} {
		if _, err := Spanner(t.Context(), &SpannerOptions{Tier: TierLocal, AbortProbability: percent(p)}); !contains(err, "percentage") {
			if _, missing := thisMachine().findSpanner(t.Context()); missing == nil {
				t.Errorf("%d percent: %v", p, err)
			}
		}
	}
	m := aMachine(map[string]string{"SPANNER_EMULATOR_HOST": "127.0.0.1:1"})
	if _, err := spannerOn(t.Context(), m, &SpannerOptions{AbortProbability: percent(1)}); !contains(err, "AbortProbability") {
		t.Errorf("for an emulator that is not ours: %v", err)
	}
	if _, err := SpannerAt(t.Context(), "nowhere"); !contains(err, "host:port") {
		t.Errorf("no address: %v", err)
	}
}

// The program ends with its owner, however that one ends.
func TestSpannerDiesWithItsOwner(t *testing.T) {
	t.Parallel()
	_, err := thisMachine().findSpanner(t.Context())
	Require(t, err)
	_, address := killedOwner(t, engineSpanner)
	waitFor(t, "the emulator has ended", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

// ownSpanner is ownServer for Spanner; it tells where the program itself listens.
func ownSpanner() error {
	s, err := Spanner(context.Background(), &SpannerOptions{Tier: TierLocal})
	if err != nil {
		return err
	}
	fmt.Println(s.process.cmd.Process.Pid, strings.TrimPrefix(s.proxy.backend.Load().conn.Target(), "passthrough:///"))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
