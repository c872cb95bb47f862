package tapeconfig

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// MaxBytes is the size of the largest file: 64 KiB, which is several hundred reactors.
const MaxBytes = 64 << 10

// Config is the content of a file. The zero Config sets nothing: every reactor has the defaults. A
// Config does not change; it is safe for concurrent use.
type Config struct {
	file     string
	settings map[string]Setting // by key
	lines    map[string]int     // of sections, by key
	names    []runstore.Reactor // of the section tape.reactors, in the order of the file
	reactors map[runstore.Reactor]Reactor
}

// Setting is the value of a key.
type Setting struct {
	// Key is the path of the key, such as serve.listen.
	Key string
	// Value is the value as a text: true or false, a decimal number, or the text. The value of
	// serve.store may contain a password.
	Value string
	// Line is the line in the file, from 1; 0 for a default.
	Line int
}

// Load reads the file at path.
//
// Errors: those of [Parse], and of the file system, such as fs.ErrNotExist.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse reads the content of a file; errors show its name.
//
// Errors: an [*Error] with every fault of the file. The Config is returned nevertheless, with the
// settings that have no fault, for a caller that has further faults to report; no other caller may
// use it. runstore.ErrTooLarge for a file of more than [MaxBytes], and no Config.
func Parse(name string, data []byte) (*Config, error) {
	if len(data) > MaxBytes {
		return nil, &runstore.InputError{Kind: runstore.ErrTooLarge, Field: name, Problem: fmt.Sprintf("the file has more than %d bytes", MaxBytes)}
	}
	p := &parser{
		c:   &Config{file: name, settings: map[string]Setting{}, lines: map[string]int{}, reactors: map[runstore.Reactor]Reactor{}},
		bad: map[string]bool{},
	}
	p.file(data)
	for _, r := range p.c.names {
		p.resolve(r)
	}
	return p.c, errorOf(p.faults)
}

// File returns the name of the file; "" for the zero Config.
func (c *Config) File() string { return c.file }

// Setting returns the value that the file sets for a key, such as serve.listen, and false if it sets
// none.
func (c *Config) Setting(key string) (Setting, bool) {
	s, ok := c.settings[key]
	return s, ok
}

// Fault returns a fault of the key, at the line where the file sets it, or else where its section
// begins.
func (c *Config) Fault(key, problem string) Fault {
	f := Fault{File: c.file, Key: key, Problem: problem}
	if s, ok := c.settings[key]; ok {
		f.Line = s.Line
		return f
	}
	for ; f.Line == 0; key = parent(key) {
		if f.Line = c.lines[key]; key == "" {
			break
		}
	}
	return f
}

// Reactors returns the reactors that the file has a section of, in its order.
func (c *Config) Reactors() []runstore.Reactor { return slices.Clone(c.names) }

// ServeKeys returns the keys of the section serve, in alphabetical order.
func ServeKeys() []string {
	keys := slices.Sorted(maps.Keys(serveKeys))
	for i := range keys {
		keys[i] = "serve." + keys[i]
	}
	return keys
}
