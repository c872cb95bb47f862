package spanner

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

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestTier(t *testing.T) {
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
		{map[string]string{"EMULATORS_SPANNER_BIN": program}, "", emulators.TierLocal, ""},
		{map[string]string{"SPANNER_EMULATOR_HOST": address, "EMULATORS_SPANNER_BIN": program}, "", emulators.TierService, ""},
		{map[string]string{"SPANNER_EMULATOR_HOST": address, "EMULATORS_SPANNER_BIN": program, "EMULATORS": "local"}, "", emulators.TierLocal, ""},
		{map[string]string{"SPANNER_EMULATOR_HOST": address, "EMULATORS": "local"}, emulators.TierService, emulators.TierService, ""},
		{map[string]string{"EMULATORS": "container", "EMULATORS_SPANNER": "local", "EMULATORS_SPANNER_BIN": program}, "", emulators.TierLocal, ""},
		{map[string]string{"EMULATORS_SPANNER_BIN": program + "s"}, "", "", "that is no program"},
		{map[string]string{"EMULATORS": "service"}, "", "", "EMULATORS=service, but SPANNER_EMULATOR_HOST"},
		{map[string]string{"EMULATORS_SPANNER": "local"}, "", "", "EMULATORS_SPANNER=local, but engine not found: no emulator_main"},
		{map[string]string{"EMULATORS_SPANNER": "container", "EMULATORS_SPANNER_BIN": program}, "", "", `RegisterContainer("spanner"`},
		{map[string]string{"EMULATORS_SPANNER": "emulator"}, "", "", `EMULATORS_SPANNER="emulator" is not a tier of spanner; it can be local, container or service`},
		{nil, "docker", "", `the option Tier="docker" is not a tier of spanner`},
	} {
		tier, how, err := chooseTier(t.Context(), hosttest.Machine(c.variables), c.wanted)
		switch {
		case c.fails != "":
			if !hosttest.Contains(err, c.fails) || errors.Is(err, emulators.ErrMissing) {
				t.Errorf("%v: got error %v, want %q and not ErrMissing", c.variables, err, c.fails)
			}
		case err != nil || tier != c.tier:
			t.Errorf("%v: got %s, %v; want %s", c.variables, tier, err, c.tier)
		case tier == emulators.TierService && how.address != address, tier == emulators.TierLocal && how.program != program:
			t.Errorf("%v: got %+v", c.variables, how)
		}
	}
	_, err := startOn(t.Context(), hosttest.Machine(nil), nil)
	if !errors.Is(err, emulators.ErrMissing) || !hosttest.Contains(err, installAdvice) || !hosttest.Contains(err, "SPANNER_EMULATOR_HOST") {
		t.Errorf("a bare machine: %v, want ErrMissing and what to do", err)
	}
}

