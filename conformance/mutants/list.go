package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:embed list/*.txt
var lists embed.FS

// engines lists the engines in the order in which they are tested: the cheapest first.
var engines = []string{"memory", "sqlite", "postgres", "alloydb", "bigtable", "spanner"}

// mutation is one deliberate bug and the tests that must notice it.
type mutation struct {
	Engine    string   // the list that holds it
	Name      string   // unique within its list
	Guarantee string   // the guarantee that it breaks: I1 to I13
	Why       string   // the bug that it reproduces
	File      string   // the file that it changes, relative to the module root
	Package   string   // the package whose tests must notice it, likewise relative
	Kills     []string // full names of those tests
	Line      int      // of the entry in its list

	hunk []string // lines, each with its marker: "-", "+" or " "
}

func (m mutation) String() string { return m.Engine + "/" + m.Name }

// load returns all mutations in the order of engines.
func load(files fs.FS) ([]mutation, error) {
	var all []mutation
	var errs []error
	for _, engine := range engines {
		name := path.Join("list", engine+".txt")
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		some, err := parse(engine, string(text))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		all = append(all, some...)
	}
	return all, errors.Join(errs...)
}

// parse reads one list.
func parse(engine, text string) ([]mutation, error) {
	var all []mutation
	var errs []error
	names := map[string]bool{}
	var m *mutation
	end := func() {
		if m == nil {
			return
		}
		if err := m.check(); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", m.Line, err))
		} else if names[m.Name] {
			errs = append(errs, fmt.Errorf("line %d: the name %q is taken", m.Line, m.Name))
		}
		names[m.Name] = true
		all = append(all, *m)
		m = nil
	}
	for i, line := range strings.Split(text, "\n") {
		switch {
		case line == "":
			end()
			continue
		case m == nil && line[0] == '#':
			continue
		case m == nil:
			m = &mutation{Engine: engine, Line: i + 1, Package: "runstore/" + engine}
		}
		if err := m.add(line); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", i+1, err))
		}
	}
	end()
	return all, errors.Join(errs...)
}

// add parses one line of an entry: a line of its hunk, or a field.
func (m *mutation) add(line string) error {
	if strings.ContainsRune("-+ ", rune(line[0])) {
		m.hunk = append(m.hunk, line)
		return nil
	}
	if len(m.hunk) > 0 {
		return fmt.Errorf("%q follows the hunk: its lines begin with -, + or a blank, and a blank line ends it", line)
	}
	key, value, _ := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	switch key {
	case "name":
		m.Name = value
	case "guarantee":
		m.Guarantee = value
	case "why":
		m.Why = value
	case "file":
		m.File = value
	case "package":
		m.Package = value
	case "kill":
		m.Kills = append(m.Kills, testName(value))
	default:
		return fmt.Errorf("unknown field %q", key)
	}
	return nil
}

var caseName = regexp.MustCompile(`^I\d+/`)

// testName returns the full name of a test: cases of the suite run as subtests of
// TestConformance.
func testName(kill string) string {
	if caseName.MatchString(kill) {
		return "TestConformance/" + kill
	}
	return kill
}

// shortName is the inverse of testName.
func shortName(test string) string {
	if rest, ok := strings.CutPrefix(test, "TestConformance/"); ok && caseName.MatchString(rest) {
		return rest
	}
	return test
}

// check returns an error if the entry is incomplete.
func (m mutation) check() error {
	for _, field := range []struct{ name, value string }{
		{"name", m.Name}, {"guarantee", m.Guarantee}, {"why", m.Why}, {"file", m.File}, {"package", m.Package},
		{"kill", strings.Join(m.Kills, "")},
	} {
		if field.value == "" {
			return fmt.Errorf("mutation %q has no field %s", m.Name, field.name)
		}
	}
	before, after := m.sides()
	if len(before) == 0 {
		return fmt.Errorf("mutation %q has no hunk", m.Name)
	}
	if slices.EqualFunc(before, after, func(b, a string) bool { return b == strings.TrimSpace(a) }) {
		return fmt.Errorf("mutation %q changes nothing", m.Name)
	}
	return nil
}

// sides returns the hunk's lines before and after the mutation.
func (m mutation) sides() (before, after []string) {
	for _, line := range m.hunk {
		if line[0] != '+' {
			before = append(before, strings.TrimSpace(line[1:]))
		}
		if line[0] != '-' {
			after = append(after, line[1:])
		}
	}
	return before, after
}

// apply returns text with the mutation applied. The hunk must match exactly once.
func (m mutation) apply(text []byte) ([]byte, error) {
	lines := bytes.Split(text, []byte("\n"))
	before, after := m.sides()
	found := -1
	for i := range len(lines) - len(before) + 1 {
		if !matches(lines[i:], before) {
			continue
		}
		if found >= 0 {
			return nil, fmt.Errorf("%v: the hunk matches %s at lines %d and %d: add context", m, m.File, found+1, i+1)
		}
		found = i
	}
	if found < 0 {
		return nil, fmt.Errorf("%v: the hunk matches nothing in %s: the list is out of date", m, m.File)
	}
	var out []byte
	add := func(line []byte) { out = append(append(out, line...), '\n') }
	for _, line := range lines[:found] {
		add(line)
	}
	for _, line := range after {
		add([]byte(line))
	}
	out = append(out, bytes.Join(lines[found+len(before):], []byte("\n"))...)
	return out, nil
}

// matches reports whether lines begin with want, ignoring indentation.
func matches(lines [][]byte, want []string) bool {
	for i, w := range want {
		if string(bytes.TrimSpace(lines[i])) != w {
			return false
		}
	}
	return true
}

// path returns the mutation's file on disk.
func (m mutation) path(root string) string { return filepath.Join(root, filepath.FromSlash(m.File)) }
