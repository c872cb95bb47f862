package bigtable_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// name returns a name of the bytes that separate and escape, and of others: short ones,
// so that many are the beginnings of others.
func name(r *rand.Rand) string {
	const bytes = "\x00\x01\x02\xfe\xffab"
	b := make([]byte, 1+r.IntN(4))
	for i := range b {
		b[i] = bytes[r.IntN(len(bytes))]
	}
	return string(b)
}

func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// A name within a key comes back as it was, with what stands behind it, and orders as
// the name itself, whatever follows.
func TestEscape(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for range 50_000 {
		a, b, restA, restB := name(r), name(r), name(r), name(r)
		if got, rest, ok := bigtable.Unescape(bigtable.Escape(a) + restA); !ok || got != a || rest != restA {
			t.Fatalf("%q and %q came back as %q and %q, %v", a, restA, got, rest, ok)
		}
		if a != b && cmp.Compare(a, b) != cmp.Compare(bigtable.Escape(a)+restA, bigtable.Escape(b)+restB) {
			t.Fatalf("%q and %q order otherwise in keys, before %q and %q", a, b, restA, restB)
		}
		if strings.HasPrefix(bigtable.Escape(a), bigtable.Escape(b)) && a != b {
			t.Fatalf("%q as a key begins with %q", a, b)
		}
	}
}

// What is no key at all is found out.
func TestUnescapeRefuses(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "a", "a\x00", "\x00", "\x00\xff", "\x00\xff\x00"} {
		if name, rest, ok := bigtable.Unescape(key); ok {
			t.Errorf("%q is taken for %q and %q", key, name, rest)
		}
	}
	for _, order := range []string{"", "queue", bigtable.Escape("queue"), bigtable.Escape("queue") + strings.Repeat("x", 16)} {
		if p, ok := bigtable.ParseIndexEntry(order); ok {
			t.Errorf("%q is taken for %+v", order, p)
		}
	}
}

func anyPlace(r *rand.Rand) bigtable.EntryParts {
	n := func() int64 { return r.Int64N(3) * (1 + r.Int64N(1<<40)) }
	return bigtable.EntryParts{
		Index: name(r), At: n(), Written: n(), Run: runstore.RunID(name(r)), Key: runstore.RecordKey(name(r)), Rev: n(), Nonce: r.Uint64(),
	}
}

// The key of an entry tells all of it, and entries order by index, time, time of the
// write, run and key.
func TestIndexEntryKeys(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for range 50_000 {
		a, b := anyPlace(r), anyPlace(r)
		if r.IntN(2) == 0 {
			b.Index = a.Index
		}
		if r.IntN(2) == 0 {
			b.At, b.Written = a.At, a.Written
		}
		if got, ok := bigtable.ParseIndexEntry(a.Order()); !ok || got != a {
			t.Fatalf("%+v came back as %+v, %v", a, got, ok)
		}
		if !strings.HasSuffix(a.RowKey(), a.Order()) || len(a.RowKey()) != len(a.Order())+2 {
			t.Fatalf("the key %q is not a shard and %q", a.RowKey(), a.Order())
		}
		want := cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.At, b.At), cmp.Compare(a.Written, b.Written), cmp.Compare(a.Run, b.Run),
			cmp.Compare(a.Key, b.Key), cmp.Compare(a.Rev, b.Rev), cmp.Compare(a.Nonce, b.Nonce))
		if got := cmp.Compare(a.Order(), b.Order()); got != want {
			t.Fatalf("%+v and %+v order %d, want %d", a, b, got, want)
		}
	}
}

// No run's id reaches into the rows of another, whatever bytes both have.
func TestRunsHaveRowsOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	for range 50_000 {
		a, b := runstore.RunID(name(r)), runstore.RunID(name(r))
		if r.IntN(2) == 0 {
			b = a + b
		}
		rev, nonce, n := r.Int64N(1<<50), r.Uint64(), r.Int64N(1<<30)
		if got := bigtable.RunOf(bigtable.RunKey(a)); got != a {
			t.Fatalf("the row of %q is that of %q", a, got)
		}
		if id, gotRev, gotNonce, ok := bigtable.ParseMarkKey(bigtable.MarkKey(a, rev, nonce)); !ok || id != a || gotRev != rev || gotNonce != nonce {
			t.Fatalf("a mark of %q is taken for one of %q", a, id)
		}
		segments, packs := bigtable.OwnedPrefixes(a)
		segment, pack := bigtable.SegmentKey(b, rev, n), bigtable.PackKey(b, rev, nonce, n, r.Int64N(8))
		if strings.HasPrefix(segment, segments) != (a == b) || strings.HasPrefix(pack, packs) != (a == b) {
			t.Fatalf("%q takes the rows of %q for its own", a, b)
		}
	}
}

// Every key that a run can lead to is one that Bigtable takes.
func TestKeysAreShortEnough(t *testing.T) {
	t.Parallel()
	zeros := func(n int) string { return strings.Repeat("\x00", n) } // which double when they are escaped
	id := runstore.RunID(zeros(runstore.MaxRunID))
	longest := bigtable.EntryParts{Index: zeros(runstore.MaxIndexName), Run: id, Key: runstore.RecordKey(zeros(runstore.MaxRecordKey))}
	for _, key := range []string{
		longest.RowKey(), bigtable.RunKey(id), bigtable.SegmentKey(id, 1, 1), bigtable.PackKey(id, 1, 1, 1, 1), bigtable.MarkKey(id, 1, 1),
	} {
		if len(key) > 4<<10 {
			t.Errorf("a key that begins with %q has %d bytes", key[:1], len(key))
		}
	}
}

// Ids of any bytes keep runs, records and queues apart, in the store itself.
func TestIDsOfAnyBytes(t *testing.T) {
	t.Parallel()
	s := open(t, newTable(t))
	ids := []string{"a", "a\x00", "a\x00\x01", "a\x00\xff", "\x00", "\xff", "\xff\xff", "a|b", ".*", "a\nb"}
	for _, id := range ids {
		b := appending(hold(t, s, runstore.RunID(id)), "event of "+id)
		for _, key := range ids {
			b.Put(runstore.RecordKey(key), []byte(id+key), runstore.Place{Index: runstore.IndexName(key), At: runstore.After(0)})
		}
		commit(t, s, b)
	}
	for _, id := range ids {
		run := runstore.RunID(id)
		if found, err := s.ReadJournal(t.Context(), run, 1, 10); err != nil || len(found) != 1 || string(found[0].Data) != "event of "+id {
			t.Errorf("the journal of %q: %v, %v", id, found, err)
		}
		var got []string
		for r, err := range runstore.Records(t.Context(), s, run, "") {
			if err != nil || string(r.Value) != id+string(r.Key) {
				t.Errorf("the record %q of %q is %q, %v", r.Key, id, r.Value, err)
			}
			got = append(got, string(r.Key))
		}
		if !slices.Equal(got, slices.Sorted(slices.Values(ids))) {
			t.Errorf("the records of %q are %q", id, got)
		}
		got = nil
		for e, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: runstore.IndexName(id), Until: runstore.EndOfTime}) {
			if err != nil || string(e.Record.Key) != id {
				t.Errorf("in the queue %q: %q of %q, %v", id, e.Record.Key, e.Run, err)
			}
			got = append(got, string(e.Run))
		}
		slices.Sort(got)
		if !slices.Equal(got, slices.Sorted(slices.Values(ids))) {
			t.Errorf("in the queue %q there are %q", id, got)
		}
	}
}
