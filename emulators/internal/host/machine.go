package host

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/tapestore/tapestore/emulators"
)

// Machine is where engines are looked for: this machine, or a fake one of a test.
type Machine struct {
	Getenv func(string) string
	// Directories are glob patterns of the directories, outside the search path, in which
	// distributions keep the engine's programs.
	Directories []string
	// Containers returns the function that starts an engine in a container, or nil.
	Containers func(engine string) ContainerStart
}

// ContainerStart starts an engine in a container.
type ContainerStart = func(ctx context.Context) (emulators.ContainerServer, error)

// This returns this machine, for an engine whose programs may be in these directories.
func This(directories []string) *Machine {
	return &Machine{Getenv: os.Getenv, Directories: directories, Containers: emulators.ContainerStarter}
}

// Path returns the directories of the search path.
func (m *Machine) Path() []string {
	var dirs []string
	for _, dir := range filepath.SplitList(m.Getenv("PATH")) {
		if filepath.IsAbs(dir) { // a relative one depends on where we happen to be
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// LookPath returns the path of a program on the search path, or "".
func (m *Machine) LookPath(program string) string {
	for _, dir := range m.Path() {
		if file := filepath.Join(dir, ExecutableName(program)); IsExecutable(file) {
			return file
		}
	}
	return ""
}

// Versioned returns the engine's directories outside the search path, the newest version first.
func (m *Machine) Versioned() []string {
	var dirs []string
	for _, glob := range m.Directories {
		found, _ := filepath.Glob(glob) // the patterns are constants
		dirs = append(dirs, found...)
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return cmp.Compare(versionIn(b), versionIn(a)) })
	return dirs
}

// versionIn returns the first number in a path: 15 for /usr/lib/postgresql/15/bin.
func versionIn(path string) float64 {
	const digits = "0123456789"
	start := strings.IndexAny(path, digits)
	if start < 0 {
		return 0
	}
	text := path[start:]
	if end := strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune(digits+".", r) }); end >= 0 {
		text = text[:end]
	}
	version, _ := strconv.ParseFloat(text, 64) // 0 sorts it last
	return version
}

// HasPrograms reports whether a directory holds all these programs.
func HasPrograms(dir string, programs ...string) bool {
	return !slices.ContainsFunc(programs, func(program string) bool {
		return !IsExecutable(filepath.Join(dir, ExecutableName(program)))
	})
}

// IsExecutable reports whether a file is a program.
func IsExecutable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && (runtime.GOOS == "windows" || info.Mode()&0o111 != 0)
}

// ExecutableName returns the name of a program's file.
func ExecutableName(program string) string {
	if runtime.GOOS == "windows" {
		return program + ".exe"
	}
	return program
}

// UseContainers returns the advice for a program that cannot start an engine's containers.
func UseContainers(engine string) string {
	return fmt.Sprintf("use a program that imports github.com/tapestore/tapestore/containers, which calls RegisterContainer(%q, …); "+
		"in a checkout: EMULATORS=container go -C containers run ./cmd/tapestore …", engine)
}

// ContainerFinding returns the finding for an engine's container.
func (m *Machine) ContainerFinding(engine string) emulators.Finding {
	f := emulators.Finding{Engine: engine, Tier: emulators.TierContainer, Found: m.Containers(engine) != nil}
	if !f.Found {
		f.Problem = "this program cannot start containers"
		f.Install = UseContainers(engine)
	}
	return f
}
