package postgres_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tapestore/tapestore/runstore"
)

// A commit of one record without an event is one statement too. It is explained by the run's last
// event and found by its id. Its row in batches, by which a lost reply is settled, is evicted in
// time.
func TestCommitOfOneRecord(t *testing.T) {
	t.Parallel()
	address := database(t)
	s, conn := open(t, address), connect(t, address)
	lease := hold(t, s, "run")
	commit(t, s, appending(lease, "one", "two"))
	position := get[int64](t, conn, `SELECT last_position FROM tapestore.runs`)
	for n := range 600 {
		b := runstore.NewBatch("run", lease.Fence())
		b.Put("key", fmt.Append(nil, n))
		if n%2 == 1 {
			b.Require(runstore.AtVersion("key", runstore.Version(n)))
		}
		if done := commit(t, s, b); done.FirstSeq != 0 || done.LastSeq != 2 || len(done.Versions) != 1 || done.Versions[0] != runstore.Version(n+1) {
			t.Fatalf("commit %d: got %+v, want version %d behind seq 2", n, done, n+1)
		}
	}
	found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"key"}})
	if err != nil || len(found) != 1 || string(found[0].Value) != "599" || found[0].Updated.Seq != 2 || found[0].Updated.Token != lease.Token {
		t.Errorf("the record: %+v, %v", found, err)
	}
	if rows := get[int](t, conn, `SELECT count(*) FROM tapestore.batches`); rows < 256 || rows > 512 {
		t.Errorf("%d of 600 results are remembered, want 256 to 512", rows)
	}
	if after := get[int64](t, conn, `SELECT last_position FROM tapestore.runs`); after != position {
		t.Errorf("position %d went on to %d without an event", position, after)
	}

	fresh := runstore.NewBatch("run", lease.Fence(), runstore.AtVersion("new", 0))
	fresh.ID = "batch"
	fresh.Put("new", nil)
	for n, want := range []bool{false, true} {
		if done := commit(t, s, fresh); done.Replayed != want || done.FirstSeq != 0 || done.LastSeq != 2 || done.Versions[0] != 1 {
			t.Errorf("commit %d with an id: got %+v, want version 1 and replayed %t", n, done, want)
		}
	}
	fresh.ID = ""
	if _, err := s.Commit(t.Context(), fresh); !errors.Is(err, runstore.ErrConflict) {
		t.Errorf("a record that is there: got %v, want ErrConflict", err)
	}
	stale := lease
	stale.Grant = "another"
	b := runstore.NewBatch("run", stale.Fence())
	b.Put("key", nil)
	if _, err := s.Commit(t.Context(), b); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("under a stale fence: got %v, want ErrFenced", err)
	}
}
