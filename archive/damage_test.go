package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
)

// smallStore returns a store with three runs of known content.
func smallStore(t *testing.T) runstore.RunStore {
	t.Helper()
	s := newMemory(t)
	for n := range 3 {
		spec := runstore.RunSpec{ID: runstore.RunID(fmt.Sprintf("run-%d", n)), Status: 1}
		spec.Writes.Append("kind", []byte("first"))
		spec.Writes.Append("kind", []byte("second"))
		spec.Writes.Put("a", []byte("value"))
		spec.Writes.Put(runstore.SummaryKey, []byte("summary"))
		must(s.CreateRun(t.Context(), spec))(t)
	}
	return s
}

// Each damage is found, at the line where it is, and the run with it is not imported.
func TestDamageIsFound(t *testing.T) {
	t.Parallel()
	whole := export(t, smallStore(t))
	lines := strings.SplitAfter(strings.TrimSuffix(string(whole), "\n"), "\n")
	lines[len(lines)-1] += "\n"
	// 1 header, then for each run 1 head, 2 records, 2 events, 1 end; 1 close.
	if len(lines) != 1+3*6+1 {
		t.Fatalf("%d lines", len(lines))
	}
	edit := func(f func(lines []string) []string) string { return strings.Join(f(append([]string{}, lines...)), "") }
	other := strings.SplitAfter(string(export(t, smallStore(t))), "\n")
	for _, c := range []struct {
		name  string
		bytes string
		line  int
	}{
		{"a flipped bit in a value", edit(func(l []string) []string { l[10] = strings.Replace(l[10], "first", "girst", 1); return l }), 11},
		{"a flipped bit in a name", edit(func(l []string) []string { l[8] = strings.Replace(l[8], `"key"`, `"kez"`, 1); return l }), 9},
		{"a flipped bit in a sum", edit(func(l []string) []string { l[3] = flip(l[3], len(l[3])-10); return l }), 4},
		{"two lines swapped", edit(func(l []string) []string { l[4], l[5] = l[5], l[4]; return l }), 5},
		{"two runs swapped", edit(func(l []string) []string {
			return append(append(append(l[:1:1], l[7:13]...), l[1:7]...), l[13:]...)
		}), 2},
		{"a line lost", edit(func(l []string) []string { return append(l[:7], l[8:]...) }), 8},
		{"a line twice", edit(func(l []string) []string { return append(l[:8:8], l[7:]...) }), 9},
		{"a run lost", edit(func(l []string) []string { return append(l[:7], l[13:]...) }), 8},
		{"cut at a line", strings.Join(lines[:9], ""), 10},
		{"cut in a line", strings.Join(lines[:9], "") + lines[9][:20], 10},
		{"cut before the last line", strings.Join(lines[:19], ""), 20},
		{"cut before the last line break", strings.TrimSuffix(string(whole), "\n"), 20},
		{"something added", string(whole) + "x", 21},
		{"a second archive added", string(whole) + string(whole), 21},
		{"a line of another archive", edit(func(l []string) []string { l[11] = other[11]; return l }), 12},
		{"another header", edit(func(l []string) []string { l[0] = other[0]; return l }), 2},
		{"no header", strings.Join(lines[1:], ""), 1},
		{"an empty file", "", 1},
		{"no archive", "hello\n", 1},
		{"a line that is too long", lines[0] + strings.Repeat("x", 17<<20), 2},
		{"bytes removed at the begin", string(whole[1:]), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := archive.Check(t.Context(), stream([]byte(c.bytes)))
			var damage *archive.DamageError
			if !errors.As(err, &damage) || damage.Line != c.line || damage.File != "test.jsonl" || !errors.Is(err, runstore.ErrCorrupt) {
				t.Fatalf("check: %v, want damage at line %d", err, c.line)
			}
			target := newMemory(t)
			if _, err := archive.Import(t.Context(), stream([]byte(c.bytes)), target, nil); !errors.As(err, &damage) || damage.Line != c.line {
				t.Errorf("import: %v, want damage at line %d", err, c.line)
			}
			mover, _ := runstore.As[runstore.Mover](target)
			complete := max(0, (c.line-2)/6)
			if ids := must(mover.ScanRuns(t.Context(), "", 10))(t); len(ids) > complete {
				t.Errorf("the import has written the runs %q, of which %d are complete in the archive", ids, complete)
			}
		})
	}
}

func flip(s string, at int) string {
	b := []byte(s)
	b[at] ^= 1
	return string(b)
}

// A single flipped bit is found, wherever it is.
func TestEveryFlippedBitIsFound(t *testing.T) {
	t.Parallel()
	whole := export(t, smallStore(t))
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		at := r.IntN(len(whole))
		damaged := bytes.Clone(whole)
		damaged[at] ^= 1 << r.IntN(8)
		_, err := archive.Check(t.Context(), stream(damaged))
		var damage *archive.DamageError
		line := 1 + bytes.Count(whole[:at], []byte("\n"))
		if !errors.As(err, &damage) || damage.Line > line+1 || damage.Line < line {
			t.Errorf("byte %d, in line %d: %v", at, line, err)
		}
	}
}

// A directory that lost a file, or has them in another order, is refused.
func TestDamagedDirectory(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(dir string) error{
		"the first is lost":  func(dir string) error { return os.Remove(part(dir, 1)) },
		"the second is lost": func(dir string) error { return os.Remove(part(dir, 2)) },
		"the last is lost":   func(dir string) error { return os.Remove(part(dir, 3)) },
		"two are swapped": func(dir string) error {
			return errors.Join(os.Rename(part(dir, 1), part(dir, 9)), os.Rename(part(dir, 2), part(dir, 1)), os.Rename(part(dir, 9), part(dir, 2)))
		},
		"one is of another archive": func(dir string) error {
			return os.Rename(filepath.Join(dir, "other", filepath.Base(part(dir, 2))), part(dir, 2))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := smallStore(t)
			opts := &archive.ExportOptions{PartBytes: 1}
			must(archive.ExportDir(t.Context(), s, filepath.Join(dir, "other"), opts))(t)
			must(archive.ExportDir(t.Context(), s, dir, opts))(t)
			if counts := must(archive.Check(t.Context(), must(archive.Open(dir))(t)))(t); counts.Runs != 3 {
				t.Fatalf("%+v", counts)
			}
			if err := harm(dir); err != nil {
				t.Fatal(err)
			}
			source, err := archive.Open(dir)
			if err == nil {
				_, err = archive.Check(t.Context(), source)
			}
			if !errors.Is(err, runstore.ErrCorrupt) {
				t.Errorf("%v, want damage", err)
			}
		})
	}
}

func part(dir string, n int) string { return filepath.Join(dir, fmt.Sprintf("runs-%06d.jsonl", n)) }

// An archive of a newer format is refused as such, also if its header has a field that is not known.
func TestNewerFormat(t *testing.T) {
	t.Parallel()
	for _, format := range []string{`"format":2`, `"format":2,"compression":"zstd"`} {
		newer := strings.Replace(string(export(t, newMemory(t))), `"format":1`, format, 1)
		newer = archive.Resum(newer)
		if _, err := archive.Check(context.Background(), stream([]byte(newer))); !errors.Is(err, runstore.ErrUnsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", format, err)
		}
	}
}