// Not parallel: a program that was just written cannot be run while another test
// forks.
func TestWhereTheEmulatorIsFound(t *testing.T) {
	root := t.TempDir()
	onPath := hosttest.Programs(t, filepath.Join(root, "path"), emulatorMain)
	below := filepath.Join(root, "below")
	belowPath := hosttest.Programs(t, filepath.Join(below, sdkComponent), emulatorMain)
	// An SDK whose gcloud is a link, as the packages make it.
	sdk := filepath.Join(root, "sdk")
	hosttest.Programs(t, filepath.Join(sdk, "platform", "bigtable-emulator"), host.Cbtemulator)
	inSDK := hosttest.Programs(t, filepath.Join(sdk, "bin", sdkComponent), emulatorMain)
	links := filepath.Join(root, "links")
	gcloud := filepath.Join(hosttest.Programs(t, filepath.Join(sdk, "bin"), "gcloud"), "gcloud")
	if err := errors.Join(os.MkdirAll(links, 0o755), os.Symlink(gcloud, filepath.Join(links, "gcloud"))); err != nil {
		t.Fatal(err)
	}
	asked := filepath.Join(root, "asked")
	byGcloud := hosttest.Programs(t, filepath.Join(asked, "bin", sdkComponent), emulatorMain)
	wrapper := hosttest.Programs(t, filepath.Join(root, "wrapper"), "gcloud")
	hosttest.WriteScript(t, wrapper, "gcloud", "echo "+asked)
	packaged := hosttest.Programs(t, filepath.Join(root, "lib", sdkComponent), emulatorMain)
	named := filepath.Join(hosttest.Programs(t, filepath.Join(root, "named"), "other"), "other")
	for _, c := range []struct {
		name      string
		variables map[string]string
		want      string
	}{
		{"named program", map[string]string{"EMULATORS_SPANNER_BIN": named, "PATH": onPath}, named},
		{"search path", map[string]string{"PATH": links + string(os.PathListSeparator) + onPath}, filepath.Join(onPath, emulatorMain)},
		{"below the search path", map[string]string{"PATH": below}, filepath.Join(belowPath, emulatorMain)},
		{"beside gcloud", map[string]string{"PATH": links}, filepath.Join(inSDK, emulatorMain)},
		{"where gcloud says", map[string]string{"PATH": wrapper}, filepath.Join(byGcloud, emulatorMain)},
		{"package", nil, filepath.Join(packaged, emulatorMain)},
	} {
		if got, err := findProgram(t.Context(), hosttest.Machine(c.variables, packaged)); got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	_, err := findProgram(t.Context(), hosttest.Machine(map[string]string{"PATH": "/nowhere"}))
	for _, part := range []string{"EMULATORS_SPANNER_BIN", "/nowhere", "gcloud (not on PATH)"} {
		if !hosttest.Contains(err, part) || !errors.Is(err, emulators.ErrMissing) {
			t.Errorf("a bare machine: %v, want ErrMissing with %q", err, part)
		}
	}
	// What the SDK says of the program.
	if got := versionOf(filepath.Join(inSDK, emulatorMain)); got != unknownVersion {
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
	if got := versionOf(filepath.Join(inSDK, emulatorMain)); got != "emulator 1.6.7" {
		t.Errorf("got version %q, want that of the SDK", got)
	}
}

// Not parallel, as above. The error for another program contains what that program printed.
func TestProgramThatIsNone(t *testing.T) {
	dir := hosttest.Programs(t, t.TempDir(), emulatorMain)
	hosttest.WriteScript(t, dir, emulatorMain, "echo out of order; exit 3")
	program := filepath.Join(dir, emulatorMain)
	m := hosttest.Machine(map[string]string{"EMULATORS_SPANNER_BIN": program})
	_, err := startOn(t.Context(), m, nil)
	for _, part := range []string{program, "out of order", "exit status 3"} {
		if !hosttest.Contains(err, part) {
			t.Errorf("a script: %v, want an error with %q", err, part)
		}
	}
	if f := hosttest.Finding(t, doctor(t.Context(), m), engineName, emulators.TierLocal); f.Found || !strings.Contains(f.Problem, "out of order") || f.Install == "" {
		t.Errorf("the doctor says %v", f)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, p := range []int{-1, 101} {
		if _, err := Start(t.Context(), &Options{Tier: emulators.TierLocal, AbortProbability: percent(p)}); !hosttest.Contains(err, "percentage") {
			if _, missing := findProgram(t.Context(), thisMachine()); missing == nil {
				t.Errorf("%d percent: %v", p, err)
			}
		}
	}
	m := hosttest.Machine(map[string]string{"SPANNER_EMULATOR_HOST": "127.0.0.1:1"})
	if _, err := startOn(t.Context(), m, &Options{AbortProbability: percent(1)}); !hosttest.Contains(err, "AbortProbability") {
		t.Errorf("for an emulator that is not ours: %v", err)
	}
	if _, err := At(t.Context(), "nowhere"); !hosttest.Contains(err, "host:port") {
		t.Errorf("no address: %v", err)
	}
}

// The program ends with its owner, however that one ends.
func TestDiesWithItsOwner(t *testing.T) {
	t.Parallel()
	_, err := findProgram(t.Context(), thisMachine())
	emulators.Require(t, err)
	_, address := hosttest.KilledOwner(t, "running")
	hosttest.WaitFor(t, "the emulator has ended", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m, ownServer)) }

// ownServer starts the program for KilledOwner; it tells where the program itself listens. With
// clientRole it is a client instead.
func ownServer(role string) error {
	if arguments, ok := strings.CutPrefix(role, clientRole); ok {
		address, database, _ := strings.Cut(arguments, " ")
		return leaveOpen(address, database)
	}
	s, err := Start(context.Background(), &Options{Tier: emulators.TierLocal})
	if err != nil {
		return err
	}
	fmt.Println(s.process.Cmd.Process.Pid, strings.TrimPrefix(s.proxy.backend.Load().conn.Target(), "passthrough:///"))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
