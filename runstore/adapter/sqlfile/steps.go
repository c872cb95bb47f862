package sqlfile

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Step is one step of a schema: it leads from the version before its number to the version of its
// number.
type Step struct {
	Name string // the file's name without its extension, such as "0003_terms"
	Text string
}

// Steps returns the files schema/*.sql in order: Steps(fsys)[0] leads from an empty database to
// version 1. The files are named 0001_NAME.sql, 0002_NAME.sql and so on. Steps panics if a file has
// another number than its place, or cannot be read.
func Steps(fsys fs.FS) []Step {
	steps := read(fsys, "schema/*.sql")
	for i, step := range steps {
		if want := fmt.Sprintf("%04d_", i+1); !strings.HasPrefix(step.Name, want) {
			panic(fmt.Sprintf("schema/%s.sql is out of order, want schema/%s…", step.Name, want))
		}
	}
	return steps
}

// Functions returns the files functions/*.sql in the order of their names, as one text: the functions of
// a schema's last version. It panics if a file cannot be read.
func Functions(fsys fs.FS) string {
	var all strings.Builder
	for _, file := range read(fsys, "functions/*.sql") {
		all.WriteString(file.Text + "\n")
	}
	return all.String()
}

// read returns the files that match a pattern in the order of their names.
func read(fsys fs.FS, pattern string) (all []Step) {
	files, err := fs.Glob(fsys, pattern) // sorted
	if err != nil {
		panic(err) // the pattern is constant
	}
	for _, file := range files {
		text, err := fs.ReadFile(fsys, file)
		if err != nil {
			panic(err)
		}
		all = append(all, Step{Name: strings.TrimSuffix(path.Base(file), ".sql"), Text: string(text)})
	}
	return all
}
