package sqlite_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// query returns the only row of a query on a database file.
func query[T any](t *testing.T, path, q string, args ...any) (value T) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if err := db.QueryRow(q, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return value
}

func withID(run runstore.RunID, id string, events int) runstore.Batch {
	b := runstore.NewBatch(run, runstore.Unguarded("test"))
	b.ID = runstore.BatchID(id)
	for range events {
		b.Append("test", nil)
	}
	return b
}

const countIDs = `SELECT count(*) FROM batches JOIN runs ON runs.no = batches.run WHERE runs.id = CAST(? AS BLOB)`

// TestBatchIDsAreBounded commits many batches with ids to one run and one to another run, by two
// handles in turn. The store remembers the newest of the first run and keeps little more.
func TestBatchIDsAreBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	var stores []*sqlite.Store
	for range 2 {
		s, err := sqlite.Open(t.Context(), path, &sqlite.Options{Synchronous: sqlite.Normal, Clock: embedded.NewHost()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		stores = append(stores, s)
	}
	for _, id := range []runstore.RunID{"busy", "quiet"} {
		if _, err := stores[0].CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	quiet := withID("quiet", "quiet", 1)
	if _, err := stores[0].Commit(t.Context(), quiet); err != nil {
		t.Fatal(err)
	}
	const n = 4 * runstore.RememberedBatches
	most := int64(0)
	for i := range n {
		if _, err := stores[i/10%2].Commit(t.Context(), withID("busy", fmt.Sprint(i), i%2)); err != nil {
			t.Fatal(err)
		}
		if i%sqlite.ForgetEvery == sqlite.ForgetEvery-2 { // before the next deletion
			most = max(most, query[int64](t, path, countIDs, "busy"))
		}
	}
	if want := int64(runstore.RememberedBatches + sqlite.ForgetEvery); most >= want {
		t.Errorf("%d ids of a run were stored at a time, want fewer than %d", most, want)
	}
	for i := n - runstore.RememberedBatches; i < n; i++ {
		done, err := stores[0].Commit(t.Context(), withID("busy", fmt.Sprint(i), i%2))
		if err != nil || !done.Replayed || done.LastSeq != runstore.Seq((i+1)/2) {
			t.Fatalf("repeat of batch %d of %d: got %+v, %v, want its first result, of seq %d", i, n, done, err, (i+1)/2)
		}
	}
	if done, err := stores[1].Commit(t.Context(), quiet); err != nil || !done.Replayed {
		t.Errorf("repeat on the other run: got %+v, %v, want its first result", done, err)
	}
}

// TestMigrationOfBatchIDs opens a file of schema version 1, which kept all ids without their order.
// The migration keeps the newest of each run.
func TestMigrationOfBatchIDs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	run := func(query string, args ...any) {
		t.Helper()
		if _, err := db.Exec(query, args...); err != nil {
			t.Fatalf("%.60s: %v", query, err)
		}
	}
	db.SetMaxOpenConns(1)
	run(sqlite.FirstSchema)
	run(`INSERT INTO store VALUES (1, 'incarnation', 0, 0, '', 0, 0, 0);
		PRAGMA application_id = 0x54617065; PRAGMA user_version = 1`)
	run("BEGIN")
	const n = 3 * runstore.RememberedBatches
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	name := func(i int) string { return fmt.Sprint(i * 7919 % 10007) } // in no order
	for no, r := range []struct {
		id      string
		batches int
		result  func(i int) runstore.Committed
	}{
		{"with events", n, func(i int) runstore.Committed {
			return runstore.Committed{FirstSeq: runstore.Seq(i + 1), LastSeq: runstore.Seq(i + 1), Time: began}
		}},
		// 10 ms make times of no, one and two digits behind the point.
		{"without events", n, func(i int) runstore.Committed {
			return runstore.Committed{LastSeq: 1, Time: began.Add(time.Duration(i) * 10 * time.Millisecond)}
		}},
		{"few", 3, func(i int) runstore.Committed { return runstore.Committed{LastSeq: 3, Time: began} }},
	} {
		run(`INSERT INTO runs VALUES (?, ?, 0, 0, 0, NULL, ?, 0, 0, '', 0, x'', x'', 0, 0, x'', x'', ?, x'')`,
			no+1, []byte(r.id), n, n+1)
		for i := range r.batches {
			result, err := json.Marshal(r.result(i))
			if err != nil {
				t.Fatal(err)
			}
			run(`INSERT INTO batches VALUES (?, ?, ?)`, no+1, name(i), result)
		}
	}
	run("COMMIT")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	s := openAt(t, path, embedded.NewHost())
	for id, want := range map[runstore.RunID]int{"with events": runstore.RememberedBatches, "without events": runstore.RememberedBatches, "few": 3} {
		if got := query[int](t, path, countIDs, string(id)); got != want {
			t.Errorf("%q: %d ids are left, want %d", id, got, want)
		}
		total := n
		if want < n/3 {
			total = want
		}
		for i := total - want; i < total; i++ {
			if done, err := s.Commit(t.Context(), withID(id, name(i), 1)); err != nil || !done.Replayed {
				t.Fatalf("%q: repeat of batch %d of %d: got %+v, %v, want its first result", id, i, total, done, err)
			}
		}
		// The order continues: new ids push the oldest out.
		for i := range sqlite.ForgetEvery {
			if _, err := s.Commit(t.Context(), withID(id, fmt.Sprint("new-", i), 0)); err != nil {
				t.Fatal(err)
			}
		}
		if done, err := s.Commit(t.Context(), withID(id, "new-0", 0)); err != nil || !done.Replayed {
			t.Errorf("%q: repeat of a new batch: got %+v, %v, want its first result", id, done, err)
		}
		if got := query[int](t, path, countIDs, string(id)); got >= runstore.RememberedBatches+sqlite.ForgetEvery {
			t.Errorf("%q: %d ids are stored after %d new ones, want fewer than %d", id, got, sqlite.ForgetEvery, runstore.RememberedBatches+sqlite.ForgetEvery)
		}
	}
}

// TestHandlesInTurn commits by two handles in turn: to one run batches with ids and without events,
// to another the reverse. Each handle's cached heads are stale every time, and results and events
// are still numbered without gaps.
func TestHandlesInTurn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	host := embedded.NewHost()
	stores := []*sqlite.Store{openAt(t, path, host), openAt(t, path, host)}
	for _, id := range []runstore.RunID{"results", "events"} {
		if _, err := stores[0].CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	const n = 10
	for i := range n {
		if _, err := stores[i%2].Commit(t.Context(), withID("results", fmt.Sprint(i), 0)); err != nil {
			t.Fatal(err)
		}
		done, err := stores[i%2].Commit(t.Context(), withID("events", "", 1))
		if want := runstore.Seq(i + 1); err != nil || done.LastSeq != want {
			t.Fatalf("got last seq %d, %v, want %d", done.LastSeq, err, want)
		}
	}
	if got := query[string](t, path, `SELECT group_concat(no) FROM (SELECT no FROM batches ORDER BY no)`); got != "1,2,3,4,5,6,7,8,9,10" {
		t.Errorf("the %d results have the numbers %s", n, got)
	}
}

// TestStoredResults stores results with each field set and unset. They are read with package json, as former
// versions of this package do.
func TestStoredResults(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for _, want := range []sqlite.StoredResult{
		{Committed: runstore.Committed{Time: at}},
		{Committed: runstore.Committed{Time: at.Add(time.Microsecond), FirstSeq: 7, LastSeq: 1 << 60, Versions: []runstore.Version{0}}},
		{Committed: runstore.Committed{Time: at.Add(-time.Second / 2), LastSeq: 9, Versions: []runstore.Version{1, 0, 1 << 60}}, MultiCommitID: []byte{0, 255, 62, 63}},
		{Committed: runstore.Committed{Time: at}, Token: 1 << 60, Former: runstore.EndExpired},
	} {
		var got sqlite.StoredResult
		if err := json.Unmarshal(want.Text(), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", want.Text(), got, err, want)
		}
	}
}
