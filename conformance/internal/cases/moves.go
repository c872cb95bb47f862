package cases

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tapestore/tapestore/archive"
	"github.com/tapestore/tapestore/conformance/harness"
	"github.com/tapestore/tapestore/conformance/internal/kit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// Moves returns the cases of runs that are moved to another store.
func Moves() []harness.Case {
	return []harness.Case{
		{Guarantee: "I4", Name: "a-moved-run-is-as-it-was", Needs: []harness.Need{harness.NeedMove}, Run: moves, Doc: `
			Runs with events of several terms, with records in queues, records that were deleted, a status and a
			runnable time, and an unlisted run without an event, are exported, imported into the reference store,
			purged, and imported back. Everything but positions is as it was, the indexes are, and new records begin
			above every version of before. Grants of before are over, and new tokens are higher (I2). A store that
			gives imported events the time or the token of the import rewrites history; one that loses an index entry
			loses work.`},
		{Guarantee: "I4", Name: "a-scan-of-runs-goes-past-purged-ones", Needs: []harness.Need{harness.NeedMove}, Run: scansPastPurged, Doc: `
			Of ten runs seven are purged: the first three of a scan, three in the middle and the last. Scans in pages of
			one, two and ten runs then find exactly the three that are left, in the same order. A store that takes a page
			of purged runs for the end leaves the rest out of an export, which reports success.`},
		{Guarantee: "I4", Name: "a-part-of-a-history-is-imported-once", Needs: []harness.Need{harness.NeedMove}, Run: importsOnce, Doc: `
			A part of a history with events is sent twice, and one that leaves a gap is sent: both are ErrConflict and
			change nothing. A part with a token, version or floor out of range is ErrInvalid. A store that appends
			events whatever their seq makes a journal that contradicts the records that name its seqs.`},
		{Guarantee: "I4", Name: "a-purge-of-an-imported-run-keeps-its-versions", Needs: []harness.Need{harness.NeedMove}, Run: purgesImported, Doc: `
			Two runs are imported, one with a record of version 300 above a floor of 40, one with a record of version 40
			below a floor of 300. Both are purged and created anew, and a new record begins above version 300, also
			after the import of a part with a lower floor. A store that counts only the writes that it has applied
			itself gives a version again, and a caller of before the purge that expects it changes a record of the new
			run.`},
		{Guarantee: "I2", Name: "an-import-ends-in-a-revocation", Needs: []harness.Need{harness.NeedMove}, Run: importsRevoke, Doc: `
			The last part of an import ends the importer's grant, and the next holder reads that the grant was revoked. A
			store that reports a release makes the next driver skip the recovery of what the driver in the other
			store has left unfinished.`},
		{Guarantee: "I4", Name: "an-import-replaces-no-record", Needs: []harness.Need{harness.NeedMove}, Run: importsNewRecords, Doc: `
			A part with records and no event is sent again, as it was and after a record of it was changed. Both are
			ErrConflict and change nothing. A store that applies them sets a record back to a value and a version
			of before.`},
		{Guarantee: "I9", Name: "imported-times-are-truncated", Needs: []harness.Need{harness.NeedMove}, Run: importsTruncated, Doc: `
			An event and three records of a queue are imported whose times have nanoseconds. The journal and the records
			have them truncated to microseconds. A scan in pages of one entry has the record that was changed last as
			the last one, and ends after all three, in each direction. A store that orders entries by nanoseconds, while
			its cursors have microseconds, returns an entry for ever, or leaves one out.`},
	}
}

// seedMoves makes the runs that are moved, and returns the fence of a grant that is live.
func seedMoves(t harness.T, e *harness.Env) runstore.Lease {
	t.Helper()
	const odd = "\xff\x00 odd"
	kit.SeedFixture(t, e, "run")
	lease := kit.MustAcquire(t, e.Store, kit.Preempting("run", "second", "test"))
	b := runstore.NewBatch("run", lease.Fence())
	at := time.Unix(1_900_000_000, 123_000)
	b.Append("kind"+odd, []byte(odd))
	b.Append("kind", nil)
	b.Put(odd, []byte(odd), runstore.Place{Index: "queue-b", At: runstore.At(at)}, runstore.Place{Index: odd, At: runstore.At(at.Add(time.Hour))})
	b.Put("a", []byte("new"))
	b.Delete("gone")
	status := runstore.Status(7)
	b.Status, b.Runnable = &status, runstore.At(at)
	kit.MustCommit(t, e.Store, b)
	spec := runstore.RunSpec{ID: "unlisted" + odd, Unlisted: true}
	spec.Writes.Put("value", []byte("v"))
	if _, err := e.Store.CreateRun(t.Context(), spec); err != nil {
		t.Fatalf("create: %v", err)
	}
	return lease
}

