package sqlite_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	driversqlite "modernc.org/sqlite"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// The benchmarks print both sides of each comparison from one run, in turn, so
// that a machine whose speed drifts does not favour one of them:
//
//	go test -run '^$' -bench . ./runstore/sqlite

// rounds is how often the two sides of a comparison take turns.
const rounds = 8

// side is one side of a comparison: do performs n operations.
type side struct {
	name string
	do   func(n int)
}

// compare runs the sides in turn, b.N operations each in total, and reports every
// side's operations per second and its ratio to the last one, the yardstick.
func compare(b *testing.B, sides ...side) {
	b.Helper()
	spent := make([]time.Duration, len(sides))
	n := max(1, b.N/rounds)
	for range rounds {
		for i, s := range sides {
			began := time.Now()
			s.do(n)
			spent[i] += time.Since(began)
		}
	}
	base := spent[len(spent)-1].Seconds()
	for i, s := range sides {
		b.ReportMetric(float64(n*rounds)/spent[i].Seconds(), s.name+"/s")
		if i < len(sides)-1 {
			b.ReportMetric(base/spent[i].Seconds(), s.name+"-ratio")
		}
	}
	b.ReportMetric(0, "ns/op") // of no meaning: an operation of each side
}

var payload = make([]byte, 100)

func openBench(b *testing.B, opts *sqlite.Options) *sqlite.Store {
	b.Helper()
	s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "tape.db"), opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// leases creates n runs and takes their leases.
func leases(b *testing.B, s runstore.RunStore, n int) []runstore.Lease {
	b.Helper()
	all := make([]runstore.Lease, n)
	for i := range all {
		spec := runstore.RunSpec{
			ID:    runstore.RunID(fmt.Sprintf("f47ac10b-58cc-4372-a567-0e02b2c3%04d", i)),
			Lease: &runstore.LeaseSpec{Owner: "bench", TTL: runstore.MaxTTL},
		}
		created, err := s.CreateRun(b.Context(), spec)
		if err != nil {
			b.Fatal(err)
		}
		all[i] = created.Lease
	}
	return all
}

// appendUnder commits one event under a lease.
func appendUnder(b *testing.B, s runstore.RunStore, lease runstore.Lease) {
	appendAs(b, s, lease, "")
}

// appendAs commits one event under a lease and an id, if any.
func appendAs(b *testing.B, s runstore.RunStore, lease runstore.Lease, id runstore.BatchID) {
	batch := runstore.NewBatch(lease.Run, lease.Fence())
	batch.ID = id
	batch.Append("event", payload)
	if _, err := s.Commit(context.Background(), batch); err != nil {
		b.Error(err)
	}
}

// BenchmarkGroupCommit compares 64 concurrent committers with group commit on and
// off, synchronous=FULL: each on a run of its own, and all on one run.
func BenchmarkGroupCommit(b *testing.B) {
	for _, runs := range []int{64, 1} {
		b.Run(fmt.Sprintf("committers=64/runs=%d", runs), func(b *testing.B) {
			// Each committer makes whole rounds of its own.
			committers := func(group int) func(n int) {
				s := openBench(b, &sqlite.Options{MaxGroup: group})
				held := leases(b, s, runs)
				return func(n int) {
					var wg sync.WaitGroup
					for i := range 64 {
						wg.Go(func() {
							for range max(1, n/64) {
								appendUnder(b, s, held[i%runs])
							}
						})
					}
					wg.Wait()
				}
			}
			compare(b, side{"grouped", committers(0)}, side{"single", committers(1)})
		})
	}
}

// BenchmarkOneCommitter compares a fenced append with hand-written loops through
// the same driver with the same pragmas: one that does the same work, and one
// that only inserts.
func BenchmarkOneCommitter(b *testing.B) {
	s := openBench(b, nil)
	lease := leases(b, s, 1)[0]
	store := side{"commit", func(n int) {
		for range n {
			appendUnder(b, s, lease)
		}
	}}
	var ids int
	named := side{"commit-with-id", func(n int) {
		for range n {
			ids++
			appendAs(b, s, lease, runstore.BatchID(fmt.Sprintf("batch-%d", ids)))
		}
	}}
	b.Run("against=update+insert", func(b *testing.B) { compare(b, store, side{"handwritten", handWritten(b, true, false)}) })
	b.Run("against=update+insert+id", func(b *testing.B) { compare(b, named, side{"handwritten", handWritten(b, true, true)}) })
	b.Run("against=insert", func(b *testing.B) { compare(b, store, side{"bare-insert", handWritten(b, false, false)}) })
}

