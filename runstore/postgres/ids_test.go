package postgres_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// usual returns what package tape commits: an event, an id, and a record that is at a version.
func usual(l runstore.Lease, id runstore.BatchID, key runstore.RecordKey, at runstore.Version, places ...runstore.Place) runstore.Batch {
	b := appending(l, string(id))
	b.ID = id
	b.Require(runstore.AtVersion(key, at))
	b.Put(key, []byte(id), places...)
	return b
}

// A commit that waited for the row of its run while another was applied is judged by what that
// one left: its results and its records, which the waiting statement had read before. It takes
// two round trips, and a third one where an index refuses what the other has added.
func TestCommitThatLostAppliesNothing(t *testing.T) {
	t.Parallel()
	withID := func(l runstore.Lease, id runstore.BatchID) runstore.Batch {
		b := appending(l, string(id))
		b.ID = id
		return b
	}
	for _, tc := range []struct {
		name          string
		first, second func(l runstore.Lease) runstore.Batch
		want          error
		replayed      bool
		journal       []string
		sent          int
	}{
		{"the same id", func(l runstore.Lease) runstore.Batch { return withID(l, "1") }, func(l runstore.Lease) runstore.Batch { return withID(l, "1") },
			nil, true, []string{"1"}, 3},
		{"the same new record", func(l runstore.Lease) runstore.Batch { return usual(l, "1", "new", 0) }, func(l runstore.Lease) runstore.Batch { return usual(l, "2", "new", 0) },
			runstore.ErrConflict, false, []string{"1"}, 3},
		{"the same version", func(l runstore.Lease) runstore.Batch { return usual(l, "1", "old", 1) }, func(l runstore.Lease) runstore.Batch { return usual(l, "2", "old", 1) },
			runstore.ErrConflict, false, []string{"1"}, 2},
		{"the same version, first without an id", func(l runstore.Lease) runstore.Batch { b := usual(l, "1", "old", 1); b.ID = ""; return b },
			func(l runstore.Lease) runstore.Batch { return usual(l, "2", "old", 1) }, runstore.ErrConflict, false, []string{"1"}, 2},
		{"the same version, first without an event", func(l runstore.Lease) runstore.Batch { b := usual(l, "1", "old", 1); b.Events = nil; return b },
			func(l runstore.Lease) runstore.Batch { return usual(l, "2", "old", 1) }, runstore.ErrConflict, false, nil, 2},
		{"the same version, second with two events", func(l runstore.Lease) runstore.Batch { return usual(l, "1", "old", 1) }, func(l runstore.Lease) runstore.Batch {
			b := usual(l, "2", "old", 1)
			b.Append("test", []byte("second"))
			return b
		}, runstore.ErrConflict, false, []string{"1"}, 2},
		{"a version without a record", func(l runstore.Lease) runstore.Batch { return usual(l, "1", "old", 1) }, func(l runstore.Lease) runstore.Batch {
			b := appending(l, "2")
			b.Require(runstore.AtVersion("old", 1))
			return b
		}, runstore.ErrConflict, false, []string{"1"}, 2},
		{"nothing in common", func(l runstore.Lease) runstore.Batch { return usual(l, "1", "new", 0) }, func(l runstore.Lease) runstore.Batch { return usual(l, "2", "old", 1) },
			nil, false, []string{"1", "2"}, 2},
	} {
		for _, mode := range []string{"cache_statement", "simple_protocol"} {
			t.Run(tc.name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				address := database(t)
				w := &wire{}
				s := open(t, with(address, "default_query_exec_mode="+mode), w.through)
				lease := hold(t, s, "run")
				b := runstore.NewBatch("run", lease.Fence())
				b.Put("old", []byte("before"))
				commit(t, s, b)

				other := connect(t, address)
				exec(t, other, "BEGIN")
				sql, args := postgres.StatementOf(s, tc.first(lease))
				exec(t, other, sql, args...)
				w.lose(none, "")
				var done runstore.Committed
				answered := make(chan error, 1)
				go func() {
					var err error
					done, err = s.Commit(t.Context(), tc.second(lease))
					answered <- err
				}()
				awaitLocked(t, address, 1)
				exec(t, other, "COMMIT")
				if err := <-answered; !errors.Is(err, tc.want) || (tc.want == nil) != (err == nil) {
					t.Errorf("got error %v, want %v", err, tc.want)
				}
				if last := runstore.Seq(len(tc.journal)); tc.want == nil && (done.Replayed != tc.replayed || done.FirstSeq != last || done.LastSeq != last) {
					t.Errorf("got %+v, want seq %d, replayed: %v", done, last, tc.replayed)
				}
				wantJournal(t, s, "run", tc.journal...)
				if n := len(w.sent()); n != tc.sent {
					t.Errorf("%d statements were sent, want %d", n, tc.sent)
				}
			})
		}
	}
}

