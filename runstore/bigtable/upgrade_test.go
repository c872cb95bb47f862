package bigtable_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// format2 returns a table that a program of format 2 filled: with the runs held, released and
// purged of epoch 1, and the run earlier, whose grant the epoch ended. Each had the grants
// "first grant" and then "last grant", and under the first of them a batch with an event and
// the record "record".
func format2(t *testing.T) (bigtableemulator.TableName, *client.Table) {
	t.Helper()
	dump, err := os.ReadFile("testdata/format2.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	table := newTable(t)
	tbl := raw(t, table)
	_ = open(t, table) // it makes the families
	place := regexp.MustCompile(`"incarnation":"[^"]*"`)
	here := place.Find(epochRow(t, tbl))
	cells := cells{}
	for line := range bytes.Lines(dump) {
		var c struct {
			Row, Column, Value []byte
			At                 client.Timestamp
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		cells[cellKey{string(c.Row), string(c.Column), c.At}] = place.ReplaceAll(c.Value, here)
	}
	cells.rollBack(t, tbl)
	return table, tbl
}

// lastGrant is the lease of the last grant of a run of format2.
func lastGrant(id runstore.RunID) runstore.Lease {
	return runstore.Lease{Run: id, Owner: "last", Token: runstore.Epoch(1).Floor() + 2, Grant: "last grant", TTL: time.Second}
}

// A store of the version before is opened with all that it holds, by however many processes at
// once. From then on a program of that version is refused when it opens the store, creates a
// run or acquires a lease.
func TestStoreOfTheVersionBefore(t *testing.T) {
	t.Parallel()
	table, tbl := format2(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := tryOpen(t, table); err != nil {
				t.Errorf("open: %v", err)
			}
		})
	}
	wg.Wait()
	for _, key := range keys(t, tbl, "g") {
		row, err := tbl.ReadRow(t.Context(), key, client.RowFilter(client.LatestNFilter(1)))
		if err != nil || !bytes.Contains(row["x"][0].Value, []byte(`"format":5`)) {
			t.Errorf("the row %q of the epochs: %v, %v, want format 5", key, row, err)
		}
	}
	s := openBare(t, table)
	if all, err := s.Epochs(t.Context()); err != nil || len(all) != 1 || all[0].Reason != "fixture" {
		t.Errorf("epochs: got %v, %v, want the one that the store has", all, err)
	}
	held, err := s.GetRun(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	h := held.Holder
	if h.Owner != "last" || h.TTL != time.Second || h.MaxStall != 0 || h.Former != runstore.EndNone || !h.GrantedAt.IsZero() || !h.ProgressedAt.IsZero() {
		t.Errorf("the holder is %+v, want what the version before stored", h)
	}
	lease := lastGrant("held")
	repeat := runstore.NewBatch("held", lease.Fence())
	repeat.ID = "batch"
	if done := commit(t, s, repeat); !done.Replayed || done.FirstSeq != 1 {
		t.Errorf("a batch of the version before, repeated: %+v, want seq 1, replayed", done)
	}
	checkpoint := appending(lease, "two")
	checkpoint.Put("record", []byte("two"), runstore.Place{Index: "queue", At: runstore.After(0)})
	commit(t, s, checkpoint)
	records, err := s.ReadRecords(t.Context(), "held", runstore.RecordQuery{Keys: []runstore.RecordKey{"record"}})
	if err != nil || len(records) != 1 || records[0].Version != 2 || records[0].Created.Token != 0 || records[0].Updated.Token != lease.Token {
		t.Errorf("the record: %+v, %v, want version 2, changed under token %v", records, err, lease.Token)
	}
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: time.Minute}); err != nil {
		t.Errorf("renew: %v", err)
	}
	for id, want := range map[runstore.RunID]runstore.GrantEnd{"earlier": runstore.EndRevoked, "released": runstore.EndReleased} {
		req := runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute, Grant: "first grant"}}
		if _, err := s.AcquireLease(t.Context(), req); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("run %q: a late copy of the first request: got %v, want ErrFenced", id, err)
		}
		req.Grant = "next grant"
		if granted, err := s.AcquireLease(t.Context(), req); err != nil || granted.Former != want {
			t.Errorf("run %q: acquired after a grant that was %v, %v, want %v", id, granted.Former, err, want)
		}
		// The version before kept whose a grant was that had ended, but not when.
		terms, err := s.ReadTerms(t.Context(), id)
		if err != nil || len(terms) != 2 || terms[0].Owner != "last" || terms[0].End != want || !terms[0].EndedAt.IsZero() || terms[1].Owner != "next" {
			t.Errorf("run %q: the terms are %+v, %v", id, terms, err)
		}
	}
	runs, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: runstore.IndexRuns, Until: runstore.EndOfTime, Limit: 10})
	if err != nil || len(runs) != 3 {
		t.Errorf("the runs: %v, %v, want 3", runs, err)
	}
}