func moves(t harness.T, e *harness.Env) {
	lease := seedMoves(t, e)
	before := scanMoved(t, e.Store)
	original := memory.New(nil).Open()
	defer func() { _ = original.Close() }() // it holds nothing
	move(t, e.Store, original)
	verify(t, e.Store, original, 2)
	kit.Equal(t, "entries in the reference store", scanMoved(t, original), before)

	ids, err := kit.Capability[runstore.Mover](e.Store).ScanRuns(t.Context(), "", 1)
	for n := 0; err == nil && len(ids) > 0 && n < 10; n++ {
		b := runstore.NewBatch(ids[0], runstore.Unguarded("test"))
		b.Purge = true
		kit.MustCommit(t, e.Store, b)
		ids, err = kit.Capability[runstore.Mover](e.Store).ScanRuns(t.Context(), ids[0], 1)
	}
	if err != nil {
		t.Fatalf("scan runs: %v", err)
	}
	for range 2 { // the reference store is in epoch 1; the case counts the epochs that it raises itself
		e.RaiseEpoch(t, e.Store, "import")
	}
	// A run that the store under test has never had, with a version that only the floor shows.
	spec := runstore.RunSpec{ID: "new", Unlisted: true}
	spec.Writes.Put("gone", nil)
	if _, err := original.CreateRun(t.Context(), spec); err != nil {
		t.Fatalf("create: %v", err)
	}
	kit.Remove(t, original, "new", "gone", 1)
	move(t, original, e.Store)
	verify(t, original, e.Store, 3)
	kit.Equal(t, "entries after the move back", scanMoved(t, e.Store), before)
	run := e.Get(t, "run")
	b := runstore.NewBatch("run", lease.Fence())
	b.Append("late", nil)
	_, err = e.Store.Commit(t.Context(), b)
	kit.CheckFenced(t, "the fence of before", err, lease, run)
	if next := e.Acquire(t, e.Store, "run", "driver"); next.Token <= lease.Token || next.Token <= run.Token {
		t.Errorf("token %v after the move follows token %v, and %v before the move", next.Token, run.Token, lease.Token)
	}
	if v := kit.Put(t, e.Store, "new", "gone", 0, "again"); v < 2 {
		t.Errorf("a record that was deleted before the move begins at version %d again", v)
	}
}

func scansPastPurged(t harness.T, e *harness.Env) {
	const runs = 10
	mover := kit.Capability[runstore.Mover](e.Store)
	scan := func(limit int) (all []runstore.RunID) {
		t.Helper()
		for after := runstore.RunID(""); len(all) <= runs; after = all[len(all)-1] {
			page, err := mover.ScanRuns(t.Context(), after, limit)
			if err != nil || len(page) > limit {
				t.Fatalf("scan of %d runs after %q: %q, %v", limit, after, page, err)
			}
			if len(page) == 0 {
				break
			}
			all = append(all, page...)
		}
		return all
	}
	for i := range runs {
		e.Create(t, runstore.RunID(fmt.Sprint("run-", i)))
	}
	all := scan(runs)
	if len(all) != runs {
		t.Fatalf("a scan finds the runs %q, want %d", all, runs)
	}
	left := []runstore.RunID{all[3], all[4], all[8]}
	for _, id := range all {
		if !slices.Contains(left, id) {
			b := runstore.NewBatch(id, runstore.Unguarded("test"))
			b.Purge = true
			kit.MustCommit(t, e.Store, b)
		}
	}
	for _, limit := range []int{1, 2, runs} {
		kit.Equal(t, fmt.Sprintf("runs in pages of %d", limit), scan(limit), left)
	}
}

// scanMoved returns the entries of the indexes in which the moved runs are.
func scanMoved(t harness.T, s runstore.RunStore) (all []string) {
	t.Helper()
	for _, index := range append(slices.Clone(kit.AllIndexes), "\xff\x00 odd") {
		page, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: index, Until: runstore.EndOfTime, Limit: runstore.MaxPage})
		if err != nil {
			t.Fatalf("scan %q: %v", index, err)
		}
		for _, entry := range page {
			all = append(all, fmt.Sprintf("%q: %q %q version %d at %v", index, entry.Run, entry.Record.Key, entry.Record.Version, entry.At))
		}
	}
	slices.Sort(all)
	return all
}

// move exports a store and imports it into another.
func move(t harness.T, from, to runstore.RunStore) {
	t.Helper()
	var moved bytes.Buffer
	if _, err := archive.Export(t.Context(), from, &moved, nil); err != nil {
		t.Fatalf("export: %v", err)
	}
	if _, err := archive.Import(t.Context(), archive.Stream("archive", &moved), to, &archive.ImportOptions{RaiseEpoch: true}); err != nil {
		t.Fatalf("import: %v", err)
	}
}