// Commits to runs of their own that have ids and records share one statement. A repeat gets
// its first result, and a version that has changed keeps out only its own.
func TestCommitsWithIDsShareAStatement(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			w := &wire{}
			s := open(t, with(address, "default_query_exec_mode="+mode), w.through)
			const n, repeat, late, updated = 9, 3, 5, 7
			leases := holdMany(t, s, n)
			for _, l := range leases {
				commit(t, s, usual(l, "before", "key", 0, runstore.Place{Index: "before", At: runstore.After(0)}))
			}
			commit(t, s, usual(leases[updated], "update", "key", 1))
			batch := func(i int) runstore.Batch {
				id, version := runstore.BatchID(fmt.Sprint("batch ", i)), runstore.Version(1)
				switch i {
				case repeat:
					id, version = "before", 0
				case late:
					version = 0
				case updated:
					version = 2
				}
				b := usual(leases[i], id, "key", version, runstore.Place{Index: "after", At: runstore.After(0)})
				if i%2 == 0 {
					b.Append("test", []byte("second"))
					b.Put("another", nil)
					b.Records[1].Event = 1
				}
				return b
			}
			done := make([]runstore.Committed, n)
			errs := coalesced(t, s, n, func(i int) (err error) {
				done[i], err = s.Commit(t.Context(), batch(i))
				return err
			}, func() { w.lose(none, "") })
			if sent := len(w.sent()); sent != 3 {
				t.Errorf("%d statements were sent, want one for all, and one for the repeat and the late one each", sent)
			}
			for i, err := range errs {
				if i == late {
					var conflict *runstore.ConflictError
					if !errors.As(err, &conflict) || conflict.Current != 1 {
						t.Errorf("the late one: got %v, want ErrConflict at version 1", err)
					}
					wantJournal(t, s, leases[i].Run, "before")
					// What was refused is not remembered.
					again := usual(leases[i], "batch 5", "key", 1, runstore.Place{Index: "after", At: runstore.After(0)})
					if done := commit(t, s, again); done.Replayed || done.FirstSeq != 2 {
						t.Errorf("the late one at the right version: got %+v, want seq 2", done)
					}
					continue
				}
				want := runstore.Committed{FirstSeq: 2, LastSeq: 2, Versions: []runstore.Version{2}}
				if i%2 == 0 {
					want.LastSeq, want.Versions = 3, []runstore.Version{2, 1}
				}
				if i == updated {
					want.FirstSeq, want.LastSeq, want.Versions = 3, 3, []runstore.Version{3}
				}
				if i == repeat {
					want = runstore.Committed{FirstSeq: 1, LastSeq: 1, Versions: []runstore.Version{1}, Replayed: true}
				}
				want.Time = done[i].Time
				if err != nil || want.Time.IsZero() || fmt.Sprint(done[i]) != fmt.Sprint(want) {
					t.Errorf("commit %d: got %+v, %v, want %+v", i, done[i], err, want)
				}
				want.Replayed = true
				if again := commit(t, s, batch(i)); fmt.Sprint(again) != fmt.Sprint(want) {
					t.Errorf("commit %d, repeated: got %+v, want %+v", i, again, want)
				}
			}
			for index, want := range map[runstore.IndexName]int{"before": 1, "after": n - 1} {
				entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: 100})
				if err != nil || len(entries) != want {
					t.Errorf("index %s has %d entries, %v, want %d", index, len(entries), err, want)
				}
			}
			records, err := s.ReadRecords(t.Context(), leases[0].Run, runstore.RecordQuery{Keys: []runstore.RecordKey{"another", "key"}})
			if err != nil || len(records) != 2 || records[0].Updated.Seq != 3 || records[1].Created.Seq != 1 || records[1].Updated.Seq != 2 || string(records[1].Value) != "batch 0" {
				t.Errorf("got the records %+v, %v", records, err)
			}
		})
	}
}