// A head that has what a program of the version before would drop has a format that such a
// program refuses. A run without any of it keeps its format.
func TestOlderProgramIsRefused(t *testing.T) {
	t.Parallel()
	format := func(tbl *client.Table, id runstore.RunID) string {
		_, row := rowOf(t, tbl, id)
		for _, item := range row["h"] {
			if item.Column == "h:head" {
				var head struct{ Format int }
				if err := json.Unmarshal(item.Value, &head); err != nil {
					t.Fatal(err)
				}
				return fmt.Sprint(head.Format)
			}
		}
		return "none"
	}
	table, tbl := format2(t)
	s := openBare(t, table)
	commit(t, s, signal("released", "an event without a fence"))
	if got := format(tbl, "released"); got != "2" {
		t.Errorf("after a signal: format %s, want 2", got)
	}
	release := func(id runstore.RunID, w runstore.Writes) {
		if _, err := s.ReleaseLease(t.Context(), runstore.ReleaseRequest{Fence: lastGrant(id).Fence(), Writes: w}); err != nil {
			t.Fatal(err)
		}
	}
	status := runstore.Status(1)
	for what, write := range map[string]func(id runstore.RunID){
		"a commit under a fence": func(id runstore.RunID) { commit(t, s, appending(lastGrant(id), "event")) },
		"a renewal": func(id runstore.RunID) {
			if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lastGrant(id).Fence(), TTL: time.Minute}); err != nil {
				t.Fatal(err)
			}
		},
		"a grant":                     func(id runstore.RunID) { takeOver(t, s, id) },
		"a release with its result":   func(id runstore.RunID) { release(id, runstore.Writes{Status: &status}) },
		"a release, and then a grant": func(id runstore.RunID) { release(id, runstore.Writes{}); takeOver(t, s, id) },
	} {
		table, tbl = format2(t)
		s = openBare(t, table)
		write("held")
		want := "3"
		if strings.HasSuffix(what, "a grant") {
			want = "5"
		}
		if got := format(tbl, "held"); got != want {
			t.Errorf("after %s: format %s, want %s", what, got, want)
		}
	}
	table, tbl = format2(t)
	s = openBare(t, table)
	bigtable.SetMoveAbove(s, 3<<10)
	for i := range 60 {
		b := signal("held", "records")
		b.Put(runstore.RecordKey(fmt.Sprint("cold/", i)), []byte("value"))
		commit(t, s, b)
	}
	if err := bigtable.MoveRecords(t.Context(), s, "held", false); err != nil {
		t.Fatal(err)
	}
	if got := format(tbl, "held"); got != "4" {
		t.Errorf("after records left the row: format %s, want 4", got)
	}
	if found, err := openBare(t, table).ReadRecords(t.Context(), "held", runstore.RecordQuery{Limit: 100}); err != nil || len(found) != 61 {
		t.Errorf("after records left the row: got %d records, %v, want those of the version before and 60 more", len(found), err)
	}
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "unlisted", Unlisted: true}); err != nil {
		t.Fatal(err)
	}
	if got := format(tbl, "unlisted"); got != "5" {
		t.Errorf("a new run: format %s, want 5", got)
	}
}

// An unlisted run has no entry in the index of the runs, so that a scan never reads one.
func TestUnlistedRunsCostScansNothing(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	spec := runstore.RunSpec{ID: "registry", Unlisted: true}
	if _, err := s.CreateRun(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if found := keys(t, tbl, "i"); len(found) > 0 {
		t.Errorf("the index has %q, want nothing", found)
	}
	hold(t, s, "listed")
	if found := keys(t, tbl, "i"); len(found) != 1 || !strings.Contains(found[0], "listed") {
		t.Errorf("the index has %q, want the listed run", found)
	}
}

// A renewal that is too short to move the expiry is shown with its TTL, and leaves the expiry
// to the grant.
func TestShortRenewalIsShown(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other := openBare(t, table), openBare(t, table)
	lease := hold(t, s, "run")
	before, err := other.GetRun(t.Context(), "run")
	if err != nil {
		t.Fatal(err)
	}
	for _, ttl := range []time.Duration{time.Minute, 2 * runstore.MinTTL} {
		if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: ttl}); err != nil {
			t.Fatal(err)
		}
		after, err := other.GetRun(t.Context(), "run")
		if err != nil || after.Holder.TTL != ttl || !after.ExpiresAt.Equal(before.ExpiresAt) {
			t.Errorf("the run shows a TTL of %v and expires at %v, %v, want %v and %v", after.Holder.TTL, after.ExpiresAt, err, ttl, before.ExpiresAt)
		}
	}
	thief := takeOver(t, s, "run")
	if after, err := other.GetRun(t.Context(), "run"); err != nil || after.Holder.TTL != thief.TTL {
		t.Errorf("the next grant shows a TTL of %v, %v, want %v", after.Holder.TTL, err, thief.TTL)
	}
}

// A renewal that asks for the clock because of its holder's bound may come after the expiry,
// as any other of a lease that is not strict.
func TestStalledHolderRenewsAfterItsExpiry(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &runstore.LeaseSpec{
		Owner: "holder", TTL: runstore.MinTTL, MaxStall: 30 * time.Minute,
	}})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the lease", func() bool { return now(t, s).After(created.Lease.ExpiresAt) })
	l := keepLedger(t, table)
	n := l.during(func() {
		bigtable.Ahead(s, func() { // by which the bound has passed
			_, err = s.RenewLease(t.Context(), runstore.RenewRequest{Fence: created.Lease.Fence(), TTL: runstore.MinTTL})
		})
	})
	if want := rpcs(clock, swaps); err != nil || n != want {
		t.Errorf("renew: %v, got the RPCs %s, want %s", err, n, want)
	}
}
