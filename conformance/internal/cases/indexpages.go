package cases

import (
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/conformance/internal/panics"
	"github.com/tapestore/tapestore/runstore"
)

func indexPages(t harness.T, e *harness.Env) {
	const entries = 23
	base := e.Now(t)
	for i := range entries {
		id := runstore.RunID(fmt.Sprint("run-", i%5))
		if i < 5 {
			e.Create(t, id)
		}
		// Three entries at each time, so that a page also ends between equal times.
		putIndexed(t, e.Store, id, runstore.RecordKey(fmt.Sprint("key-", i)), "all", runstore.At(base.Add(time.Duration(i/3)*time.Second)))
	}
	for _, newest := range []bool{false, true} {
		q := runstore.IndexQuery{Index: "all", Until: runstore.EndOfTime, Newest: newest}
		whole := scan(t, e.Store, q)
		kit.Equal(t, "entries", len(whole), entries)
		for _, limit := range []int{1, 2, 5, entries, entries + 1} {
			q.Limit = limit
			var joined []runstore.RecordKey
			for _, entry := range kit.MustCollect(t, "pages", kit.AtMost(entries, runstore.Entries(t.Context(), e.Reopen(t), q))) {
				joined = append(joined, entry.Record.Key)
			}
			kit.Equal(t, fmt.Sprintf("pages of %d, newest first %t", limit, newest), joined, whole)
		}
		// Every cursor resumes after its own entry, even with an earlier bound.
		q.Limit = runstore.MaxPage
		all, err := e.Store.ScanIndex(t.Context(), q)
		if err != nil {
			t.Fatalf("scan: %v", err)
		}
		for i, entry := range all {
			q.After = entry.Cursor
			if rest := scan(t, e.Store, q); !slices.Equal(rest, whole[i+1:]) {
				t.Errorf("behind entry %d, newest first %t: got %q, want %q", i, newest, rest, whole[i+1:])
			}
		}
	}
}

func scanUnderChange(t harness.T, e *harness.Env) {
	const staying = 30
	changes := e.Scaled(t, "changes", 20, 60)
	ctx := t.Context()
	base := e.Now(t)
	at := func(i int) runstore.When { return runstore.At(base.Add(time.Duration(i) * time.Second)) }
	e.Create(t, "stays")
	e.Create(t, "moves")
	b := runstore.NewBatch("stays", runstore.Unguarded("test"))
	for i := range staying {
		b.Put(runstore.RecordKey(fmt.Sprintf("%02d", i)), nil, runstore.Place{Index: "all", At: at(2 * i)})
	}
	kit.MustCommit(t, e.Store, b)
	random := kit.Seeded(t)
	change := func() error {
		pick := random(0)
		for range changes {
			b := runstore.NewBatch("moves", runstore.Unguarded("test"))
			for key := range 3 {
				if key := runstore.RecordKey(fmt.Sprint(key)); pick.IntN(3) == 0 {
					b.Delete(key)
				} else {
					b.Put(key, nil, runstore.Place{Index: "all", At: at(2*pick.IntN(staying) + pick.IntN(2))})
				}
			}
			if _, err := e.Store.Commit(ctx, b); err != nil {
				return err
			}
		}
		return nil
	}
	watch := func(newest bool, limit int) func() error {
		s := e.Reopen(t)
		return func() error {
			q := runstore.IndexQuery{Index: "all", Until: runstore.EndOfTime, Newest: newest, Limit: limit}
			entries, err := kit.Collect(kit.AtMost(10*staying, runstore.Entries(ctx, s, q)))
			if err != nil {
				return err
			}
			var found []runstore.RecordKey
			for i, entry := range entries {
				if entry.Run == "stays" {
					found = append(found, entry.Record.Key)
				}
				if i > 0 && (entry.At.Before(entries[i-1].At) != newest && !entry.At.Equal(entries[i-1].At)) {
					return fmt.Errorf("newest first %t: an entry at %v follows one at %v", newest, entry.At, entries[i-1].At)
				}
			}
			if newest {
				slices.Reverse(found)
			}
			if len(found) != staying || !slices.IsSorted(found) || len(slices.Compact(found)) != staying {
				return fmt.Errorf("newest first %t: of %d entries that stay, a scan found %q", newest, staying, found)
			}
			return nil
		}
	}
	kit.During(t, change, watch(false, 7), watch(true, 7), watch(false, runstore.MaxPage))
}

func noStaleEntries(t harness.T, e *harness.Env) {
	const movers = 2
	moves := e.Scaled(t, "moves of each mover", 20, 60)
	ctx := t.Context()
	e.Create(t, "run")
	stores := kit.OpenHandles(t, e, movers)
	random := kit.Seeded(t)
	move := func(i int) error {
		pick := random(i)
		key := runstore.RecordKey(fmt.Sprint("record-", i))
		for range moves {
			b := runstore.NewBatch("run", runstore.Unguarded("test"))
			b.Append("move", nil)
			switch side := []runstore.IndexName{"left", "right", "", "gone"}[pick.IntN(4)]; side {
			case "gone":
				b.Delete(key)
			case "":
				b.Put(key, nil)
			default:
				b.Put(key, []byte(side), runstore.Place{Index: side, At: runstore.After(0)})
			}
			if _, err := stores[i].Commit(ctx, b); err != nil {
				return err
			}
		}
		return nil
	}
	watch := func(side runstore.IndexName) func() error {
		s := e.Reopen(t)
		return func() error {
			entries, err := s.ScanIndex(ctx, runstore.IndexQuery{Index: side, Until: runstore.EndOfTime, Limit: 10})
			if err != nil {
				return err
			}
			for _, entry := range entries {
				r := entry.Record
				if string(r.Value) != string(side) || r.Updated.Time != entry.At {
					return fmt.Errorf("index %q returned %q at version %d, whose value says that it is in %q", side, r.Key, r.Version, r.Value)
				}
				now, err := s.ReadRecords(ctx, "run", runstore.RecordQuery{Keys: []runstore.RecordKey{r.Key}})
				if err != nil {
					return err
				}
				if len(now) == 1 && now[0].Version < r.Version {
					return fmt.Errorf("index %q returned %q at version %d, a later read version %d", side, r.Key, r.Version, now[0].Version)
				}
				if len(now) == 1 && now[0].Version == r.Version && string(now[0].Value) != string(side) {
					return fmt.Errorf("index %q returned %q at version %d, which is in %q", side, r.Key, r.Version, now[0].Value)
				}
			}
			return nil
		}
	}
	kit.During(t, func() error {
		errs := make(chan error, movers)
		for i := range movers {
			go func() { errs <- panics.Caught(func() error { return move(i) }) }()
		}
		var failed error
		for range movers {
			if err := <-errs; err != nil {
				failed = err
			}
		}
		return failed
	}, watch("left"), watch("right"))

	// After the writes, the indexes and the records agree.
	for _, side := range []runstore.IndexName{"left", "right"} {
		var want, got []string
		for _, r := range kit.MustCollect(t, "records", runstore.Records(ctx, e.Store, "run", "")) {
			if string(r.Value) == string(side) {
				want = append(want, fmt.Sprint(r.Key, r.Version))
			}
		}
		for _, entry := range kit.Queue(t, e.Store, side) {
			got = append(got, fmt.Sprint(entry.Record.Key, entry.Record.Version))
		}
		slices.Sort(got)
		kit.Equal(t, fmt.Sprintf("index %q at the end", side), got, want)
	}
}
