package archive_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// partStore calls a function instead of each import of a part.
type partStore struct {
	*memory.Handle
	part func(ctx context.Context, part runstore.Import, apply func() error) error
}

func (s *partStore) Import(ctx context.Context, part runstore.Import) (done runstore.Committed, err error) {
	err = s.part(ctx, part, func() error {
		var failed error
		done, failed = s.Handle.Import(ctx, part)
		return failed
	})
	return done, err
}

// queuedRun creates a run with records that have index entries, others, and events.
func queuedRun(t *testing.T, s runstore.RunStore, id runstore.RunID, queued, others, events int) {
	t.Helper()
	spec := runstore.RunSpec{ID: id, Status: 3}
	spec.Writes.Put(runstore.SummaryKey, []byte("summary"), runstore.Place{Index: "queue", At: runstore.At(time.Unix(1, 0))})
	must(s.CreateRun(t.Context(), spec))(t)
	write := func(prefix string, count, most int, add func(b *runstore.Batch, name string)) {
		for n := 0; n < count; {
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			for range min(most, count-n) {
				add(&b, fmt.Sprintf("%s%04d", prefix, n))
				n++
			}
			must(s.Commit(t.Context(), b))(t)
		}
	}
	write("k", queued, 200, func(b *runstore.Batch, name string) { // their keys are on both sides of the summary
		b.Put(runstore.RecordKey(name), nil, runstore.Place{Index: "queue", At: runstore.At(time.Unix(1, 0))})
	})
	write("s", others, 200, func(b *runstore.Batch, name string) { b.Put(runstore.RecordKey(name), nil) })
	write("e", events, 500, func(b *runstore.Batch, name string) { b.Append(name, nil) })
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	b.Runnable = runstore.At(time.Unix(1, 0))
	must(s.Commit(t.Context(), b))(t)
}

// No index of the target shows workers a run before its last part. Only records with index entries that
// exceed one part come before, after everything else.
func TestImportShowsARunAtItsEnd(t *testing.T) {
	t.Parallel()
	source := newMemory(t)
	queuedRun(t, source, "fits", 240, 100, 1100)
	queuedRun(t, source, "exceeds", 300, 100, 1100)
	queuedRun(t, source, "small", 3, 3, 3)
	parts, ahead := map[runstore.RunID]int{}, 0
	target := &partStore{Handle: memory.New(nil).Open()}
	var mu sync.Mutex
	target.part = func(ctx context.Context, part runstore.Import, apply func() error) error {
		mu.Lock()
		defer mu.Unlock()
		if err := apply(); err != nil {
			return err
		}
		id := part.Fence.Run()
		if parts[id]++; part.Release {
			return nil
		}
		placed := false
		for _, r := range part.Records {
			placed = placed || len(r.Index) > 0
		}
		if placed {
			if ahead++; id != "exceeds" || target.lastSeq(t, id) != 1100 {
				t.Errorf("run %s: a part before the last one has index entries", id)
			}
			return nil
		}
		for _, index := range []runstore.IndexName{"queue", runstore.IndexRunnable} {
			for e, err := range runstore.Entries(ctx, target.Handle, runstore.IndexQuery{Index: index}) {
				if must(e, err)(t).Run == id {
					t.Errorf("run %s: index %s has %+v after part %d", id, index, e, parts[id])
				}
			}
		}
		return nil
	}
	must(archive.Import(t.Context(), stream(export(t, source)), target, nil))(t)
	if parts["fits"] < 4 || parts["small"] != 1 || ahead == 0 {
		t.Errorf("parts: %v, %d ahead", parts, ahead)
	}
	mustEqual(t, source, target.Handle)
	again := must(archive.Import(t.Context(), stream(export(t, source)), target, nil))(t)
	if again.Present != 3 {
		t.Errorf("the second import: %+v", again)
	}
}

func (s *partStore) lastSeq(t *testing.T, id runstore.RunID) runstore.Seq {
	t.Helper()
	return must(s.GetRun(t.Context(), id))(t).LastSeq
}