// verify compares two stores of that many runs.
func verify(t harness.T, original, copied runstore.RunStore, runs int64) {
	t.Helper()
	report, err := archive.Verify(t.Context(), original, copied, &archive.VerifyOptions{
		Found: func(d archive.Difference) { t.Errorf("%v", d) },
	})
	if err != nil || report.Compared.Runs != runs {
		t.Fatalf("verify: %+v, %v", report, err)
	}
}

func importsOnce(t harness.T, e *harness.Env) {
	mover := kit.Capability[runstore.Mover](e.Store)
	e.RaiseEpoch(t, e.Store, "import")
	e.Create(t, "run")
	lease := e.Acquire(t, e.Store, "run", "importer")
	at := time.Unix(1_700_000_000, 0)
	part := func(first runstore.Seq) runstore.Import {
		p := runstore.Import{Fence: lease.Fence()}
		for i := range runstore.Seq(3) {
			p.Events = append(p.Events, runstore.Event{Seq: first + i, Kind: "kind", Data: []byte("data"), Time: at, Token: 5, Owner: "former"})
		}
		return p
	}
	done, err := mover.Import(t.Context(), part(1))
	if err != nil || done.FirstSeq != 1 || done.LastSeq != 3 {
		t.Fatalf("import: %+v, %v", done, err)
	}
	before := kit.Dump(t, e.Store, "run")
	for _, first := range []runstore.Seq{1, 2, 5} {
		if _, err := mover.Import(t.Context(), part(first)); !errors.Is(err, runstore.ErrConflict) {
			t.Errorf("events from seq %d after seq 3: %v, want ErrConflict", first, err)
		}
	}
	kit.CheckUnchanged(t, "refused parts", before, kit.Dump(t, e.Store, "run"))
	above := part(4)
	above.Events[2].Token = lease.Token
	if _, err := mover.Import(t.Context(), above); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("an event with the token of the fence: %v, want ErrInvalid", err)
	}
	beyond := partOfRecords(lease, 1<<53, "record")
	if _, err := mover.Import(t.Context(), beyond); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("a record at version 2⁵³: %v, want ErrInvalid", err)
	}
	if _, err := mover.Import(t.Context(), runstore.Import{Fence: lease.Fence(), Floor: 1 << 53}); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("a floor of 2⁵³: %v, want ErrInvalid", err)
	}
	if _, err := mover.Import(t.Context(), part(4)); err != nil {
		t.Errorf("the next part: %v", err)
	}
}

func purgesImported(t harness.T, e *harness.Env) {
	e.RaiseEpoch(t, e.Store, "import")
	for _, at := range []struct {
		run            runstore.RunID
		version, floor runstore.Version
	}{{"above", 300, 40}, {"below", 40, 300}} {
		e.Create(t, at.run)
		part := partOfRecords(e.Acquire(t, e.Store, at.run, "importer"), at.version, "record")
		part.Floor = at.floor
		if _, err := kit.Capability[runstore.Mover](e.Store).Import(t.Context(), part); err != nil {
			t.Fatalf("import: %v", err)
		}
		b := runstore.NewBatch(at.run, runstore.Unguarded("test"))
		b.Purge = true
		kit.MustCommit(t, e.Store, b)
		e.Create(t, at.run)
		if v := kit.Put(t, e.Store, at.run, "record", 0, "new"); v <= 300 {
			t.Errorf("run %q: a record of version %d and a floor of %d were imported; after a purge a new record begins at version %d",
				at.run, at.version, at.floor, v)
		}
		// A part with a lower floor does not lower that of the run.
		part = partOfRecords(e.Acquire(t, e.Store, at.run, "importer"), 1, "second")
		part.Floor = 1
		if _, err := kit.Capability[runstore.Mover](e.Store).Import(t.Context(), part); err != nil {
			t.Fatalf("import: %v", err)
		}
		if v := kit.Put(t, e.Store, at.run, "third", 0, "new"); v <= 300 {
			t.Errorf("run %q: the floor is at least 300, and after an import with floor 1 a new record begins at version %d", at.run, v)
		}
	}
}

func importsRevoke(t harness.T, e *harness.Env) {
	e.RaiseEpoch(t, e.Store, "import")
	e.Create(t, "run")
	part := partOfRecords(e.Acquire(t, e.Store, "run", "importer"), 3, "record")
	part.Release = true
	if _, err := kit.Capability[runstore.Mover](e.Store).Import(t.Context(), part); err != nil {
		t.Fatalf("import: %v", err)
	}
	if run := e.Get(t, "run"); run.Holder.Token != 0 {
		t.Errorf("after the import the holder is %+v", run.Holder)
	}
	granted, err := e.Store.AcquireLease(t.Context(), kit.Acquiring("run", "driver", harness.TTL))
	if err != nil || granted.Former != runstore.EndRevoked {
		t.Errorf("the grant after the import: former %v, %v, want %v", granted.Former, err, runstore.EndRevoked)
	}
}

