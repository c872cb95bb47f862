package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/faultystores"
	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/conformance/protocol/faultyservers"
)

var (
	// pathForm is a file of the repository, in code.
	pathForm = regexp.MustCompile("`([a-z][\\w.-]*(?:/[\\w.-]+)+\\.(?:go|sql|txt|md|yml))`")
	// nameForm is a file and a name that it declares: `runstore/batch.go`: `Batch.Require`.
	nameForm = regexp.MustCompile("`([a-z][\\w.-]*(?:/[\\w.-]+)+\\.go)`: `([\\w.]+)`")
)

var testForm = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// Files that a page names are there, and so are the functions and constants that it finds in them.
func TestCode(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, page := range markdown(t) {
		text := withoutBlocks(read(t, page))
		for _, m := range pathForm.FindAllStringSubmatch(text, -1) {
			if exists(m[1]) != nil && exists(filepath.Join(filepath.Dir(page), m[1])) != nil {
				t.Errorf("%s names the file %s, which is not there", page, m[1])
			}
		}
		for _, m := range nameForm.FindAllStringSubmatch(text, -1) {
			checked++
			if !declares(t, m[1], m[2]) {
				t.Errorf("%s says that %s has %s, which it does not declare", page, m[1], m[2])
			}
		}
	}
	if checked < 10 {
		t.Errorf("checked %d names only: the form of the pages has changed", checked)
	}
}

// declares reports whether a file declares a function, a method (Type.Method), a type, a
// variable or a constant of that name.
func declares(t *testing.T, path, name string) bool {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return false // the missing file is an error of its own
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			declared := d.Name.Name
			if d.Recv != nil {
				declared = receiver(d.Recv.List[0].Type) + "." + declared
			}
			if declared == name {
				return true
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.Name == name {
						return true
					}
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						if n.Name == name {
							return true
						}
					}
				}
			}
		}
	}
	return false
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// The names of the suite that docs/track-record.md lists are those of the code.
func TestTrackRecord(t *testing.T) {
	t.Parallel()
	known := []func(name string) bool{isCase(t), isFaultyStore(t), isMutation(t)}
	var bugs int
	for line := range strings.Lines(read(t, "docs/track-record.md")) {
		// A bug, its commit, a case, a faulty store, a mutation.
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 || !strings.Contains(cells[2], "`") {
			continue
		}
		bugs++
		for i, cell := range cells[2:] {
			for _, code := range codeForm.FindAllString(cell, -1) {
				if name := strings.Trim(code, "`"); !known[i](name) {
					t.Errorf("%q is not in the code: %s", name, strings.TrimSpace(line))
				}
			}
		}
	}
	if bugs < 20 {
		t.Errorf("found %d bugs in docs/track-record.md, want 20 at least", bugs)
	}
}

// namedForm is a faulty store or a mutation that a page names as such.
var namedForm = regexp.MustCompile("(?i)(faulty stores?|mutations?) ((?:`[^`]+`(?:, | and |,\n| and\n|))+)")

// Faulty stores and mutations that other pages name are those of the code.
func TestNamedBugs(t *testing.T) {
	t.Parallel()
	isFaulty, isMutant := isFaultyStore(t), isMutation(t)
	for _, page := range markdown(t) {
		for _, m := range namedForm.FindAllStringSubmatch(withoutBlocks(read(t, page)), -1) {
			known := isMutant
			if strings.HasPrefix(strings.ToLower(m[1]), "faulty") {
				known = isFaulty
			}
			for _, code := range codeForm.FindAllString(m[2], -1) {
				if name := strings.Trim(code, "`"); !known(name) {
					t.Errorf("%s: there is no %s %q", page, m[1], name)
				}
			}
		}
	}
}

// A decision record fits on a page.
func TestDecisionsAreShort(t *testing.T) {
	t.Parallel()
	for _, page := range markdown(t) {
		if strings.HasPrefix(page, "docs/decisions/") {
			if lines := strings.Count(read(t, page), "\n"); lines > 60 {
				t.Errorf("%s has %d lines, the limit is 60", page, lines)
			}
		}
	}
}

// isCase knows the cases of both suites, and the tests of all packages.
func isCase(t *testing.T) func(string) bool {
	t.Helper()
	tests, err := testNames()
	if err != nil {
		t.Fatal(err)
	}
	return func(name string) bool {
		_, isCase := conformance.Find(name)
		_, isCheck := protocol.Find(name)
		return isCase || isCheck || tests[name]
	}
}

// testNames returns the names of the tests of all packages.
var testNames = sync.OnceValues(func() (map[string]bool, error) {
	tests := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range testForm.FindAllSubmatch(source, -1) {
			tests[string(m[1])] = true
		}
		return err
	})
	return tests, err
})

func isFaultyStore(*testing.T) func(string) bool {
	names := map[string]bool{}
	for _, s := range faultystores.All() {
		names[s.Name] = true
	}
	for _, s := range faultyservers.Servers() {
		names[s.Name] = true
	}
	return func(name string) bool { return names[name] }
}

// isMutation knows the mutations as list/name.
func isMutation(t *testing.T) func(string) bool {
	t.Helper()
	lists, err := filepath.Glob(filepath.Join(root, "conformance/mutants/list/*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "name: "); ok {
				names[strings.TrimSuffix(filepath.Base(list), ".txt")+"/"+strings.TrimSpace(name)] = true
			}
		}
	}
	return func(name string) bool { return names[name] }
}
