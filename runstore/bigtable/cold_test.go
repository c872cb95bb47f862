package bigtable_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// cool has records leave the row of their run early.
func cool(o *bigtable.Options) { bigtable.MoveAbove(o, 3<<10) }

// kept is what a run's records should be.
type kept map[runstore.RecordKey]runstore.Record

// readAs checks the records of "run": all pages of some limits, some prefixes, and single keys.
func (k kept) readAs(t testing.TB, s *bigtable.Store, others ...runstore.RecordKey) {
	t.Helper()
	keys := slices.Sorted(maps.Keys(k))
	for _, prefix := range []runstore.RecordKey{"", "a", "b/", "b/0\x00", "zz"} {
		var want []runstore.RecordKey
		for _, key := range keys {
			if strings.HasPrefix(string(key), string(prefix)) {
				want = append(want, key)
			}
		}
		for _, limit := range []int{3, 50, runstore.MaxPage} {
			var got []runstore.RecordKey
			q := runstore.RecordQuery{Prefix: prefix, Limit: limit}
			for {
				page, err := s.ReadRecords(t.Context(), "run", q)
				if err != nil {
					t.Fatal(err)
				}
				if len(page) == 0 {
					break
				}
				for _, r := range page {
					got = append(got, r.Key)
					k.same(t, r)
				}
				q.After = page[len(page)-1].Key
			}
			if !slices.Equal(got, want) {
				t.Fatalf("prefix %q, limit %d: got the %d records %.300q, want the %d %.300q", prefix, limit, len(got), got, len(want), want)
			}
		}
	}
	for part := range slices.Chunk(append(keys, others...), runstore.MaxRecordKeys) {
		found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Keys: part})
		if err != nil {
			t.Fatal(err)
		}
		there := map[runstore.RecordKey]bool{}
		for _, r := range found {
			k.same(t, r)
			there[r.Key] = true
		}
		for _, key := range part {
			if _, want := k[key]; there[key] != want {
				t.Fatalf("the record %q is there: %t, want %t", key, there[key], want)
			}
		}
	}
}

func (k kept) same(t testing.TB, got runstore.Record) {
	t.Helper()
	want := k[got.Key]
	if got.Version != want.Version || got.Created != want.Created || got.Updated != want.Updated || !bytes.Equal(got.Value, want.Value) {
		t.Fatalf("the record %q is %s, want %s", got.Key, shortRecord(got), shortRecord(want))
	}
}

func shortRecord(r runstore.Record) string {
	return fmt.Sprintf("version %d, created %v, updated %v, %s", r.Version, r.Created, r.Updated, short(r.Value))
}