// BenchmarkLongJournal compares commits at event 1,000,000 of a run with commits
// at event 1,000 of another, each in a database of its own, and reads the long one
// page by page.
func BenchmarkLongJournal(b *testing.B) {
	journal := func(events int) (*sqlite.Store, runstore.Lease) {
		s := openBench(b, nil)
		lease := leases(b, s, 1)[0]
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range events / 50 {
					appendUnder(b, s, lease)
				}
			})
		}
		wg.Wait()
		return s, lease
	}
	short, shortLease := journal(1_000)
	long, longLease := journal(1_000_000)
	b.Run("commit", func(b *testing.B) {
		at := func(s *sqlite.Store, lease runstore.Lease) func(int) {
			return func(n int) {
				for range n {
					appendUnder(b, s, lease)
				}
			}
		}
		compare(b, side{"at-1000000", at(long, longLease)}, side{"at-1000", at(short, shortLease)})
	})
	b.Run("read", func(b *testing.B) { // once, whatever b.N: a pass is long enough
		var peak, n uint64
		began := time.Now()
		for e, err := range runstore.Journal(b.Context(), long, longLease.Run, 1) {
			if err != nil {
				b.Fatal(err)
			}
			if n++; uint64(e.Seq) != n {
				b.Fatalf("seq %d follows %d", e.Seq, n-1)
			}
			if n%100_000 == 0 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapAlloc)
			}
		}
		b.ReportMetric(float64(peak)/(1<<20), "peak-heap-MB")
		b.ReportMetric(float64(n)/time.Since(began).Seconds(), "events/s")
		b.ReportMetric(0, "ns/op")
	})
}

// BenchmarkBatchIDs compares commits that carry an id: at batch 1,000,000 of a run, at batch
// 1,000 of another, each in a database of its own, and without an id.
func BenchmarkBatchIDs(b *testing.B) {
	commits := func(before int, named bool) func(n int) {
		s := openBench(b, nil)
		lease := leases(b, s, 1)[0]
		var last atomic.Int64
		commit := func() {
			batch := runstore.NewBatch(lease.Run, lease.Fence())
			batch.Append("event", payload)
			if named {
				batch.ID = runstore.BatchID(fmt.Sprintf("batch-%d", last.Add(1)))
			}
			if _, err := s.Commit(context.Background(), batch); err != nil {
				b.Error(err)
			}
		}
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range before / 50 {
					commit()
				}
			})
		}
		wg.Wait()
		return func(n int) {
			for range n {
				commit()
			}
		}
	}
	compare(b, side{"at-1000000", commits(1_000_000, true)}, side{"at-1000", commits(1_000, true)}, side{"without-id", commits(1_000, false)})
}

// handWritten returns the loop that an expert would write without this package, with the
// guarantees of the package: one immediate transaction of an UPDATE of the run by the number and
// the last seq that the loop remembers, under token, grant id and owner, and an INSERT of the event
// with its seq, time, token and owner; or the INSERT alone. named adds an INSERT of the batch's id
// and result. There is no feed beside the events' order, no witness and no index of a run's events.
func handWritten(b *testing.B, fenced, named bool) func(n int) {
	b.Helper()
	c := rawConn(b)
	statement := func(query string) func(args ...driver.Value) int64 {
		s, err := c.(driver.ConnPrepareContext).PrepareContext(b.Context(), query)
		if err != nil {
			b.Fatal(err)
		}
		var values []driver.NamedValue
		return func(args ...driver.Value) int64 {
			values = values[:0]
			for i, v := range args {
				values = append(values, driver.NamedValue{Ordinal: i + 1, Value: v})
			}
			result, err := s.(driver.StmtExecContext).ExecContext(context.Background(), values)
			if err != nil {
				b.Fatal(err)
			}
			changed, err := result.RowsAffected()
			if err != nil {
				b.Fatal(err)
			}
			return changed
		}
	}
	begin, commit := statement("BEGIN IMMEDIATE"), statement("COMMIT")
	update := statement("UPDATE runs SET seq = ? WHERE no = ? AND seq = ? AND token = ? AND grant_id = ? AND owner = ?")
	insert := statement("INSERT INTO events (run, seq, kind, data, time, token, owner) VALUES (?, ?, ?, ?, ?, ?, ?)")
	remember := statement("INSERT INTO batches (run, id, seq, time) VALUES (?, ?, ?, ?)")
	seq := int64(0)
	return func(n int) {
		for range n {
			begin()
			if fenced && update(seq+1, int64(1), seq, int64(1), grantOfBench, []byte("bench")) != 1 {
				b.Fatal("the fence is stale")
			}
			seq++
			now := time.Now().UnixMicro()
			insert(int64(1), seq, "event", payload, now, int64(1), []byte("bench"))
			if named {
				remember(int64(1), fmt.Sprintf("batch-%d", seq), seq, now)
			}
			commit()
		}
	}
}

const grantOfBench = "01890a5d-ac96-774b-bcce-b302099a8057"

func rawConn(b *testing.B) driver.Conn {
	b.Helper()
	name := "file:" + filepath.Join(b.TempDir(), "raw.db") + "?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
	c, err := new(driversqlite.Driver).Open(name)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	_, err = c.(driver.ExecerContext).ExecContext(b.Context(), `
		CREATE TABLE runs (no INTEGER PRIMARY KEY, seq INTEGER, token INTEGER, grant_id TEXT, owner BLOB) STRICT;
		CREATE TABLE events (pos INTEGER PRIMARY KEY, run INTEGER, seq INTEGER, kind TEXT, data BLOB, time INTEGER, token INTEGER, owner BLOB) STRICT;
		CREATE TABLE batches (run INTEGER, id TEXT, seq INTEGER, time INTEGER, PRIMARY KEY (run, id)) STRICT, WITHOUT ROWID;
		INSERT INTO runs VALUES (1, 0, 1, '`+grantOfBench+`', CAST('bench' AS BLOB))`, nil)
	if err != nil {
		b.Fatal(err)
	}
	return c
}
