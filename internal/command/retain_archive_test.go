package command

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestRetentionRefusesArchives checks that a mistyped archive is refused before anything is read.
func TestRetentionRefusesArchives(t *testing.T) {
	t.Parallel()
	for archive, want := range map[string]string{
		"gs:/bucket/prefix":                   "is neither a directory, nor a bucket",
		"gs:bucket":                           "is neither a directory, nor a bucket",
		"None":                                "is neither a directory, nor a bucket",
		"gs://bucket?key=name":                "the parameter key names one object for all archives",
		filepath.Join(t.TempDir(), "missing"): "must exist",
	} {
		r := &retention{archive: archive}
		if err := r.open(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", archive, err, want)
		}
	}
}
