package emulators

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
)

func TestBigtableTier(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:8086"
	for _, c := range []struct {
		variables   map[string]string
		wanted      string // by the options
		tier, fails string
	}{
		{nil, "", TierEmulator, ""},
		{map[string]string{"BIGTABLE_EMULATOR_HOST": address}, "", TierService, ""},
		{map[string]string{"BIGTABLE_EMULATOR_HOST": address, "EMULATORS": "emulator"}, "", TierEmulator, ""},
		{map[string]string{"BIGTABLE_EMULATOR_HOST": address, "EMULATORS": "local"}, TierEmulator, TierEmulator, ""},
		{map[string]string{"EMULATORS": "local", "EMULATORS_BIGTABLE": "emulator"}, "", TierEmulator, ""},
		{map[string]string{"EMULATORS": "service"}, "", "", "EMULATORS=service, but BIGTABLE_EMULATOR_HOST"},
		{map[string]string{"EMULATORS_BIGTABLE": "local"}, "", "", "EMULATORS_BIGTABLE=local, but engine not found: no cbtemulator"},
		{map[string]string{"EMULATORS_BIGTABLE": "container"}, "", "", `RegisterContainer("bigtable"`},
		{map[string]string{"EMULATORS_BIGTABLE": "docker"}, "", "", `EMULATORS_BIGTABLE="docker" is not a tier of bigtable; it can be emulator, local, container or service`},
		{nil, "docker", "", `the option Tier="docker" is not a tier of bigtable`},
	} {
		tier, how, err := aMachine(c.variables).bigtableTier(t.Context(), c.wanted)
		if c.fails != "" {
			if !contains(err, c.fails) || errors.Is(err, ErrMissing) {
				t.Errorf("%v: got error %v, want %q and not ErrMissing", c.variables, err, c.fails)
			}
		} else if err != nil || tier != c.tier || tier == TierService && how.address != address {
			t.Errorf("%v: got %s, %v; want %s", c.variables, tier, err, c.tier)
		}
	}
}

// Not parallel: a program that was just written cannot be run while another test
// forks.
func TestWhereCbtemulatorIsFound(t *testing.T) {
	root := t.TempDir()
	named := programs(t, filepath.Join(root, "named"), cbtemulator)
	onPath := programs(t, filepath.Join(root, "path"), cbtemulator)
	linked := filepath.Join(root, "linked")
	inSDK := programs(t, filepath.Join(linked, "platform", "bigtable-emulator"), cbtemulator)
	links := filepath.Join(root, "bin")
	if err := errors.Join(os.MkdirAll(links, 0o755), os.Symlink(filepath.Join(programs(t, filepath.Join(linked, "bin"), "gcloud"), "gcloud"), filepath.Join(links, "gcloud"))); err != nil {
		t.Fatal(err)
	}
	asked := filepath.Join(root, "asked")
	byGcloud := programs(t, filepath.Join(asked, "platform", "bigtable-emulator"), cbtemulator)
	wrapper := programs(t, filepath.Join(root, "wrapper"), "gcloud")
	writeScript(t, wrapper, "gcloud", "echo "+asked)
	packaged := programs(t, filepath.Join(root, "lib", "platform"), cbtemulator)
	on := func(variables map[string]string) *machine {
		m := aMachine(variables)
		m.globs[engineBigtable] = []string{packaged}
		return m
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
		if got, err := on(c.variables).findBigtable(t.Context()); got != filepath.Join(c.want, executableName(cbtemulator)) {
			t.Errorf("%s: got %q, %v; want the one in %q", c.name, got, err, c.want)
		}
	}
	if _, err := on(map[string]string{"EMULATORS_BIGTABLE_BIN": links}).findBigtable(t.Context()); !contains(err, "EMULATORS_BIGTABLE_BIN="+links) || errors.Is(err, ErrMissing) {
		t.Errorf("a named directory without the program: %v, want an error that is not ErrMissing", err)
	}
	_, err := aMachine(map[string]string{"PATH": "/nowhere"}).findBigtable(t.Context())
	for _, part := range []string{"EMULATORS_BIGTABLE_BIN", "/nowhere", "gcloud (not on PATH)"} {
		if !contains(err, part) || !errors.Is(err, ErrMissing) {
			t.Errorf("a bare machine: %v, want ErrMissing with %q", err, part)
		}
	}
}

// Not parallel, as above. A program that is something else is told apart before it is
// started.
func TestBigtableProgramThatIsNone(t *testing.T) {
	dir := programs(t, t.TempDir(), cbtemulator)
	writeScript(t, dir, cbtemulator, "exit 3")
	program := filepath.Join(dir, cbtemulator)
	if _, err := bigtableOn(t.Context(), aMachine(map[string]string{"EMULATORS_BIGTABLE_BIN": dir}), &BigtableOptions{Tier: TierLocal}); !contains(err, program) {
		t.Errorf("a script: %v, want an error that names it", err)
	}
	if version, err := cbtemulatorVersion(os.Args[0]); err == nil {
		t.Errorf("another program of Go passes for %s", version)
	}
}

// The version in Engine is a constant; this is what keeps it true.
func TestBigtableModule(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", "cloud.google.com/go/bigtable").Output()
	if err != nil {
		t.Skipf("not applicable: the go command does not tell of the module: %v", err)
	}
	if got := strings.TrimSpace(string(out)); got != "v"+bigtableModule {
		t.Errorf("the module is %s, Engine tells of %s", got, bigtableModule)
	}
}

// The program ends with its owner, however that one ends.
func TestBigtableDiesWithItsOwner(t *testing.T) {
	t.Parallel()
	_, err := thisMachine().findBigtable(t.Context())
	Require(t, err)
	_, address := killedOwner(t, engineBigtable)
	waitFor(t, "the emulator has ended", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

// ownBigtable is ownServer for Bigtable; it tells where the program itself listens.
func ownBigtable() error {
	s, err := Bigtable(context.Background(), &BigtableOptions{Tier: TierLocal})
	if err != nil {
		return err
	}
	fmt.Println(s.process.cmd.Process.Pid, strings.TrimPrefix(s.conn.Target(), "passthrough:///"))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
