package bigtable_test

import (
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// A process is suspended before it deletes the rows that its last writes have replaced. A failover
// loses these writes, so the heads name the rows again: the process must not delete the rows when
// it wakes.
func TestGarbageOfALostHistoryStays(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, tbl := openBare(t, table, cool), raw(t, table)
	hold(t, old, "run")
	all := kept{}
	edit(t, old, all, "large", strings.Repeat("x", 20<<10))
	edit(t, old, all, "cold", "value")
	for i := range 60 {
		edit(t, old, all, fmt.Sprintf("a/%d", i), "value")
	}
	b := signal("run", "in a queue")
	b.Put("waiting", []byte("value"), waiting)
	commit(t, old, b)
	relieve(t, old)
	bigtable.EmptyGarbage(t.Context(), old)
	survived := snapshot(t, tbl)
	lost := maps.Clone(all)
	edit(t, old, lost, "large", "small")
	edit(t, old, lost, "cold", "changed")
	b = signal("run", "in no queue")
	b.Put("waiting", []byte("value"))
	commit(t, old, b)
	for i := range 60 {
		edit(t, old, lost, fmt.Sprintf("b/%d", i), "value")
	}
	relieve(t, old)

	survived.rollBack(t, tbl)
	s := openBare(t, table, cool)
	if _, err := s.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	bigtable.AgeGarbage(old, time.Hour)
	bigtable.EmptyGarbage(t.Context(), old)
	found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: []runstore.RecordKey{"large", "cold"}})
	if err != nil || len(found) != 2 {
		t.Errorf("got %d records, %v, want both", len(found), err)
	}
	entries, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10})
	if err != nil || len(entries) != 1 {
		t.Errorf("got %d entries of the queue, %v, want one", len(entries), err)
	}
}

// A process is suspended after an orphan scan has found rows of an earlier generation of a run. A failover
// raises the epoch: the process must not delete the rows when it wakes.
func TestOrphansOfALostHistoryStay(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	var away atomic.Int64 // hours for which the process was suspended
	old, tbl := openBare(t, table, cool, func(o *bigtable.Options) {
		o.Clock = func() time.Time {
			if away.Load() > 0 {
				away.Add(1)
			}
			return time.Now().Add(time.Duration(away.Load()) * time.Hour)
		}
	}), raw(t, table)
	lease := hold(t, old, "run")
	all := kept{}
	for i := range 60 {
		edit(t, old, all, fmt.Sprintf("a/%d", i), "value")
	}
	relieve(t, old)
	before := snapshot(t, tbl)
	purge(t, old, lease)
	bigtable.OrphanScan(t.Context(), old)
	isCold := func(k cellKey) bool { return strings.HasPrefix(k.row, "k") }
	if before.put(t, tbl, isCold) == 0 {
		t.Fatal("the run has no cold records")
	}
	left := len(keys(t, tbl, "k"))
	s := openBare(t, table, cool)
	if _, err := s.RaiseEpoch(t.Context(), "failover"); err != nil {
		t.Fatal(err)
	}
	away.Store(1)
	if err := bigtable.CollectGarbage(t.Context(), old); err == nil {
		t.Error("a pass over the old history has no error")
	}
	if n := len(keys(t, tbl, "k")); n != left {
		t.Errorf("%d rows of cold records are left, want all %d", n, left)
	}
	collect(t, s)
	if n := len(keys(t, tbl, "k")); n != 0 {
		t.Errorf("%d rows of cold records are left after a pass of a handle that knows the epoch, want none", n)
	}
}
