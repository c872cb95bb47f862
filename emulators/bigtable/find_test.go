package bigtable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestTier(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:8086"
	for _, c := range []struct {
		variables   map[string]string
		wanted      string // by the options
		tier, fails string
	}{
		{nil, "", emulators.TierEmulator, ""},
		{map[string]string{"BIGTABLE_EMULATOR_HOST": address}, "", emulators.TierService, ""},
		{map[string]string{"BIGTABLE_EMULATOR_HOST": address, "EMULATORS": "emulator"}, "", emulators.TierEmulator, ""},
		{map[string]string{"BIGTABLE_EMULATOR_HOST": address, "EMULATORS": "local"}, emulators.TierEmulator, emulators.TierEmulator, ""},
		{map[string]string{"EMULATORS": "local", "EMULATORS_BIGTABLE": "emulator"}, "", emulators.TierEmulator, ""},
		{map[string]string{"EMULATORS": "service"}, "", "", "EMULATORS=service, but BIGTABLE_EMULATOR_HOST"},
		{map[string]string{"EMULATORS_BIGTABLE": "local"}, "", "", "EMULATORS_BIGTABLE=local, but engine not found: no cbtemulator"},
		{map[string]string{"EMULATORS_BIGTABLE": "container"}, "", "", `RegisterContainer("bigtable"`},
		{map[string]string{"EMULATORS_BIGTABLE": "docker"}, "", "", `EMULATORS_BIGTABLE="docker" is not a tier of bigtable; it can be emulator, local, container or service`},
		{nil, "docker", "", `the option Tier="docker" is not a tier of bigtable`},
	} {
		tier, how, err := chooseTier(t.Context(), hosttest.Machine(c.variables), c.wanted)
		if c.fails != "" {
			if !hosttest.Contains(err, c.fails) || errors.Is(err, emulators.ErrMissing) {
				t.Errorf("%v: got error %v, want %q and not ErrMissing", c.variables, err, c.fails)
			}
		} else if err != nil || tier != c.tier || tier == emulators.TierService && how.address != address {
			t.Errorf("%v: got %s, %v; want %s", c.variables, tier, err, c.tier)
		}
	}
}

// Not parallel: a program that was just written cannot be run while another test
// forks.
func TestWhereCbtemulatorIsFound(t *testing.T) {
	root := t.TempDir()
	named := hosttest.Programs(t, filepath.Join(root, "named"), cbtemulator)
	onPath := hosttest.Programs(t, filepath.Join(root, "path"), cbtemulator)
	linked := filepath.Join(root, "linked")
	inSDK := hosttest.Programs(t, filepath.Join(linked, "platform", "bigtable-emulator"), cbtemulator)
	links := filepath.Join(root, "bin")
	if err := errors.Join(os.MkdirAll(links, 0o755), os.Symlink(filepath.Join(hosttest.Programs(t, filepath.Join(linked, "bin"), "gcloud"), "gcloud"), filepath.Join(links, "gcloud"))); err != nil {
		t.Fatal(err)
	}
	asked := filepath.Join(root, "asked")
	byGcloud := hosttest.Programs(t, filepath.Join(asked, "platform", "bigtable-emulator"), cbtemulator)
	wrapper := hosttest.Programs(t, filepath.Join(root, "wrapper"), "gcloud")
	hosttest.WriteScript(t, wrapper, "gcloud", "echo "+asked)
	packaged := hosttest.Programs(t, filepath.Join(root, "lib", "platform"), cbtemulator)
	on := func(variables map[string]string) *host.Machine {
		return hosttest.Machine(variables, packaged)
	}
	for _, c := range []struct {
		name      string
		variables map[string]string
		want      string
	}{
		{"named directory", map[string]string{"EMULATORS_BIGTABLE_BIN": named, "PATH": onPath}, named},
		{"search path", map[string]string{"PATH": links + string(os.PathListSeparator) + onPath}, onPath},
		{"beside gcloud", map[string]string{"PATH": links}, inSDK},
		{"where gcloud says", map[string]string{"PATH": wrapper}, byGcloud},
		{"package", nil, packaged},
	} {
		if got, err := findProgram(t.Context(), on(c.variables)); got != filepath.Join(c.want, host.ExecutableName(cbtemulator)) {
			t.Errorf("%s: got %q, %v; want the one in %q", c.name, got, err, c.want)
		}
	}
	if _, err := findProgram(t.Context(), on(map[string]string{"EMULATORS_BIGTABLE_BIN": links})); !hosttest.Contains(err, "EMULATORS_BIGTABLE_BIN="+links) || errors.Is(err, emulators.ErrMissing) {
		t.Errorf("a named directory without the program: %v, want an error that is not ErrMissing", err)
	}
	_, err := findProgram(t.Context(), hosttest.Machine(map[string]string{"PATH": "/nowhere"}))
	for _, part := range []string{"EMULATORS_BIGTABLE_BIN", "/nowhere", "gcloud (not on PATH)"} {
		if !hosttest.Contains(err, part) || !errors.Is(err, emulators.ErrMissing) {
			t.Errorf("a bare machine: %v, want ErrMissing with %q", err, part)
		}
	}
}

// Not parallel, as above. A program that is something else is told apart before it is
// started.
func TestProgramThatIsNone(t *testing.T) {
	dir := hosttest.Programs(t, t.TempDir(), cbtemulator)
	hosttest.WriteScript(t, dir, cbtemulator, "exit 3")
	program := filepath.Join(dir, cbtemulator)
	if _, err := startOn(t.Context(), hosttest.Machine(map[string]string{"EMULATORS_BIGTABLE_BIN": dir}), &Options{Tier: emulators.TierLocal}); !hosttest.Contains(err, program) {
		t.Errorf("a script: %v, want an error that names it", err)
	}
	if version, err := cbtemulatorVersion(os.Args[0]); err == nil {
		t.Errorf("another program of Go passes for %s", version)
	}
}

// The version in Engine is a constant; this is what keeps it true.
func TestModule(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", "cloud.google.com/go/bigtable").Output()
	if err != nil {
		t.Skipf("not applicable: the go command does not tell of the module: %v", err)
	}
	if got := strings.TrimSpace(string(out)); got != "v"+moduleVersion {
		t.Errorf("the module is %s, Engine tells of %s", got, moduleVersion)
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

// ownServer starts the program for KilledOwner, and prints the address at which the program listens.
func ownServer(string) error {
	s, err := Start(context.Background(), &Options{Tier: emulators.TierLocal})
	if err != nil {
		return err
	}
	fmt.Println(s.process.Cmd.Process.Pid, strings.TrimPrefix(s.conn.Target(), "passthrough:///"))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
