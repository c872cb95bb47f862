package cases

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// ManyRecords returns the cases that prove that a run has room for many records, and that versions,
// stamps, pages and deletions work with many records as with few.
func ManyRecords() []harness.Case {
	return []harness.Case{
		{Guarantee: "I12", Name: "a-run-holds-many-records", Run: manyRecords, Doc: `
			One run gets many records (1,500 in a quick run, 100,000 in a full one), which several handles put,
			delete, put again, guard and finally purge. Reads by key, prefix and page return exactly the values,
			versions and stamps of a model, and wrong versions are ErrConflict. A store that moves records out of the
			run's row and forgets their versions, or mixes up pages, fails.`},
	}
}

// recordModel is the expected state of a run's records, by number.
type recordModel struct {
	id  runstore.RunID
	all []runstore.Record // version 0 means absent
	top []runstore.Version
}

// manyValue returns the value of a record: so large that some hundreds of records exceed what a
// store would keep of them in one place.
func manyValue(n, round int) []byte {
	return append(fmt.Appendf(nil, "%d of %d ", round, n), bytes.Repeat([]byte{'.'}, 150+n%100)...)
}

// key returns the key of a record. Neighbouring numbers have keys far apart in order.
func (m *recordModel) key(n int) runstore.RecordKey {
	return runstore.RecordKey(fmt.Sprintf("part/%d/%06d", n%7, n))
}

// apply commits changes of some records, each guarded by its version: puts, or deletions if round
// is negative.
func (m *recordModel) apply(t harness.T, s runstore.RunStore, round int, numbers []int) {
	t.Helper()
	for len(numbers) > 0 {
		some := numbers[:min(100, len(numbers))]
		numbers = numbers[len(some):]
		var guards []runstore.Guard
		for _, n := range some {
			guards = append(guards, runstore.AtVersion(m.key(n), m.all[n].Version))
		}
		b := runstore.NewBatch(m.id, guards[0], guards[1:]...)
		b.Append("test", nil)
		for _, n := range some {
			if round < 0 {
				b.Delete(m.key(n))
			} else {
				b.Put(m.key(n), manyValue(n, round))
			}
		}
		done := kit.MustCommit(t, s, b)
		stamp := runstore.Stamp{Seq: done.FirstSeq, Time: done.Time}
		for i, n := range some {
			was, now := m.all[n], runstore.Record{Key: m.key(n), Version: done.Versions[i], Updated: stamp, Created: stamp}
			switch {
			case round < 0:
				m.all[n] = runstore.Record{}
				continue
			case was.Version > 0 && now.Version != was.Version+1, now.Version <= m.top[n]:
				t.Errorf("%s has version %d, after %d and at most %d", m.key(n), now.Version, was.Version, m.top[n])
			case was.Version > 0:
				now.Created = was.Created
			}
			now.Value = manyValue(n, round)
			m.all[n], m.top[n] = now, now.Version
		}
	}
}

// check compares the records with the model: all pages, one prefix, and some exact keys.
func (m *recordModel) check(t harness.T, s runstore.RunStore) {
	t.Helper()
	want := map[runstore.RecordKey]runstore.Record{}
	for _, r := range m.all {
		if r.Version > 0 {
			want[r.Key] = r
		}
	}
	same := func(got runstore.Record) {
		t.Helper()
		w := want[got.Key]
		if got.Version != w.Version || got.Created != w.Created || got.Updated != w.Updated || !bytes.Equal(got.Value, w.Value) {
			t.Fatalf("%s: got version %d, created %v, updated %v, a value of %d bytes, want %d, %v, %v, %d",
				got.Key, got.Version, got.Created, got.Updated, len(got.Value), w.Version, w.Created, w.Updated, len(w.Value))
		}
	}
	for _, prefix := range []runstore.RecordKey{"", "part/3/"} {
		wanted, found, last := 0, 0, runstore.RecordKey("")
		for key := range want {
			if strings.HasPrefix(string(key), string(prefix)) {
				wanted++
			}
		}
		for r, err := range runstore.Records(t.Context(), s, m.id, prefix) {
			if err != nil {
				t.Fatalf("records of %q: %v", prefix, err)
			}
			if r.Key <= last {
				t.Fatalf("%s comes after %s", r.Key, last)
			}
			same(r)
			found++
			last = r.Key
		}
		kit.Equal(t, fmt.Sprintf("records of the prefix %q", prefix), found, wanted)
	}
	var keys []runstore.RecordKey
	there := 0
	for n := 0; n < len(m.all) && len(keys) < runstore.MaxRecordKeys; n += max(1, len(m.all)/runstore.MaxRecordKeys) {
		keys = append(keys, m.key(n))
		if m.all[n].Version > 0 {
			there++
		}
	}
	found, err := s.ReadRecords(t.Context(), m.id, runstore.RecordQuery{Keys: keys})
	if err != nil {
		t.Fatalf("read %d keys: %v", len(keys), err)
	}
	for _, r := range found {
		same(r)
	}
	kit.Equal(t, "records of some keys", len(found), there)
}

// refuses fails the case unless commits at wrong versions of some records are refused.
func (m *recordModel) refuses(t harness.T, s runstore.RunStore) {
	t.Helper()
	for n := 0; n < len(m.all); n += max(1, len(m.all)/20) {
		b := runstore.NewBatch(m.id, runstore.AtVersion(m.key(n), m.all[n].Version+1))
		b.Put(m.key(n), nil)
		_, err := s.Commit(t.Context(), b)
		var conflict *runstore.ConflictError
		if !errors.As(err, &conflict) || conflict.Current != m.all[n].Version {
			t.Fatalf("%s: got %v, want a conflict at version %d", m.key(n), err, m.all[n].Version)
		}
	}
}

// every returns each step-th number, from first on.
func (m *recordModel) every(step, first int) (numbers []int) {
	for n := first; n < len(m.all); n += step {
		numbers = append(numbers, n)
	}
	return numbers
}

func manyRecords(t harness.T, e *harness.Env) {
	n := e.Scaled(t, "records", 1500, e.Affordable(t, "records", 100_000, 3000))
	e.Create(t, "run")
	m := &recordModel{id: "run", all: make([]runstore.Record, n), top: make([]runstore.Version, n)}
	const high = 2 // the record of the highest version, not written again before the purge
	for round := range 4 {
		m.apply(t, e.Store, round, []int{high})
	}
	for first := range 3 {
		m.apply(t, e.Reopen(t), 0, m.every(3, first))
	}
	other := e.Reopen(t)
	m.check(t, other)
	m.apply(t, other, 1, m.every(9, 0))
	m.apply(t, e.Store, -1, m.every(6, 1))
	m.refuses(t, e.Reopen(t))
	m.check(t, e.Store)
	m.apply(t, e.Reopen(t), 2, m.every(18, 1)) // a third of the deleted records
	m.apply(t, other, 3, m.every(9, 0))        // again
	m.refuses(t, e.Store)
	m.check(t, e.Reopen(t))

	b := runstore.NewBatch("run", runstore.Unguarded("test"))
	b.Purge = true
	kit.MustCommit(t, e.Store, b)
	e.Create(t, "run")
	clear(m.all)
	m.check(t, other)
	m.apply(t, other, 4, m.every(5, high))
	m.check(t, e.Reopen(t))
}
