package archive_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// newMemory returns a handle on an empty memory store.
func newMemory(t *testing.T) runstore.RunStore {
	t.Helper()
	return closing(t, memory.New(nil).Open())
}

// newSQLite returns a handle on an empty SQLite store in memory.
func newSQLite(t *testing.T) runstore.RunStore {
	t.Helper()
	s, err := sqlite.Open(t.Context(), ":memory:", nil)
	if err != nil {
		t.Fatal(err)
	}
	return closing(t, s)
}

func closing(t *testing.T, s runstore.RunStore) runstore.RunStore {
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// randomStore fills a store with runs that have everything that can be moved.
func randomStore(t *testing.T, s runstore.RunStore, seed uint64, runs int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	manager, _ := runstore.As[runstore.EpochManager](s)
	for n := range runs {
		if r.IntN(12) == 0 {
			must(manager.RaiseEpoch(t.Context(), fmt.Sprintf("reason %d", n)))(t)
		}
		randomRun(t, s, r, runstore.RunID(randomName(r, "run", n)))
	}
}

// randomName returns a name that may have any bytes.
func randomName(r *rand.Rand, kind string, n int) string {
	name := fmt.Sprintf("%s-%d-%d", kind, n, r.IntN(1000))
	switch r.IntN(4) {
	case 0:
		name += "\xff\x00<&>"
	case 1:
		name += "é\u2028\"\\"
	}
	return name
}

func randomBytes(r *rand.Rand) []byte {
	b := make([]byte, []int{0, 1, 20, 300, 5000}[r.IntN(5)])
	for i := range b {
		if b[i] = byte('a' + r.IntN(26)); r.IntN(200) == 0 {
			b[i] = byte(r.IntN(256))
		}
	}
	return b
}

func randomRun(t *testing.T, s runstore.RunStore, r *rand.Rand, id runstore.RunID) {
	t.Helper()
	must(s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Status: runstore.Status(r.IntN(9)), Unlisted: r.IntN(4) == 0}))(t)
	var keys []runstore.RecordKey
	for k := range r.IntN(6) {
		keys = append(keys, runstore.RecordKey(randomName(r, "key", k)))
	}
	keys = append(keys, runstore.SummaryKey)
	var fence runstore.Fence
	for range r.IntN(12) {
		if r.IntN(3) == 0 {
			granted := must(s.AcquireLease(t.Context(), runstore.AcquireRequest{
				Run: id, Preempt: "test", LeaseSpec: runstore.LeaseSpec{Owner: runstore.Owner(randomName(r, "owner", 0)), TTL: time.Minute},
			}))(t)
			fence = granted.Fence()
		}
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		if !fence.IsZero() {
			b = runstore.NewBatch(id, fence)
		}
		for range r.IntN(4) {
			b.Append(randomName(r, "kind", 0), randomBytes(r))
		}
		for _, key := range keys {
			switch r.IntN(5) {
			case 0:
				b.Delete(key)
			case 1, 2:
				var places []runstore.Place
				for p := range r.IntN(3) {
					at := time.Unix(1_700_000_000+r.Int64N(1e8), r.Int64N(1e6)*1000)
					places = append(places, runstore.Place{Index: runstore.IndexName(fmt.Sprintf("queue-%d", p)), At: runstore.At(at)})
				}
				b.Put(key, randomBytes(r), places...)
			}
		}
		if r.IntN(3) == 0 {
			status := runstore.Status(r.IntN(9))
			b.Status = &status
		}
		if r.IntN(3) == 0 {
			b.Runnable = runstore.At(time.Unix(1_700_000_000+r.Int64N(1e8), 0))
		}
		must(s.Commit(t.Context(), b))(t)
	}
	if r.IntN(10) == 0 {
		b := runstore.NewBatch(id, runstore.Unguarded("test"))
		b.Purge = true
		must(s.Commit(t.Context(), b))(t)
	}
}

// export returns the archive of a store.
func export(t *testing.T, s runstore.RunStore) []byte {
	t.Helper()
	var b bytes.Buffer
	must(archive.Export(t.Context(), s, &b, &archive.ExportOptions{Label: "test"}))(t)
	return b.Bytes()
}

func stream(b []byte) *archive.Source { return archive.Stream("test.jsonl", bytes.NewReader(b)) }

// mustEqual fails unless the copy equals the original.
func mustEqual(t *testing.T, original, copied runstore.RunStore) archive.VerifyReport {
	t.Helper()
	report := must(archive.Verify(t.Context(), original, copied, &archive.VerifyOptions{
		Found: func(d archive.Difference) { t.Error(d) },
	}))(t)
	if report.Differing != 0 {
		t.Fatalf("%+v", report)
	}
	return report
}