// Appends with ids to one run that come together share a statement, each with its own result.
func TestGroupWithIDs(t *testing.T) {
	t.Parallel()
	for _, repeats := range []bool{false, true} {
		t.Run(fmt.Sprint("repeats: ", repeats), func(t *testing.T) {
			t.Parallel()
			address := database(t)
			w := &wire{}
			s := open(t, address, w.through)
			lease := hold(t, s, "run")
			const n = 8
			batch := func(i int) runstore.Batch {
				b := appending(lease, fmt.Sprint(i), "second")
				b.ID = runstore.BatchID(fmt.Sprint(i))
				return b
			}
			first := commit(t, s, batch(0))
			done := make([]runstore.Committed, n+1)
			errs := grouped(t, s, address, n, func(i int) (err error) {
				b := batch(i)
				if i == 0 {
					b.ID = "the first"
				}
				if i == 4 && repeats {
					b = batch(0)
				}
				done[i], err = s.Commit(t.Context(), b)
				return err
			}, func() { w.lose(none, "") })
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for i := 1; i <= n; i++ {
				want := done[i]
				if i == 4 && repeats {
					want = first
				}
				events, err := s.ReadJournal(t.Context(), "run", want.FirstSeq, 2)
				if id := fmt.Sprint(i); err != nil || want.LastSeq != want.FirstSeq+1 || i != 4 && string(events[0].Data) != id {
					t.Errorf("commit %d: got %+v, where the journal has %+v, %v", i, want, events, err)
				}
				if done[i].Replayed != (i == 4 && repeats) || done[i].FirstSeq != want.FirstSeq {
					t.Errorf("commit %d: got %+v, want %+v", i, done[i], want)
				}
				if i == 4 && repeats {
					continue
				}
				if again := commit(t, s, batch(i)); !again.Replayed || again.FirstSeq != want.FirstSeq || again.LastSeq != want.LastSeq {
					t.Errorf("commit %d, repeated: got %+v, want %+v", i, again, want)
				}
			}
			if run, err := s.GetRun(t.Context(), "run"); err != nil || !repeats && run.LastSeq != 2*(n+2) || repeats && run.LastSeq != 2*(n+1) {
				t.Errorf("got the run %+v, %v", run, err)
			}
		})
	}
}

// Events, ids and records under a fence are committed without tapestore.write, which does what
// they do in about twice the time.
func TestUsualCommitsCallNoFunction(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	s := open(t, address)
	const n = 4
	leases := holdMany(t, s, n)
	run := hold(t, s, "run")
	exec(t, conn, `UPDATE pg_proc SET prosrc = 'BEGIN RAISE EXCEPTION ''called''; END' WHERE proname = 'write' AND pronamespace = 'tapestore'::regnamespace`)
	commit(t, s, appending(run, "event"))
	commit(t, s, usual(run, "1", "key", 0))
	commit(t, s, usual(run, "2", "key", 1, runstore.Place{Index: "queue", At: runstore.After(0)}))
	errs := coalesced(t, s, n, func(i int) error {
		_, err := s.Commit(t.Context(), usual(leases[i], "1", "key", 0))
		return err
	}, func() {})
	errs = append(errs, grouped(t, s, address, n, func(i int) error {
		b := appending(run, "event")
		b.ID = runstore.NewBatchID()
		_, err := s.Commit(t.Context(), b)
		return err
	}, func() {})...)
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if _, err := s.Commit(t.Context(), usual(run, "2", "key", 1)); !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("a repeat: got %v, want the error of the function, which the test has broken", err)
	}
}

// A record that is created again has a version above those of the one that was deleted.
func TestRecordMadeAnewByTheStatement(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	lease := hold(t, s, "run")
	commit(t, s, usual(lease, "1", "key", 0))
	commit(t, s, usual(lease, "2", "key", 1))
	several, unguarded := usual(lease, "4", "key", 0), appending(lease, "5")
	several.Append("test", []byte("second"))
	unguarded.Put("key", nil)
	for i, again := range []runstore.Batch{usual(lease, "3", "key", 0), several, unguarded} {
		b := appending(lease, "deleted")
		b.Delete("key")
		commit(t, s, b)
		want := runstore.Version(3 + i)
		if done := commit(t, s, again); len(done.Versions) != 1 || done.Versions[0] != want {
			t.Errorf("got %+v, want version %d", done, want)
		}
		stored, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"key"}})
		if err != nil || len(stored) != 1 || stored[0].Version != want {
			t.Errorf("stored is %+v, %v; want version %d", stored, err, want)
		}
	}
}

