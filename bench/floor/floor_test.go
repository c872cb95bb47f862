package floor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/engines"
	"github.com/tapestore/tapestore/bench/floor"
	"github.com/tapestore/tapestore/runstore"
)

// eachFloor runs a test on the floor of every engine, with a store open beside it.
func eachFloor(t *testing.T, test func(t *testing.T, f floor.Floor)) {
	for _, starter := range engines.Named("sqlite", "postgres", "alloydb", "bigtable", "spanner") {
		t.Run(starter.Name, func(t *testing.T) {
			target, err := starter.Start(t.Context())
			if err != nil && starter.Missing(err) && os.Getenv("CI") == "" {
				t.Skipf("not applicable: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			closing(t, target.Close)
			store, err := target.NewStore(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			closing(t, store.Drop)
			handle, err := store.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			closing(t, handle.Close)
			opened, err := store.Floor(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			closing(t, opened.Close)
			test(t, opened.(floor.Floor))
		})
	}
}

func closing(t *testing.T, end func() error) {
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

var data = []byte("data of an event or a record")

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stores fails the test unless the floor has stored the given numbers of events and of puts of
// records.
func stores(t *testing.T, f floor.Floor, events, plainEvents, puts, plainPuts int) {
	t.Helper()
	e, pe, err := f.Stored(t.Context())
	must(t, err)
	p, pp, err := f.StoredRecords(t.Context())
	must(t, err)
	if got, want := [4]int{e, pe, p, pp}, [4]int{events, plainEvents, puts, plainPuts}; got != want {
		t.Fatalf("events, plain events, puts, plain puts: %v are stored, want %v", got, want)
	}
}

func TestFloor(t *testing.T) {
	eachFloor(t, func(t *testing.T, f floor.Floor) {
		t.Run("round trip", func(t *testing.T) { roundTrip(t, f) })
		t.Run("stale token", func(t *testing.T) { staleToken(t, f) })
		t.Run("repeats", func(t *testing.T) { repeats(t, f) })
		t.Run("one run", func(t *testing.T) { oneRun(t, f) })
	})
}

func roundTrip(t *testing.T, f floor.Floor) {
	must(t, f.Hold(t.Context(), 2))
	writes := []bench.Write{
		{Events: 1, Data: data},
		{Events: 1, Data: data, BatchID: "first"},
		{Data: data, Key: "state"},
		{Events: 1, Data: data, BatchID: "second", Key: "effect", New: true},
		{Events: 10, Data: data, Key: "state", Records: 3},
		{Events: 10, Data: data, BatchID: "third"},
		{Events: 1, Each: [][]byte{[]byte("one")}},
		{Events: 2, Each: [][]byte{[]byte("first"), []byte("second")}, Data: data, Key: "state"},
	}
	for _, w := range writes {
		if f.About(w) == "" {
			t.Error("no text about the statement")
		}
		for run := range 2 {
			if err := f.Commit(t.Context(), run, w); err != nil {
				t.Fatalf("commit %+v: %v", w, err)
			}
			if err := f.Insert(t.Context(), run, w); err != nil {
				t.Fatalf("insert %+v: %v", w, err)
			}
		}
	}
	stores(t, f, 2*26, 2*26, 2*6, 2*6)
	must(t, f.Hold(t.Context(), 1))
	stores(t, f, 0, 0, 0, 0)
}

// staleToken takes a run over and checks that every commit of its former holder is refused.
func staleToken(t *testing.T, f floor.Floor) {
	must(t, f.Hold(t.Context(), 2))
	writes := []bench.Write{
		{Events: 1, Data: data},
		{Data: data, Key: "state"},
		{Events: 10, Data: data, Key: "state", Records: 3, BatchID: "id"},
	}
	must(t, f.Commit(t.Context(), 0, writes[0]))
	must(t, f.TakeOver(t.Context(), 0))
	for _, w := range writes {
		if err := f.Commit(t.Context(), 0, w); !errors.Is(err, floor.ErrStale) {
			t.Fatalf("a commit with a stale token: %v, want ErrStale", err)
		}
	}
	stores(t, f, 1, 0, 0, 0)
	must(t, f.Commit(t.Context(), 1, writes[0])) // the other run was not taken over
	stores(t, f, 2, 0, 0, 0)
}

// repeats commits under an id that exists, and puts a record that exists.
func repeats(t *testing.T, f floor.Floor) {
	must(t, f.Hold(t.Context(), 2))
	must(t, f.Commit(t.Context(), 0, bench.Write{Events: 1, Data: data, BatchID: "id", Key: "key", New: true}))
	for _, w := range []bench.Write{
		{Events: 1, Data: data, BatchID: "id"},
		{Events: 1, Data: data, BatchID: "other", Key: "key", New: true},
		{Data: data, Key: "key", New: true},
	} {
		if err := f.Commit(t.Context(), 0, w); err == nil || errors.Is(err, floor.ErrStale) {
			t.Fatalf("a repeat of %+v: %v, want another error than ErrStale", w, err)
		}
	}
	stores(t, f, 1, 0, 1, 0)
	must(t, f.Commit(t.Context(), 1, bench.Write{Events: 1, Data: data, BatchID: "id", Key: "key", New: true})) // of another run
	must(t, f.Commit(t.Context(), 0, bench.Write{Events: 1, Data: data, BatchID: "other", Key: "key"}))
	stores(t, f, 3, 0, 3, 0)
}

// oneRun has many writers on one run, which write more events than a row of Bigtable holds.
func oneRun(t *testing.T, f floor.Floor) {
	must(t, f.Hold(t.Context(), 1))
	const writers, writes = 4, 10
	var all sync.WaitGroup
	errs := make(chan error, writers)
	for i := range writers {
		all.Go(func() {
			errs <- func() error {
				for n := range writes {
					w := bench.Write{Events: 3, Data: data, BatchID: fmt.Sprintf("%d-%d", i, n)}
					if err := errors.Join(f.Commit(context.WithoutCancel(t.Context()), 0, w), f.Insert(t.Context(), 0, w)); err != nil {
						return err
					}
				}
				return nil
			}()
		})
	}
	all.Wait()
	for range writers {
		must(t, <-errs)
	}
	stores(t, f, 3*writers*writes, 3*writers*writes, 0, 0)
}

// TestAt opens the floor of a store by its URL.
func TestAt(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "tape.db")
	s, err := runstore.Open(t.Context(), url)
	must(t, err)
	closing(t, s.Close)
	open, err := floor.At(url)
	must(t, err)
	f, err := open(t.Context())
	must(t, err)
	roundTrip(t, f.(floor.Floor))
	must(t, f.Close())
	for _, none := range []string{"memory:", "sqlite::memory:"} {
		if open, err := floor.At(none); open != nil || err != nil {
			t.Errorf("the floor of %s: there is one, or %v", none, err)
		}
	}
	for _, there := range []string{"postgres://user:secret@localhost/db", "alloydb://user:secret@localhost/db", "bigtable://p/i/t", "spanner://p/inst/db"} {
		if open, err := floor.At(there); open == nil || err != nil {
			t.Errorf("the floor of %s: %v", there, err)
		}
	}
	if _, err := floor.At("postgres://user:secret@localhost/db?nonsense=1"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a wrong URL: %v", err)
	}
}
