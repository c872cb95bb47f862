package retain_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/tapestore/tapestore/retain"
	"github.com/tapestore/tapestore/runstore"
)

// TestMissingDirectory checks that nothing is purged, and no directory made, if that of the archive is
// missing.
func TestMissingDirectory(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, s runstore.RunStore, c *clock) {
		endedRun(t, s, "run")
		c.advance(window + day)
		o := options(t)
		dir := retain.Dir(filepath.Join(t.TempDir(), "missing"))
		o.Archive = dir
		report, err := retain.Pass(t.Context(), s, o)
		if !errors.Is(err, retain.ErrFailed) || !errors.Is(err, fs.ErrNotExist) || report.Failed != 1 || report.Purged != 0 {
			t.Errorf("%+v, %v", report, err)
		}
		if _, err := s.GetRun(t.Context(), "run"); err != nil {
			t.Errorf("the run: %v", err)
		}
		if err := dir.Check(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the directory: %v", err)
		}
	})
}
