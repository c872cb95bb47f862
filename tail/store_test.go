package tail_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

func TestEveryWriteThroughTheStoreHints(t *testing.T) {
	lease := runstore.LeaseSpec{Owner: "o", TTL: time.Minute}
	held := func(e *env) runstore.Fence {
		got, err := e.store.AcquireLease(e.Context(), runstore.AcquireRequest{Run: "r", LeaseSpec: lease})
		if err != nil {
			e.Fatal(err)
		}
		return got.Fence()
	}
	for name, write := range map[string]func(e *env) error{
		"commit": func(e *env) error { return e.append(e.store, "r", 1) },
		"create": func(e *env) error {
			_, err := e.store.CreateRun(e.Context(), runstore.RunSpec{ID: "new", Writes: events(1)})
			return err
		},
		"acquire": func(e *env) error {
			_, err := e.store.AcquireLease(e.Context(), runstore.AcquireRequest{Run: "r", LeaseSpec: lease, Writes: events(1)})
			return err
		},
		"release": func(e *env) error {
			_, err := e.store.ReleaseLease(e.Context(), runstore.ReleaseRequest{Fence: held(e), Writes: events(1)})
			return err
		},
		"commit of several runs": func(e *env) error {
			one, two := runstore.NewBatch("other", runstore.Unguarded("a test")), runstore.NewBatch("r", runstore.Unguarded("a test"))
			two.Writes = events(1)
			one.Put("key", nil)
			_, err := e.store.(runstore.MultiCommitter).CommitMulti(e.Context(), []runstore.Batch{one, two})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				e.probe.set(hooks{mute: true})
				e.create(e.store, "r", "other")
				id := runstore.RunID("r")
				if name == "create" {
					id = "new"
				}
				r := e.follow(id, 1)
				settled()
				if err := write(e); err != nil {
					e.Fatal(err)
				}
				synctest.Wait() // and no time passes
				e.want("follower", r, 1)
			})
		})
	}
}

func TestHintsOfFailedWrites(t *testing.T) {
	bubble(t, func(e *env) {
		e.probe.set(hooks{mute: true})
		e.create(e.store, "r")
		r := e.follow("r", 1)
		settled()
		before := e.probe.journals.Load()
		b := runstore.NewBatch("r", runstore.AtSeq(7))
		b.Writes = events(1)
		if _, err := e.store.Commit(e.Context(), b); !errors.Is(err, runstore.ErrConflict) {
			e.Fatalf("Commit = %v, want ErrConflict", err)
		}
		record := runstore.NewBatch("r", runstore.Unguarded("a test"))
		record.Put("key", nil)
		if _, err := e.store.Commit(e.Context(), record); err != nil {
			e.Fatal(err)
		}
		synctest.Wait()
		if n := e.probe.journals.Load() - before; n != 0 {
			e.Errorf("a refused write and one without events cost %d reads, want 0", n)
		}
		e.probe.set(hooks{mute: true, commit: func(runstore.Committed) (runstore.Committed, error) {
			return runstore.Committed{}, &runstore.OpError{Op: "commit", Err: runstore.ErrUnknownOutcome, Cause: io.EOF}
		}})
		if err := e.append(e.store, "r", 1); !errors.Is(err, runstore.ErrUnknownOutcome) {
			e.Fatalf("Commit = %v, want ErrUnknownOutcome", err)
		}
		synctest.Wait() // and no time passes
		e.want("after an unknown outcome", r, 1)
	})
}