// Random changes of records by several handles, which move records and rewrite cold ones on the way, leave
// what a model says: versions, stamps and values. Versions never fall, over deletions, purges and
// new runs of the id.
func TestRecordsLeaveTheRow(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			coldModel(t, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

func coldModel(t *testing.T, random *rand.Rand) {
	table := newTable(t)
	handles := []*bigtable.Store{open(t, table, cool), openBare(t, table, cool), openBare(t, table, cool)}
	key := func() runstore.RecordKey {
		n := random.IntN(120)
		return []runstore.RecordKey{
			runstore.RecordKey(fmt.Sprintf("a/%d", n)), runstore.RecordKey(fmt.Sprintf("b/%d\x00\x01", n)), runstore.RecordKey(fmt.Sprintf("b/%d\x00", n)),
			runstore.RecordKey([]byte{0xff, byte(n)}), runstore.SummaryKey,
		}[random.IntN(40)%5]
	}
	all, highest, moved := kept{}, map[runstore.RecordKey]runstore.Version{}, 0
	hold(t, handles[0], "run")
	for round := range 300 {
		s := handles[random.IntN(len(handles))]
		switch random.IntN(40) {
		case 0:
			if err := bigtable.MoveRecords(t.Context(), s, "run", true); err != nil {
				t.Fatal(err)
			}
		case 1:
			i := random.IntN(len(handles))
			handles[i] = openBare(t, table, cool)
		case 2:
			bigtable.EmptyGarbage(t.Context(), s)
		case 3:
			all.readAs(t, s, "absent", "b/")
		case 4:
			if random.IntN(3) > 0 {
				break
			}
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Purge = true
			commit(t, s, b)
			clear(all)
			holdAnewAs(t, s, "run", runstore.GrantID(fmt.Sprint("round ", round)))
		}
		b := signal("run", fmt.Sprint(round))
		guards := []runstore.Guard{runstore.Unguarded("test")}
		names := map[runstore.RecordKey]bool{}
		for range 1 + random.IntN(8) {
			k := key()
			if names[k] {
				continue
			}
			names[k] = true
			if random.IntN(2) == 0 && guards[0] == runstore.Guard(runstore.Unguarded("test")) {
				guards = guards[1:]
			}
			if len(guards) == 0 || random.IntN(2) == 0 && guards[0] != runstore.Guard(runstore.Unguarded("test")) {
				guards = append(guards, runstore.AtVersion(k, all[k].Version))
			}
			switch random.IntN(5) {
			case 0:
				b.Delete(k)
			case 1:
				b.Put(k, fmt.Appendf(nil, "%d in a queue", round), waiting)
			case 2:
				b.Put(k, bytes.Repeat([]byte{byte(round)}, 17<<10))
			default:
				b.Put(k, fmt.Appendf(nil, "value %d of %q", round, k))
			}
		}
		guarded := runstore.NewBatch("run", guards[0], guards[1:]...)
		guarded.Writes = b.Writes
		if random.IntN(4) == 0 { // a refusal tells the present version
			k := key()
			refused := runstore.NewBatch("run", runstore.AtVersion(k, all[k].Version+1))
			refused.Put(k, nil)
			_, err := s.Commit(t.Context(), refused)
			var conflict *runstore.ConflictError
			if !errors.As(err, &conflict) || conflict.Current != all[k].Version {
				t.Fatalf("round %d: the guard of %q got %v, want a conflict at version %d", round, k, err, all[k].Version)
			}
		}
		done, err := s.Commit(t.Context(), guarded)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		stamp := runstore.Stamp{Seq: done.FirstSeq, Time: done.Time}
		for i, w := range guarded.Records {
			was, there := all[w.Key]
			if w.Delete {
				delete(all, w.Key)
				continue
			}
			now := runstore.Record{Key: w.Key, Version: done.Versions[i], Value: w.Value, Created: stamp, Updated: stamp}
			if there {
				now.Created = was.Created
				if now.Version != was.Version+1 {
					t.Fatalf("round %d: %q went from version %d to %d", round, w.Key, was.Version, now.Version)
				}
			}
			if now.Version <= highest[w.Key] {
				t.Fatalf("round %d: %q has version %d after %d", round, w.Key, now.Version, highest[w.Key])
			}
			all[w.Key], highest[w.Key] = now, now.Version
		}
		n, _, err := bigtable.Moves(t.Context(), s, "run")
		if err != nil {
			t.Fatal(err)
		}
		if moved = max(moved, n); n > 0 && random.IntN(8) == 0 {
			all.readAs(t, handles[random.IntN(len(handles))])
		}
		if random.IntN(6) == 0 {
			if err := bigtable.MoveRecords(t.Context(), s, "run", false); err != nil {
				t.Fatal(err)
			}
		}
	}
	if moved < 3 {
		t.Errorf("%d moves were made, want several", moved)
	}
	for _, s := range handles {
		all.readAs(t, s)
	}
	all.readAs(t, openBare(t, table))
}

// A page of records passes cold ones that were deleted, although they are larger than a page and their
// tombstones are in the run's row.
func TestPagePassesDeletedColdRecords(t *testing.T) {
	t.Parallel()
	s := openBare(t, newTable(t))
	hold(t, s, "run")
	all, value := kept{}, strings.Repeat("x", 16_000)
	bigtable.SetMoveAbove(s, 3<<10)
	for i := range 300 {
		if edit(t, s, all, fmt.Sprintf("a/%05d", i), value); i%10 == 9 {
			relieve(t, s)
		}
	}
	edit(t, s, all, "b", "value")
	bigtable.SetMoveAbove(s, 192<<10)
	for i := range 300 {
		edit(t, s, all, fmt.Sprintf("a/%05d", i), "")
	}
	for _, limit := range []int{1, 3, runstore.MaxPage} {
		for _, prefix := range []runstore.RecordKey{"", "a"} {
			found, err := s.ReadRecords(t.Context(), "run", runstore.RecordQuery{Prefix: prefix, Limit: limit})
			if err != nil || len(found) != 1-len(prefix) || prefix == "" && found[0].Key != "b" {
				t.Errorf("prefix %q, limit %d: got %d records, %v, want %d", prefix, limit, len(found), err, 1-len(prefix))
			}
		}
	}
}

// holdAnewAs is holdAnew under a grant id of its own.
func holdAnewAs(t testing.TB, s *bigtable.Store, id runstore.RunID, grant runstore.GrantID) {
	t.Helper()
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL, Grant: grant}}); err != nil {
		t.Fatal(err)
	}
}

// filled puts n records into "run", and returns them.
func filled(t testing.TB, s *bigtable.Store, n int) kept {
	t.Helper()
	all := kept{}
	for i := range n {
		edit(t, s, all, fmt.Sprintf("a/%05d", i), fmt.Sprint("value ", i))
	}
	return all
}

// edit puts one record into "run", or deletes it if value is empty.
func edit(t testing.TB, s *bigtable.Store, all kept, key, value string) {
	t.Helper()
	b, k := signal("run", key), runstore.RecordKey(key)
	if value == "" {
		b.Delete(k)
	} else {
		b.Put(k, []byte(value))
	}
	done := commit(t, s, b)
	stamp := runstore.Stamp{Seq: done.FirstSeq, Time: done.Time}
	now := runstore.Record{Key: k, Version: done.Versions[0], Value: []byte(value), Created: stamp, Updated: stamp}
	if was, there := all[k]; there && value != "" {
		if now.Created = was.Created; now.Version != was.Version+1 {
			t.Fatalf("%q went from version %d to %d", key, was.Version, now.Version)
		}
	}
	if all[k] = now; value == "" {
		delete(all, k)
	}
}
