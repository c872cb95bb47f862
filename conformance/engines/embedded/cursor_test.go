package embedded_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// FuzzCursor presents arbitrary cursors to the stores of this process. A cursor is refused as
// invalid, or resumes after some place of the index.
func FuzzCursor(f *testing.F) {
	indexes := []runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable, "due"}
	stores := map[string]runstore.RunStore{}
	for name, h := range map[string]conformance.Harness{"memory": embedded.Memory(), "sqlite": embedded.SQLiteInMemory(sqlite.Options{})} {
		store, err := h.New(f).Open(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() {
			if err := store.Close(); err != nil {
				f.Error(err)
			}
		})
		stores[name] = store
		for i := range 5 {
			id := runstore.RunID(fmt.Sprintf("run %d", i))
			if _, err := store.CreateRun(f.Context(), runstore.RunSpec{ID: id, Runnable: runstore.After(0)}); err != nil {
				f.Fatal(err)
			}
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			b.Put("record", []byte("value"), runstore.Place{Index: "due", At: runstore.At(time.Unix(int64(1+i/2), 0))})
			if _, err := store.Commit(f.Context(), b); err != nil {
				f.Fatal(err)
			}
		}
		for n, index := range indexes {
			for e, err := range runstore.Entries(f.Context(), store, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
				if err != nil {
					f.Fatal(err)
				}
				f.Add(uint8(n), string(e.Cursor))
				f.Add(uint8(n+1), string(e.Cursor))
			}
		}
	}
	f.Add(uint8(0), "bnVsbA")       // null
	f.Add(uint8(0), "e30")          // {}
	f.Add(uint8(0), "eyJ4IjoxfQ")   // {"x":1}
	f.Add(uint8(0), "e317")         // {}{
	f.Add(uint8(0), "not base64 !") // nor a cursor
	f.Fuzz(func(t *testing.T, index uint8, cursor string) {
		for name, store := range stores {
			q := runstore.IndexQuery{Index: indexes[int(index)%len(indexes)], After: runstore.Cursor(cursor), Until: runstore.EndOfTime, Limit: 3}
			page, err := store.ScanIndex(t.Context(), q)
			switch {
			case err == nil:
			case errors.Is(err, runstore.ErrInvalid), errors.Is(err, runstore.ErrTooLarge):
				continue
			default:
				t.Fatalf("%s: %v", name, err)
			}
			for i := 1; i < len(page); i++ {
				if page[i].At.Before(page[i-1].At) {
					t.Errorf("%s: the page is not in order: %v, %v", name, page[i-1], page[i])
				}
			}
		}
	})
}
