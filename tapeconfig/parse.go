package tapeconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tapestore/tapestore/runstore"
)

// parser fills a Config and collects the faults of its file.
type parser struct {
	c      *Config
	faults []Fault
	bad    map[string]bool // the keys whose values have a fault
}

func (p *parser) fault(line int, key, format string, args ...any) {
	p.faults = append(p.faults, Fault{File: p.c.file, Line: line, Key: key, Problem: fmt.Sprintf(format, args...)})
}

// file reads the only document of a file. An empty file is one without settings.
func (p *parser) file(data []byte) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var document, next yaml.Node
	if err := d.Decode(&document); err != nil {
		p.syntax(err)
		return
	}
	if err := d.Decode(&next); err == nil {
		p.fault(next.Line, "", "a second document begins here; a file has one")
	} else {
		p.syntax(err)
	}
	p.section("", 1, document.Content[0], []string{"tape", "serve"}, func(key string, line int, value *yaml.Node) {
		if key == "serve" {
			p.values("serve", line, value, serveKeys)
			return
		}
		p.section("tape", line, value, []string{"reactors"}, func(_ string, line int, value *yaml.Node) {
			p.section("tape.reactors", line, value, nil, func(name string, line int, value *yaml.Node) {
				if !reactorForm.MatchString(name) {
					p.fault(line, "tape.reactors", "the name of a reactor is 1 to %d letters, digits and _-. only", runstore.MaxOwner)
					return
				}
				p.c.names = append(p.c.names, runstore.Reactor(name))
				p.values("tape.reactors."+name, line, value, reactorKinds)
			})
		})
	})
}

var (
	syntaxForm  = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)`)
	reactorForm = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	// parserForm matches the errors of the decoder's parser, which counts lines from 0 and leaves line
	// 0 out. Its scanner counts from 1.
	parserForm = regexp.MustCompile(`^did not find expected (node content|key$|'-' indicator|',' or|<)`)
	plainForm  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)
)

// syntax reports an error of the YAML decoder. Its messages contain no text of the file, except the
// name of an alias.
func (p *parser) syntax(err error) {
	if errors.Is(err, io.EOF) {
		return
	}
	line, problem := 0, "not YAML"
	if m := syntaxForm.FindStringSubmatch(err.Error()); m != nil {
		line, _ = strconv.Atoi(m[1]) // 0 if there is none
		if parserForm.MatchString(m[2]) {
			line++
		}
		problem = "not YAML: " + m[2]
	}
	if strings.Contains(problem, "anchor") {
		problem = "an alias (*) has no anchor; write a text that begins with * in quotes"
	}
	p.fault(line, "", "%s", problem)
}

// section calls each for the keys of a mapping; nil keys mean that every key is known.
func (p *parser) section(path string, line int, n *yaml.Node, keys []string, each func(key string, line int, value *yaml.Node)) {
	p.c.lines[path] = line
	switch {
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		return // a section whose keys are all commented out
	case n.Kind != yaml.MappingNode:
		p.fault(line, path, "is %s; it is a section, with a key on each line: KEY, a colon, a space, VALUE", form(n))
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := key.Value
		switch line := first[name]; {
		case key.Kind != yaml.ScalarNode:
			p.fault(key.Line, path, "a key is %s; it is a text", form(key))
		case keys != nil && !slices.Contains(keys, name):
			p.unknown(path, key, keys)
		case line > 0:
			p.fault(key.Line, join(path, plain(name)), "is given twice; the first is in line %d", line)
		default:
			first[name] = key.Line
			each(name, key.Line, value)
		}
	}
}

// values reads the settings of a section.
func (p *parser) values(path string, line int, n *yaml.Node, kinds map[string]kind) {
	p.section(path, line, n, slices.Sorted(maps.Keys(kinds)), func(name string, line int, value *yaml.Node) {
		key := join(path, name)
		if problem := kinds[name].problem(value); problem != "" {
			p.bad[key] = true
			p.c.lines[key] = line
			p.fault(line, key, "%s", problem)
			return
		}
		p.c.settings[key] = Setting{Key: key, Value: value.Value, Line: line}
	})
}

// unknown reports an unknown key, with the known key that is nearest, or else with all of them.
func (p *parser) unknown(path string, key *yaml.Node, keys []string) {
	if key.Value == "<<" {
		p.fault(key.Line, path, "merge keys (<<) are not supported; write the keys out")
		return
	}
	known := "the keys are " + strings.Join(keys, ", ")
	folded := strings.ReplaceAll(strings.ToLower(key.Value), "-", "_")
	best := 3 // keys at a distance of 1 or 2 are near
	for _, k := range keys {
		if d := distance(folded, k); d < best {
			best, known = d, fmt.Sprintf("did you mean %s?", k)
		}
	}
	p.fault(key.Line, join(path, plain(key.Value)), "unknown key; %s", known)
}

// plain returns a key for a message; "…" for one that may be a piece of a misplaced secret.
func plain(key string) string {
	if !plainForm.MatchString(key) {
		return "…"
	}
	return key
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// parent returns the key of the section that a key is in; "" for the whole file.
func parent(key string) string { return key[:max(strings.LastIndexByte(key, '.'), 0)] }

// distance returns the edit distance of two texts (Levenshtein), at most 3.
func distance(a, b string) int {
	if max(len(a)-len(b), len(b)-len(a)) > 2 {
		return 3
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			substituted := diagonal
			if a[i] != b[j] {
				substituted++
			}
			diagonal = row[j+1]
			row[j+1] = min(substituted, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], 3)
}