func importsNewRecords(t harness.T, e *harness.Env) {
	mover := kit.Capability[runstore.Mover](e.Store)
	e.RaiseEpoch(t, e.Store, "import")
	e.Create(t, "run")
	part := partOfRecords(e.Acquire(t, e.Store, "run", "importer"), 3, "a", "b")
	if _, err := mover.Import(t.Context(), part); err != nil {
		t.Fatalf("import: %v", err)
	}
	refused := func(what string) {
		t.Helper()
		before := kit.Dump(t, e.Store, "run", kit.AllIndexes...)
		if _, err := mover.Import(t.Context(), part); !errors.Is(err, runstore.ErrConflict) {
			t.Errorf("%s: %v, want ErrConflict", what, err)
		}
		kit.CheckUnchanged(t, what, before, kit.Dump(t, e.Store, "run", kit.AllIndexes...))
	}
	refused("a part that is sent again")
	kit.Remove(t, e.Store, "run", "a", 3)
	kit.Put(t, e.Store, "run", "b", 3, "changed")
	refused("a part with a record that was changed since")
}

func importsTruncated(t harness.T, e *harness.Env) {
	e.RaiseEpoch(t, e.Store, "import")
	e.Create(t, "run")
	part := partOfRecords(e.Acquire(t, e.Store, "run", "importer"), 3, "a", "b", "c")
	want := time.Unix(1_700_000_000, 123_456_000).UTC()
	part.Events = []runstore.Event{{Seq: 1, Kind: "kind", Time: want.Add(789)}}
	for i := range part.Records {
		part.Records[i].Created.Time, part.Records[i].Updated.Time = want.Add(987), want.Add(998-time.Duration(i))
	}
	const later = time.Millisecond // "a" was changed later: its entry comes after the others of the same time
	part.Records[0].Updated.Time = part.Records[0].Updated.Time.Add(later)
	if _, err := kit.Capability[runstore.Mover](e.Store).Import(t.Context(), part); err != nil {
		t.Fatalf("import: %v", err)
	}
	if part.Events[0].Time != want.Add(789) {
		t.Errorf("the import has changed the caller's events")
	}
	page, err := e.Store.ReadJournal(t.Context(), "run", 1, 10)
	if err != nil || len(page) != 1 || !page[0].Time.Equal(want) {
		t.Errorf("got the events %+v, %v, want one at %v", page, err, want)
	}
	records, err := e.Store.ReadRecords(t.Context(), "run", runstore.RecordQuery{Limit: 10})
	if err != nil || len(records) != 3 {
		t.Fatalf("got the records %+v, %v, want three", records, err)
	}
	for i, r := range records {
		updated := want
		if i == 0 {
			updated = want.Add(later)
		}
		if !r.Created.Time.Equal(want) || !r.Updated.Time.Equal(updated) {
			t.Errorf("the record %q was created at %v and changed at %v, want %v and %v", r.Key, r.Created.Time, r.Updated.Time, want, updated)
		}
	}
	scan := func(newest bool) (keys []string) {
		t.Helper()
		q := runstore.IndexQuery{Index: "queue-a", Newest: newest, Limit: 1}
		for range 4 { // more than there are
			entries, err := e.Store.ScanIndex(t.Context(), q)
			if err != nil {
				t.Fatalf("scan: %v", err)
			}
			for _, one := range entries {
				keys = append(keys, string(one.Record.Key))
				q.After = one.Cursor
			}
		}
		return keys
	}
	// b and c are equal in both times, so the engine chooses their order.
	up, down := scan(false), scan(true)
	if got := strings.Join(up, " "); got != "b c a" && got != "c b a" {
		t.Errorf("pages of one entry: got %q, want b and c before a", got)
	}
	slices.Reverse(down)
	if !slices.Equal(up, down) {
		t.Errorf("pages of one entry, from the newest and reversed: got %q, want %q", down, up)
	}
}

// partOfRecords returns a part of a history that has only records, each in a queue.
func partOfRecords(lease runstore.Lease, version runstore.Version, keys ...runstore.RecordKey) runstore.Import {
	part := runstore.Import{Fence: lease.Fence()}
	at := time.Unix(1_700_000_000, 0)
	for _, key := range keys {
		part.Records = append(part.Records, runstore.PlacedRecord{
			Record: runstore.Record{
				Key: key, Version: version, Value: []byte("value"),
				Created: runstore.Stamp{Time: at, Token: 5}, Updated: runstore.Stamp{Time: at, Token: 5},
			},
			Index: []runstore.Place{{Index: "queue-a", At: runstore.At(at)}},
		})
	}
	return part
}
