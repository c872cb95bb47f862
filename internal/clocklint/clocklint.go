// Package clocklint finds clock readings that an adapter must not make.
//
// Expiry is judged by the store clock, which is the engine's (I7). An adapter that reads the clock
// of its process must do so through package runstore/localclock, so that the conformance suite can
// set that clock wrong; any other reading escapes the suite. SQL has two further risks: functions
// that return the time when the transaction began, long before a lock was granted, and functions of
// an embedded engine, whose clock is the process's.
package clocklint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Allowed is a reading that is permitted.
type Allowed struct {
	// File is the path of the file, Reading the text of the reading, as in a Finding.
	File, Reading string
	// Times is the number of occurrences; 0 means 1.
	Times int
	// Reason is why the reading has no influence on decisions, or is unavoidable.
	Reason string
}

// Finding is a reading that is not allowed.
type Finding struct {
	File    string
	Line    int
	Reading string // for example "time.Now" or "now()"
	Why     string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Reading, f.Why)
}

const (
	readThrough = "reads the process's clock where the conformance suite cannot set it wrong; read it through runstore/localclock"
	inSQL       = "is not the store clock: it shows when a transaction or statement began, or a clock in the process"
)

// functions are the functions that read the clock of the process, by import path.
var functions = map[string][]string{
	"time":                         {"Now", "Since", "Until"},
	"syscall":                      {"Gettimeofday", "Time"},
	"golang.org/x/sys/unix":        {"ClockGettime", "Gettimeofday", "Time"},
	"cloud.google.com/go/bigtable": {"Now"}, // the client's timestamp of a cell
	"google.golang.org/protobuf/types/known/timestamppb": {"Now"},
}

// sql matches the readings in statements, by the name of the adapter's directory; "" applies to
// adapters without an entry.
var sql = map[string]*regexp.Regexp{
	"spanner": regexp.MustCompile(`(?i)\bcurrent_(date|time|datetime)\b`), // CURRENT_TIMESTAMP() is the server's
	"": regexp.MustCompile(`(?i)\b(now|timeofday|(transaction|statement)_timestamp|unixepoch|julianday|strftime|datetime)\s*\(` +
		`|\b(current_(timestamp|time|date)|localtime(stamp)?)\b|'now'`),
}

// Check returns the readings in the adapters below fsys that allowed does not list, and the entries
// of allowed that match nothing. Tests are left out, because they only measure.
func Check(fsys fs.FS, allowed []Allowed) ([]Finding, error) {
	var found []Finding
	used := make([]int, len(allowed))
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(name, "_test.go") {
			return err
		}
		var readings []Finding
		switch path.Ext(name) {
		case ".go":
			readings, err = inGo(fsys, name)
		case ".sql":
			readings, err = inScript(fsys, name)
		}
		for _, f := range readings {
			at := slices.IndexFunc(allowed, func(a Allowed) bool { return a.File == f.File && strings.EqualFold(a.Reading, f.Reading) })
			if at >= 0 {
				used[at]++
			}
			if at < 0 || used[at] > max(allowed[at].Times, 1) {
				found = append(found, f)
			}
		}
		return err
	})
	for i, a := range allowed {
		switch {
		case used[i] < max(a.Times, 1):
			found = append(found, Finding{File: a.File, Reading: a.Reading, Why: "is allowed and not there any more"})
		case a.Reason == "":
			found = append(found, Finding{File: a.File, Reading: a.Reading, Why: "is allowed without a reason"})
		}
	}
	return found, err
}

func inGo(fsys fs.FS, name string) (found []Finding, err error) {
	source, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	add := func(at token.Pos, reading, why string) {
		found = append(found, Finding{File: name, Line: set.Position(at).Line, Reading: reading, Why: why})
	}
	packages := map[string]string{} // by their names in this file
	for _, i := range file.Imports {
		imported, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return nil, err
		}
		local := path.Base(imported)
		if i.Name != nil {
			local = i.Name.Name
		}
		if local == "." && functions[imported] != nil {
			add(i.Pos(), "import . "+i.Path.Value, readThrough)
		}
		packages[local] = imported
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:linkname ") {
				add(c.Pos(), "go:linkname", "may reach a clock of the runtime")
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(functions[packages[x.Name]], n.Sel.Name) {
				add(n.Pos(), path.Base(packages[x.Name])+"."+n.Sel.Name, readThrough)
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				for _, f := range inText(name, text) {
					add(n.Pos(), f.Reading, f.Why)
				}
			}
		}
		return true
	})
	return found, nil
}

func inScript(fsys fs.FS, name string) ([]Finding, error) {
	text, err := fs.ReadFile(fsys, name)
	return inText(name, string(text)), err
}

// inText finds readings in statements, line by line, without comments.
func inText(name, text string) (found []Finding) {
	adapter, _, _ := strings.Cut(name, "/")
	pattern := sql[adapter]
	if pattern == nil {
		pattern = sql[""]
	}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "--")
		for _, reading := range pattern.FindAllString(line, -1) {
			reading = strings.TrimSpace(strings.TrimSuffix(reading, "("))
			found = append(found, Finding{File: name, Line: i + 1, Reading: strings.ToLower(reading), Why: inSQL})
		}
	}
	return found
}
