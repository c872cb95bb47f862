package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/conformance"
)

// atLeast is the minimum number of mutations in each list.
const atLeast = 15

// TestListsAreCurrent checks every entry against the current sources: its hunk matches once, and
// the tests that it names exist. It starts no engine.
func TestListsAreCurrent(t *testing.T) {
	t.Parallel()
	all, err := load(lists)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join("..", "..")
	if err := current(root, all); err != nil {
		t.Error(err)
	}
	counts := map[string]int{}
	tests := map[string]map[string]bool{}
	for _, m := range all {
		counts[m.Engine]++
		if !slices.Contains(conformance.Guarantees(), m.Guarantee) {
			t.Errorf("%v: got guarantee %q, want one of %v", m, m.Guarantee, conformance.Guarantees())
		}
		if tests[m.Package] == nil {
			tests[m.Package] = testsOf(t, filepath.Join(root, filepath.FromSlash(m.Package)))
		}
		for _, kill := range m.Kills {
			name, _, _ := strings.Cut(kill, "/")
			if !tests[m.Package][name] {
				t.Errorf("%v: %s has no test %s", m, m.Package, name)
			}
			if id := shortName(kill); id != kill {
				if _, ok := conformance.Find(id); !ok {
					t.Errorf("%v: the suite has no case %s", m, id)
				}
			}
		}
	}
	for _, engine := range engines {
		if counts[engine] < atLeast {
			t.Errorf("list/%s.txt has %d mutations, want at least %d", engine, counts[engine], atLeast)
		}
	}
}

// testsOf returns the names of a package's tests.
func testsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}

const entry = `# a comment

name: one
guarantee: I3
why: it stands for a bug.
file: a.go
kill: I3/some-case
kill: TestOwn/part
 	if a {
-		return b
+		return c
 	}
`

func TestParse(t *testing.T) {
	t.Parallel()
	all, err := parse("memory", entry+"\n"+strings.Replace(entry, "one", "two", 1))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].Name != "one" || all[1].Name != "two" {
		t.Fatalf("got %+v, want one and two", all)
	}
	m := all[0]
	if got, want := fmt.Sprint(m.Kills), "[TestConformance/I3/some-case TestOwn/part]"; got != want {
		t.Errorf("kills: got %s, want %s", got, want)
	}
	if m.Package != "runstore/memory" || m.Line != 3 || m.Guarantee != "I3" {
		t.Errorf("got %+v, want package runstore/memory, line 3, guarantee I3", m)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ what, old, new, want string }{
		{"an unknown field", "why:", "because:", `unknown field "because"`},
		{"a missing field", "why: it stands for a bug.\n", "", "no field why"},
		{"no test", "kill: I3/some-case\nkill: TestOwn/part\n", "", "no field kill"},
		{"a field behind the hunk", " \t}\n", " \t}\nfile: b.go\n", "follows the hunk"},
		{"no hunk", entry[strings.Index(entry, " \tif"):], "", "no hunk"},
		{"no change", "return c", "return b", "changes nothing"},
		{"a name twice", "\n", "\n" + strings.TrimPrefix(entry, "# a comment\n") + "\n", `"one" is taken`},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(entry, test.old, test.new, 1)
			if _, err := parse("memory", text); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	all, err := parse("memory", entry)
	if err != nil {
		t.Fatal(err)
	}
	const before, after = "func f() {\n\t\tif a {\n\t\t\treturn b\n\t\t}\n}\n", "func f() {\n\tif a {\n\t\treturn c\n\t}\n}\n"
	got, err := all[0].apply([]byte(before))
	if err != nil || string(got) != after {
		t.Errorf("got %q, %v, want %q", got, err, after)
	}
	for _, test := range []struct{ what, text, want string }{
		{"no match", strings.Replace(before, "if a", "if b", 1), "out of date"},
		{"half a match", strings.Replace(before, "return b", "return b(x)", 1), "out of date"},
		{"two matches", before + before, "at lines 2 and 7"},
		{"an empty file", "", "out of date"},
	} {
		if _, err := all[0].apply([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.what, err, test.want)
		}
	}
}

// TestRottenEntry checks that an outdated entry is reported with its file and line.
func TestRottenEntry(t *testing.T) {
	t.Parallel()
	all, err := parse("memory", entry)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.go"), []byte("package a\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := current(dir, all); err == nil || !strings.Contains(err.Error(), "list/memory.txt:3: memory/one: the hunk matches nothing in a.go") {
		t.Errorf("got %v, want the entry at list/memory.txt:3", err)
	}
}
