package emulators

import (
	"cmp"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// machine is where engines are looked for: this machine, or a fake one of a test.
type machine struct {
	getenv func(string) string
	// globs are the directories, outside the search path, in which distributions keep an engine's
	// programs, by engine.
	globs map[string][]string
}

func thisMachine() *machine {
	return &machine{
		getenv: os.Getenv,
		globs: map[string][]string{
			enginePostgres: postgresDirectories, engineBigtable: bigtableDirectories, engineSpanner: spannerDirectories,
		},
	}
}

// path returns the directories of the search path.
func (m *machine) path() []string {
	var dirs []string
	for _, dir := range filepath.SplitList(m.getenv("PATH")) {
		if filepath.IsAbs(dir) { // a relative one depends on where we happen to be
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// lookPath returns the path of a program on the search path, or "".
func (m *machine) lookPath(program string) string {
	for _, dir := range m.path() {
		if file := filepath.Join(dir, executableName(program)); isExecutable(file) {
			return file
		}
	}
	return ""
}

// versioned returns an engine's directories outside the search path, the newest version first.
func (m *machine) versioned(engine string) []string {
	var dirs []string
	for _, glob := range m.globs[engine] {
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

// hasPrograms reports whether a directory holds all these programs.
func hasPrograms(dir string, programs ...string) bool {
	return !slices.ContainsFunc(programs, func(program string) bool {
		return !isExecutable(filepath.Join(dir, executableName(program)))
	})
}

func isExecutable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && (runtime.GOOS == "windows" || info.Mode()&0o111 != 0)
}

func executableName(program string) string {
	if runtime.GOOS == "windows" {
		return program + ".exe"
	}
	return program
}
