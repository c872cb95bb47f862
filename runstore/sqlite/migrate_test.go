package sqlite_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// version1 returns the path of a store that a program of schema version 1 filled with the
// runs held, released and purged, each with a first and a last grant.
func version1(t *testing.T) string { return ofVersion(t, "version1") }

// ofVersion returns the path of a store that is made from testdata.
func ofVersion(t *testing.T, version string) string {
	t.Helper()
	dump, err := os.ReadFile("testdata/" + version + ".sql")
	if err != nil {
		t.Fatal(err)
	}
	witness, err := os.ReadFile("testdata/" + version + "-witness")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tape.db")
	exec(t, path, string(dump))
	if err := os.WriteFile(path+"-witness", witness, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMigrateFromVersion1 migrates a store of the first version with all its content, however many
// processes open it at once.
func TestMigrateFromVersion1(t *testing.T) {
	t.Parallel()
	path := version1(t)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			<-start
			s, err := sqlite.Open(t.Context(), path, nil)
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	close(start)
	wg.Wait()

	s := openAt(t, path, embedded.NewHost())
	epochs, err := s.Epochs(t.Context())
	if err != nil || len(epochs) != 0 {
		t.Errorf("got epochs %v, error %v, want none: nothing was lost", epochs, err)
	}
	for _, id := range []runstore.RunID{"held", "released"} {
		run, err := s.GetRun(t.Context(), id)
		if err != nil || run.Token != 2 || run.Status != 4 || run.LastSeq != 1 || string(run.Summary.Value) != "summary" {
			t.Errorf("got run %+v, error %v; want token 2, status 4, seq 1 and the summary", run, err)
		}
		events, err := s.ReadJournal(t.Context(), id, 1, 10)
		if want := "event of " + string(id); err != nil || len(events) != 1 || string(events[0].Data) != want {
			t.Errorf("got events %+v, error %v; want %q", events, err, want)
		}
	}
	entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10})
	if err != nil || len(entries) != 2 {
		t.Errorf("got entries %+v, error %v; want those of two runs", entries, err)
	}
	held := runstore.Lease{Run: "held", Owner: "owner", Token: 2, Grant: "last grant of held"}
	b := runstore.NewBatch("held", held.Fence())
	b.Append("test", []byte("still held"))
	if done, err := s.Commit(t.Context(), b); err != nil || done.LastSeq != 2 {
		t.Errorf("got %+v, error %v; want seq 2 under the grant of before", done, err)
	}
}

// TestGrantsOfVersion1 repeats requests of grants that the first version made. The last grant of
// each run is recognised; the first version kept no others.
func TestGrantsOfVersion1(t *testing.T) {
	t.Parallel()
	s := openAt(t, version1(t), embedded.NewHost())
	spec := func(grant runstore.GrantID) runstore.LeaseSpec {
		return runstore.LeaseSpec{Owner: "late", TTL: time.Minute, Grant: grant}
	}
	late := func(id runstore.RunID) error {
		_, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: id, LeaseSpec: spec("last grant of " + runstore.GrantID(id)), Preempt: "late"})
		return err
	}
	if err := late("released"); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a copy of the last request: got error %v, want ErrFenced", err)
	}
	lease := spec("last grant of purged")
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "purged", Lease: &lease}); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a create with the grant id of the purged run: got error %v, want ErrFenced", err)
	}
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "purged"}); err != nil {
		t.Fatalf("create: %v", err)
	}
	for _, id := range []runstore.RunID{"held", "released", "purged"} {
		for token := runstore.Token(3); token < 5; token++ {
			next, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: id, LeaseSpec: spec(""), Preempt: "test"})
			if err != nil || next.Token != token {
				t.Fatalf("acquire %q: got token %v, error %v; want %v", id, next.Token, err, token)
			}
			if err := late(id); !errors.Is(err, runstore.ErrFenced) {
				t.Errorf("%q: a copy of the request of token 2 after token %v: got error %v, want ErrFenced", id, token, err)
			}
		}
	}
}

// TestTermsOfVersion1 reads the terms of runs whose grants the first version made: that of a current
// grant, and none of one that had ended, because that version did not keep whose it was.
func TestTermsOfVersion1(t *testing.T) {
	t.Parallel()
	s := openAt(t, version1(t), embedded.NewHost())
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "purged"}); err != nil {
		t.Fatalf("create: %v", err)
	}
	check := func(id runstore.RunID, want ...string) {
		t.Helper()
		terms, err := s.ReadTerms(t.Context(), id)
		got := []string{}
		for _, v := range terms {
			got = append(got, fmt.Sprint(v.Token, " ", v.Owner, " ", v.End))
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("the terms of %q: got %q, %v, want %q", id, got, err, want)
		}
	}
	check("held", "2 owner none")
	check("released")
	check("purged")
	for id, before := range map[runstore.RunID][]string{"held": {"2 owner expired"}, "released": nil, "purged": nil} {
		if _, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}, Preempt: "test",
		}); err != nil {
			t.Fatal(err)
		}
		check(id, append(before, "3 next none")...)
	}
}

