package cases

import (
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
)

// IndexBounds returns the cases that prove I9 for scans between two times and for entries with
// heads.
func IndexBounds() []harness.Case {
	return []harness.Case{
		{Guarantee: "I9", Name: "a-scan-begins-at-its-lower-bound", Run: fromInclusive, Doc: `
			Six records are placed in pairs a second apart, and scans begin before, at, between and after them, with
			and without an end, in both directions and in pages of one. A scan holds the entries from its lower bound
			on, including those exactly at it. A store that ignores the bound, excludes it, or rounds a bound between
			two microseconds down, returns too much or too little.`},
		{Guarantee: "I9", Name: "runs-are-scanned-from-a-lower-bound", Run: runsFrom, Doc: `
			Four runs are created one after the other, not in the order of their ids, and both indexes of runs are
			scanned from the time of each, in both directions and page sizes. Each scan begins with that very run, and
			one between two bounds holds both ends. A store that begins after the bound misses a run.`},
		{Guarantee: "I9", Name: "an-entry-carries-its-run-on-request", Run: entryCarriesHead, Doc: `
			Records of two runs are placed in a queue, which is scanned with and without heads, in both directions and
			page sizes. With heads each entry carries its own run as GetRun returns it, summary included; without,
			none, and the entries are otherwise alike. A store that carries another run's head, or one without its
			summary, fails.`},
	}
}

func fromInclusive(t harness.T, e *harness.Env) {
	base := e.Now(t).Add(-time.Hour)
	e.Create(t, "run")
	const entries = 6
	for i := range entries { // two at each time
		putIndexed(t, e.Store, "run", runstore.RecordKey(fmt.Sprint(i)), "queue", runstore.At(base.Add(time.Duration(i/2)*time.Second)))
	}
	type keys = []runstore.RecordKey
	all := keys{"0", "1", "2", "3", "4", "5"}
	for _, test := range []struct {
		what        string
		from, until time.Time
		want        keys
	}{
		{"from before the first", base.Add(-time.Hour), time.Time{}, all},
		{"from the first", base, time.Time{}, all},
		{"from behind the first", base.Add(runstore.TimePrecision), time.Time{}, all[2:]},
		{"from a nanosecond behind the first", base.Add(time.Nanosecond), time.Time{}, all[2:]},
		{"from a nanosecond before the second", base.Add(time.Second - time.Nanosecond), time.Time{}, all[2:]},
		{"until a nanosecond before the second", time.Time{}, base.Add(time.Second - time.Nanosecond), all[:2]},
		{"between two microseconds", base.Add(time.Nanosecond), base.Add(2 * time.Nanosecond), nil},
		{"from the second", base.Add(time.Second).In(time.FixedZone("far", -11*3600)), time.Time{}, all[2:]},
		{"from the second until it", base.Add(time.Second), base.Add(time.Second), all[2:4]},
		{"from the second until the first", base.Add(time.Second), base, nil},
		{"from behind the last", base.Add(time.Hour), runstore.EndOfTime, nil},
	} {
		for _, newest := range []bool{false, true} {
			want := slices.Clone(test.want)
			if newest {
				slices.Reverse(want)
			}
			q := runstore.IndexQuery{Index: "queue", From: test.from, Until: test.until, Newest: newest}
			what := fmt.Sprintf("%s, newest %t", test.what, newest)
			kit.Equal(t, what, scan(t, e.Store, q), want)
			q.Limit = 1
			var paged keys
			for _, entry := range kit.MustCollect(t, what, runstore.Entries(t.Context(), e.Store, q)) {
				paged = append(paged, entry.Record.Key)
			}
			kit.Equal(t, what+", in pages of one", paged, want)
		}
	}
}

func runsFrom(t harness.T, e *harness.Env) {
	want := []runstore.RunID{"c", "a", "d", "b"}
	for _, id := range want {
		if _, err := e.Store.CreateRun(t.Context(), runstore.RunSpec{ID: id, Runnable: runstore.After(0)}); err != nil {
			t.Fatalf("create: %v", err)
		}
		e.Advance(t, time.Millisecond)
	}
	for _, index := range []runstore.IndexName{runstore.IndexRuns, runstore.IndexRunnable} {
		entries := kit.Queue(t, e.Store, index)
		for i := range entries {
			for _, limit := range []int{1, 100} {
				what := fmt.Sprintf("%q from entry %d in pages of %d", index, i, limit)
				kit.Equal(t, what, heads(t, e.Store, runstore.IndexQuery{Index: index, From: entries[i].At, Limit: limit}), want[i:])
				newest := slices.Clone(want[i:])
				slices.Reverse(newest)
				kit.Equal(t, what+", newest first",
					heads(t, e.Store, runstore.IndexQuery{Index: index, From: entries[i].At, Limit: limit, Newest: true}), newest)
			}
		}
		kit.Equal(t, fmt.Sprintf("%q between the second and the third", index),
			heads(t, e.Store, runstore.IndexQuery{Index: index, From: entries[1].At, Until: entries[2].At, Limit: 100}), want[1:3])
	}
}

func entryCarriesHead(t harness.T, e *harness.Env) {
	e.Create(t, "plain")
	spec := kit.WithLease("held", "holder")
	spec.Status = 4
	spec.Writes.Put(runstore.SummaryKey, []byte("summary"))
	created, err := e.Store.CreateRun(t.Context(), spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	e.Append(t, e.Store, created.Lease, "so that there is a seq")
	for i, id := range []runstore.RunID{"held", "plain", "held"} {
		putIndexed(t, e.Store, id, runstore.RecordKey(fmt.Sprint("record ", i)), "queue", runstore.After(0))
		e.Advance(t, time.Millisecond)
	}
	other := e.Reopen(t)
	for _, newest := range []bool{false, true} {
		for _, limit := range []int{1, 100} {
			q := runstore.IndexQuery{Index: "queue", Newest: newest, Limit: limit}
			without := kit.MustCollect(t, "scan without heads", runstore.Entries(t.Context(), other, q))
			q.Heads = true
			with := kit.MustCollect(t, "scan with heads", runstore.Entries(t.Context(), other, q))
			if len(with) != 3 || len(without) != 3 {
				t.Fatalf("%d entries with heads and %d without, want 3 of each", len(with), len(without))
			}
			for i, entry := range with {
				kit.Equal(t, fmt.Sprintf("head of %q", entry.Record.Key), entry.Head, e.Get(t, entry.Run))
				kit.Equal(t, "head where none was asked for", without[i].Head, runstore.Run{})
				without[i].Head = entry.Head
				kit.Equal(t, "the entry but for its head", entry, without[i])
			}
		}
	}
	// A record that is the run's summary as well.
	putIndexed(t, e.Store, "plain", runstore.SummaryKey, "summaries", runstore.After(0))
	for _, entry := range kit.MustCollect(t, "scan", runstore.Entries(t.Context(), other, runstore.IndexQuery{Index: "summaries", Heads: true})) {
		kit.Equal(t, "head with the record as summary", entry.Head, e.Get(t, "plain"))
		kit.Equal(t, "the summary as record", entry.Record, entry.Head.Summary)
	}
}