// TestPutTakesThePlacesBack checks that a record that is put without index entries, by the
// statement for one event, leaves its queue.
func TestPutTakesThePlacesBack(t *testing.T) {
	t.Parallel()
	s := open(t, database(t))
	lease := hold(t, s, "run")
	commit(t, s, usual(lease, "1", "key", 0, runstore.Place{Index: "queue", At: runstore.After(0)}))
	b := appending(lease, "2")
	b.Put("key", []byte("cleared"))
	if done := commit(t, s, b); len(done.Versions) != 1 || done.Versions[0] != 2 {
		t.Errorf("got %+v, want version 2", done)
	}
	entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10})
	if err != nil || len(entries) != 0 {
		t.Errorf("got entries %+v, error %v; want none", entries, err)
	}
}

// A record may be put with the place that it has. Where the clock has not moved on, the commit is
// repeated.
func TestPlaceOfTheSameTime(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	s := open(t, address)
	lease := hold(t, s, "run")
	place := runstore.Place{Index: "queue", At: runstore.At(lease.ExpiresAt)}
	commit(t, s, usual(lease, "1", "key", 0, place))
	exec(t, conn, `CREATE SEQUENCE tapestore.inserts`)
	exec(t, conn, `CREATE FUNCTION tapestore.stands() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('tapestore.inserts') = 1 THEN SELECT written INTO NEW.written FROM tapestore.places; END IF; RETURN NEW; END $$`)
	exec(t, conn, `CREATE TRIGGER stands BEFORE INSERT ON tapestore.places FOR EACH ROW EXECUTE FUNCTION tapestore.stands()`)
	if done := commit(t, s, usual(lease, "2", "key", 1, place)); done.Replayed || done.FirstSeq != 2 {
		t.Errorf("got %+v, want seq 2", done)
	}
	wantJournal(t, s, "run", "1", "2")
	if n := get[int](t, conn, `SELECT count(*)::int FROM tapestore.places`); n != 1 {
		t.Errorf("the record has %d places, want 1", n)
	}
	if n := get[int](t, conn, `SELECT last_value::int FROM tapestore.inserts`); n != 2 {
		t.Errorf("the place was inserted %d times, want 2: the clock did not stand", n)
	}
}

// The results of commits that share statements are evicted like those of others, except the last
// ones.
func TestResultsOfSharedCommitsAreForgotten(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	leases := holdMany(t, s, 2)
	id := func(i int) runstore.BatchID { return runstore.BatchID(fmt.Sprint(i)) }
	const n = 5 * runstore.RememberedBatches
	for i := range n {
		batches := []runstore.Batch{appending(leases[0], "event"), appending(leases[1], "event")}
		for k := range batches {
			batches[k].ID = id(i)
		}
		if (i+1)%runstore.RememberedBatches == 0 { // a shared statement leaves these out
			for _, b := range batches {
				commit(t, s, b)
			}
			continue
		}
		if err := postgres.AppendMulti(t.Context(), s, batches...); err != nil {
			t.Fatal(err)
		}
	}
	many := hold(t, s, "many writers")
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for i := range n / 8 {
				b := appending(many, "event")
				b.ID = id(k*n + i)
				if _, err := s.Commit(t.Context(), b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	const kept = 3 * runstore.RememberedBatches // at least 256, and up to 128 that wait for the next sweep
	for _, l := range append(leases, many) {
		rows := get[int](t, conn, `SELECT count(*) FROM tapestore.batches WHERE run = (SELECT no FROM tapestore.runs WHERE id = $1)`, []byte(l.Run))
		if rows < 2*runstore.RememberedBatches || rows > kept {
			t.Errorf("%s keeps %d results, want %d to %d", l.Run, rows, 2*runstore.RememberedBatches, kept)
		}
	}
	for i := n - runstore.RememberedBatches; i < n; i++ {
		b := appending(leases[0], "event")
		b.ID = id(i)
		if again := commit(t, s, b); !again.Replayed || again.FirstSeq != runstore.Seq(i+1) {
			t.Errorf("batch %d, repeated: got %+v, want its first result", i, again)
		}
	}
}
