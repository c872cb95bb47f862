// Package sqlfile loads the SQL statements of an adapter from files, one statement to a file.
//
// A file is sql/NAME.sql in the package of the adapter. It begins with a comment in "--" lines that
// starts with NAME, says what the statement does, and lists its parameters with their units. An
// operation has the same NAME in every engine, so a diff of two folders shows how the engines
// differ.
//
// Comments are removed before a statement is sent. One file may hold the variants of a statement:
// the line
//
//	AND token = $1 -- if fenced
//
// belongs to the statement only if the caller asks for the part fenced, and so do the lines between
// a comment "-- if fenced" that stands alone and the next comment "-- end". After "if", all words
// must be parts that the caller asks for, except those behind "not", which must not be.
//
// [Steps] loads the steps of an adapter's schema, which are files of several statements, and
// [Functions] the functions that its last version has.
package sqlfile

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

// Set holds the statements of one adapter. Its methods may be called concurrently. An adapter takes
// its statements when its package is initialized, or once, not for each operation.
type Set struct {
	texts map[string]string // by name, with comments

	mu    sync.Mutex
	taken map[string]bool
}

// Load reads the files sql/*.sql of an embedded file system. It panics if one cannot be read.
func Load(fsys fs.FS) *Set {
	s := &Set{texts: map[string]string{}, taken: map[string]bool{}}
	for _, file := range read(fsys, "sql/*.sql") {
		s.texts[file.Name] = file.Text
	}
	return s
}

// Statement returns the statement in sql/NAME.sql, without its comments and with the given parts.
// It panics if there is no such file, so that a missing file fails every test of the adapter.
func (s *Set) Statement(name string, parts ...string) string {
	text, found := s.texts[name]
	if !found {
		panic(fmt.Sprintf("there is no file sql/%s.sql", name))
	}
	s.mu.Lock()
	s.taken[name] = true
	s.mu.Unlock()
	var lines []string
	block := ""    // the comment that begins the block of the line
	begun := false // before its first line of code a file describes the statement
	for line := range strings.Lines(text) {
		code, comment := cut(line)
		code = strings.TrimRight(code, " \t\r\n")
		switch {
		case code != "":
			begun = true
			if included(block, parts) && included(comment, parts) {
				lines = append(lines, code)
			}
		case !begun:
		case comment == "end":
			block = ""
		case strings.HasPrefix(comment, "if "):
			if block != "" {
				panic(fmt.Sprintf("sql/%s.sql begins %q within %q", name, comment, block))
			}
			block = comment
		}
	}
	if block != "" {
		panic(fmt.Sprintf("sql/%s.sql does not end %q", name, block))
	}
	if len(lines) == 0 {
		panic(fmt.Sprintf("sql/%s.sql holds no statement", name))
	}
	return strings.Join(lines, "\n")
}

// cut splits a line into its code and its comment. A "--" within quotes begins no comment.
func cut(line string) (code, comment string) {
	quote := rune(0)
	for i, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '\'' || r == '"' || r == '`':
			quote = r
		case strings.HasPrefix(line[i:], "--"):
			return line[:i], strings.TrimSpace(line[i+len("--"):])
		}
	}
	return line, ""
}

// included reports whether what has this comment belongs to a statement with these parts.
func included(comment string, parts []string) bool {
	words, conditional := strings.CutPrefix(comment, "if ")
	if !conditional {
		return true
	}
	wanted := true
	for _, word := range strings.Fields(words) {
		if word == "not" {
			wanted = false
			continue
		}
		if slices.Contains(parts, word) != wanted {
			return false
		}
		wanted = true
	}
	return true
}

// Faults describes what is wrong with the files: those that no statement was taken from, and those
// that do not begin with a comment that starts with the file's name. The result is sorted.
func (s *Set) Faults() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var faults []string
	for name, text := range s.texts {
		if !s.taken[name] {
			faults = append(faults, fmt.Sprintf("sql/%s.sql is unused", name))
		}
		if !strings.HasPrefix(text, "-- "+name+" ") {
			faults = append(faults, fmt.Sprintf("sql/%s.sql does not begin with a comment %q", name, "-- "+name+" …"))
		}
	}
	slices.Sort(faults)
	return faults
}
