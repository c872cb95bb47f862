package bucket_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/memblob"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/retain/bucket"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

func open(t *testing.T, address string) *bucket.Bucket {
	t.Helper()
	b, err := bucket.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// An object appears complete, under its name, and not at all if its writing fails or the context ends.
func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, address := range map[string]string{"memory": "mem://", "file": fileURL(dir), "prefix": fileURL(dir) + "?prefix=a/b/&no_tmp_dir=true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, address)
			const object = "3f/run=2f1.5.12.0a1b.jsonl"
			if _, err := b.Open(t.Context(), object); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("an object that is missing: %v", err)
			}
			failed := errors.New("failed")
			err := b.Write(t.Context(), object, func(w io.Writer) error {
				_, _ = w.Write([]byte("half"))
				return failed
			})
			if !errors.Is(err, failed) {
				t.Errorf("got %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			if err := b.Write(ctx, object, func(w io.Writer) error {
				cancel()
				_, _ = w.Write([]byte("half"))
				return nil
			}); err == nil {
				t.Error("a write whose context has ended succeeds")
			}
			if _, err := b.Open(t.Context(), object); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("after writes that failed: %v", err)
			}
			for _, text := range []string{"first", "second"} {
				if err := b.Write(t.Context(), object, func(w io.Writer) error { _, err := io.WriteString(w, text); return err }); err != nil {
					t.Fatal(err)
				}
				in, err := b.Open(t.Context(), object)
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(in)
				if err = errors.Join(err, in.Close()); err != nil || string(got) != text {
					t.Errorf("got %q, %v", got, err)
				}
			}
		})
	}
}

func fileURL(dir string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String()
}

// A pass archives into a bucket, a repeat uses its objects, and they can be imported.
func TestPassIntoABucket(t *testing.T) {
	t.Parallel()
	engine := memory.New(nil)
	s := engine.Open()
	t.Cleanup(func() { _ = s.Close() })
	spec := runstore.RunSpec{ID: "run/1", Status: 4}
	spec.Writes.Append("kind", []byte("data"))
	if _, err := s.CreateRun(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	engine.Advance(48 * time.Hour)
	b := open(t, "mem://")
	var object string
	o := retain.Options{
		Policy:  retain.Policy{Journals: 24 * time.Hour, Ended: func(r runstore.Run) (time.Time, bool) { return r.CreatedAt, true }},
		Archive: b, Operator: "test", Decided: func(d retain.Decision) { object = d.Object },
	}
	report, err := retain.Pass(t.Context(), s, o)
	if err != nil || report.Purged != 1 || report.Archived != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	in, err := b.Open(t.Context(), object)
	if err != nil {
		t.Fatal(err)
	}
	restored, err := archive.Import(t.Context(), archive.Stream(object, in), s, &archive.ImportOptions{RaiseEpoch: true})
	if err = errors.Join(err, in.Close()); err != nil || restored.Imported.Events != 1 {
		t.Errorf("%+v, %v", restored, err)
	}
}

// Errors and names show no secrets of a URL, and say which schemes there are.
func TestURLs(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{"gs://bucket": true, "s3://b?x=y": true, "/a/b": false, "./a://b": true, "C:\\a": false, "://x": false, "": false} {
		if got := bucket.IsURL(address); got != want {
			t.Errorf("IsURL(%q) = %v", address, got)
		}
	}
	for _, address := range []string{"nothing://user:secret@bucket/a?key=secret", "mem://%zz?key=secret"} {
		_, err := bucket.Open(t.Context(), address)
		if err == nil || strings.Contains(err.Error(), "secret@") || strings.Contains(err.Error(), "key=secret") {
			t.Errorf("%s: %v", address, err)
			continue
		}
		if strings.HasPrefix(address, "nothing") && !strings.Contains(err.Error(), "gs") {
			t.Errorf("the error does not name the schemes: %v", err)
		}
		if shown := bucket.Shown(address); strings.Contains(shown, "secret") {
			t.Errorf("shown as %s", shown)
		}
	}
	if _, err := bucket.OpenObject(t.Context(), "mem://"); err == nil {
		t.Error("a URL without an object is accepted")
	}
	if _, err := bucket.OpenObject(t.Context(), "mem:///a/b.jsonl"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an object that is missing: %v", err)
	}
}

// The package brings no client of an object store into package retain, nor into any package of the module
// that a library's user imports.
func TestOnlyTheCommandImportsBuckets(t *testing.T) {
	t.Parallel()
	found := 0
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		uses := strings.Contains(string(text), `"github.com/tapestore/tapestore/retain/bucket"`) || strings.Contains(string(text), `"gocloud.dev/`)
		if uses {
			found++
		}
		name := filepath.ToSlash(path)
		if uses && !strings.HasPrefix(name, "../../internal/command/") && name != "../../retain/bucket/bucket.go" {
			t.Errorf("%s imports the clients of object stores", name)
		}
		return nil
	})
	if err != nil || found < 2 {
		t.Errorf("%d files, %v", found, err)
	}
}
