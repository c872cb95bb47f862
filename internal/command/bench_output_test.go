package command

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/bench"
)

var benchReport = bench.Report{Format: bench.Format, Scale: "smoke", Faults: []bench.Fault{{System: "sqlite", Text: "an event is lost"}}}

func newTestOutput(t *testing.T, stdout io.Writer, format, path string) *benchOutput {
	t.Helper()
	o, err := newBenchOutput(stdout, format, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.discard)
	return o
}

// A symbolic link is written through and not replaced.
func TestBenchOutputThroughLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, link := filepath.Join(dir, "report.txt"), filepath.Join(dir, "link.txt")
	if err := errors.Join(os.WriteFile(target, bytes.Repeat([]byte("old "), 10_000), 0o600), os.Symlink(target, link)); err != nil {
		t.Skipf("not applicable: %v", err)
	}
	o := newTestOutput(t, io.Discard, "text", link)
	if wrote, err := o.write(benchReport); err != nil || len(wrote) != 1 || wrote[0] != link {
		t.Errorf("got %q, %v", wrote, err)
	}
	info, err := os.Lstat(link)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", info, err)
	}
	if text, err := os.ReadFile(target); err != nil || !strings.Contains(string(text), "an event is lost") || strings.Contains(string(text), "old") {
		t.Errorf("got %v and %.200s", err, text)
	}
}

// If the raw samples cannot be written, the page stays.
func TestBenchOutputKeepsThePage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "page.html")
	o := newTestOutput(t, io.Discard, "html", path)
	full := errors.New("the disk is full")
	o.files[1].write = func(io.Writer, bench.Report) error { return full }
	wrote, err := o.write(benchReport)
	if !errors.Is(err, full) || len(wrote) != 1 || wrote[0] != path {
		t.Errorf("got %q, %v", wrote, err)
	}
	if page, err := os.ReadFile(path); err != nil || !bytes.HasSuffix(page, []byte("</html>\n")) {
		t.Errorf("the page is not whole: %v", err)
	}
	o.discard()
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left are %v, %v; want the page", left, err)
	}
}

// A report whose file cannot be written is printed, and so are its faults.
func TestBenchOutputIsRescued(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	o := newTestOutput(t, &stdout, "json", filepath.Join(dir, "report.json"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	err := finishBench(o, &stderr, benchReport)
	if err == nil || !strings.Contains(err.Error(), "cannot be written") || !strings.Contains(err.Error(), "an event is lost") {
		t.Errorf("got the error %v", err)
	}
	if !strings.Contains(stdout.String(), "FAULT sqlite: an event is lost") {
		t.Errorf("standard output lacks the report: %q", stdout.String())
	}

	o = newTestOutput(t, brokenPipe{}, "json", "")
	stderr.Reset()
	if err := finishBench(o, &stderr, benchReport); err == nil || !strings.Contains(stderr.String(), "FAULT sqlite: an event is lost") {
		t.Errorf("got the error %v and on standard error %q", err, stderr.String())
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// A device is written to, and what it refuses is an error.
func TestBenchOutputToDevice(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("not applicable: /dev/full is a device of Linux")
	}
	before, err := os.Lstat("/dev/full")
	if err != nil {
		t.Skipf("not applicable: %v", err)
	}
	var stdout bytes.Buffer
	o := newTestOutput(t, &stdout, "html", "/dev/full")
	if len(o.files) != 1 || !o.files[0].direct {
		t.Fatalf("got the files %+v, want the device only", o.files)
	}
	if err := finishBench(o, io.Discard, benchReport); err == nil || !strings.Contains(err.Error(), "no space left") || !strings.Contains(stdout.String(), "an event is lost") {
		t.Errorf("got %v and %q", err, stdout.String())
	}
	if after, err := os.Lstat("/dev/full"); err != nil || !os.SameFile(before, after) {
		t.Errorf("the device was replaced: %v, %v", after, err)
	}
}