// TestMigrateFromVersion3 migrates a store of the third version, which keeps its grants, its
// results and its list of runs.
func TestMigrateFromVersion3(t *testing.T) {
	t.Parallel()
	s := openAt(t, ofVersion(t, "version3"), embedded.NewHost())
	run, err := s.GetRun(t.Context(), "held")
	if err != nil || run.Unlisted || run.Holder.Owner != "owner" || !run.Holder.GrantedAt.IsZero() || run.Holder.MaxStall != 0 || run.Summary.Updated.Token != 0 {
		t.Errorf("got %+v, error %v; want the holder of before, of whose grant nothing more is known", run, err)
	}
	held := runstore.Lease{Run: "held", Owner: "owner", Token: 1, Grant: "grant of held"}
	again := runstore.NewBatch("held", held.Fence())
	again.ID = "batch"
	again.Append("event", []byte("event of held"))
	if done, err := s.Commit(t.Context(), again); err != nil || !done.Replayed || done.LastSeq != 1 || len(done.Versions) != 1 {
		t.Errorf("the batch of before, repeated: got %+v, error %v; want its first result", done, err)
	}
	again.ID = "bbatch" // one that begins with the letter which the migration puts before each
	if done, err := s.Commit(t.Context(), again); err != nil || !done.Replayed {
		t.Errorf("the second batch of before, repeated: got %+v, error %v; want its first result", done, err)
	}
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: held.Fence(), TTL: time.Minute}); err != nil {
		t.Errorf("a renewal of the grant of before: %v", err)
	}
	b := runstore.NewBatch("held", held.Fence())
	b.Append("event", nil)
	done, err := s.Commit(t.Context(), b)
	if run, getErr := s.GetRun(t.Context(), "held"); err != nil || getErr != nil || !run.Holder.ProgressedAt.Equal(done.Time) {
		t.Errorf("got %+v after a commit of %+v, errors %v and %v; want progress at its time", run.Holder, done, err, getErr)
	}
	spec := runstore.LeaseSpec{Owner: "owner", TTL: time.Minute, Grant: "grant of held"}
	granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "held", LeaseSpec: spec})
	if err != nil || granted.Token != 1 || granted.Ended || !granted.Committed.Replayed {
		t.Errorf("the request of before, repeated: got %+v, error %v; want the current grant", granted, err)
	}
	runs, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRuns, Limit: 10})
	if err != nil || len(runs) != 2 {
		t.Errorf("got runs %+v, error %v; want the two that were not purged", runs, err)
	}
}

// TestMigrateFromVersion4 migrates a store of the fourth version. Its runnable runs get entries at
// the expiry of their grants, and versions keep growing over a purge.
func TestMigrateFromVersion4(t *testing.T) {
	t.Parallel()
	path := ofVersion(t, "version4")
	s := openAt(t, path, embedded.NewHost())
	places := query[string](t, path, `SELECT group_concat(coalesce(place - CASE id WHEN CAST('renewed' AS BLOB) THEN expires
		WHEN CAST('held' AS BLOB) THEN expires ELSE runnable END, 'none'), ' ' ORDER BY no) FROM runs`)
	if want := "0 0 0 none none"; places != want {
		t.Errorf("renewed, held, released, purged and never are off their places by %q, want %q", places, want)
	}
	entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRunnable, Until: runstore.EndOfTime, Limit: 10})
	if err != nil || len(entries) != 3 || entries[0].Run != "released" {
		t.Errorf("got %+v, error %v; want the released run and two whose grants expire", entries, err)
	}
	for id, last := range map[runstore.RunID]runstore.Version{"held": 3, "purged": 3, "released": 1} { // where a record was deleted
		for again := range 3 {
			if again > 0 || id != "purged" {
				purgeRun(t.Context(), t, s, id)
			}
			spec := runstore.RunSpec{ID: id}
			spec.Writes.Put("doc", nil)
			created, err := s.CreateRun(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			if got := created.Committed.Versions[0]; got <= last {
				t.Errorf("%s: got version %d, want one above %d, which a record had", id, got, last)
			}
			last = created.Committed.Versions[0]
		}
	}
	checkNothingLeft(t, path)
}
