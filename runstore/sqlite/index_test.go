package sqlite_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
)

// TestBoundsBetweenMicroseconds scans each index with bounds a nanosecond beside the time of its entry, in both
// directions.
func TestBoundsBetweenMicroseconds(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost())
	spec := runstore.RunSpec{ID: "run", Runnable: runstore.After(0)}
	spec.Writes.Put("doc", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
	created, err := s.CreateRun(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	at := created.Run.CreatedAt
	for _, index := range []runstore.IndexName{"queue", runstore.IndexRuns, runstore.IndexRunnable} {
		for _, bounds := range []struct {
			from, until time.Duration // from the time of the entry
			want        int
		}{
			{0, 0, 1}, {-1, 1, 1}, {1, time.Hour, 0}, {-time.Hour, -1, 0},
		} {
			for _, newest := range []bool{false, true} {
				found, err := s.ScanIndex(t.Context(), runstore.IndexQuery{
					Index: index, From: at.Add(bounds.from), Until: at.Add(bounds.until), Limit: 10, Newest: newest,
				})
				if err != nil || len(found) != bounds.want || bounds.want == 1 && !found[0].At.Equal(at) {
					t.Errorf("%s, newest %t, from %v and until %v beside the entry: got %d entries, %v, want %d",
						index, newest, bounds.from, bounds.until, len(found), err, bounds.want)
				}
			}
		}
	}
}
