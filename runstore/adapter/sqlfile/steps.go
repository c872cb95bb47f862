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
	files, err := fs.Glob(fsys, "schema/*.sql") // sorted
	if err != nil {
		panic(err) // the pattern is constant
	}
	steps := make([]Step, len(files))
	for i, file := range files {
		if want := fmt.Sprintf("schema/%04d_", i+1); !strings.HasPrefix(file, want) {
			panic(fmt.Sprintf("%s is out of order, want %s…", file, want))
		}
		text, err := fs.ReadFile(fsys, file)
		if err != nil {
			panic(err)
		}
		steps[i] = Step{Name: strings.TrimSuffix(path.Base(file), ".sql"), Text: string(text)}
	}
	return steps
}
