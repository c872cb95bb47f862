package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tapestore/tapestore/conformance/engines/embedded"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/sqlite"
)

// manyRecords returns the path of a store whose run "run" has n records "z/000001" to n, and three records
// each whose keys begin with "a/" and with 0xff.
func manyRecords(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	b := runstore.NewBatch("run", held(t, s, runstore.MaxTTL).Fence())
	for _, key := range []runstore.RecordKey{"a/1", "a/2", "a/3", "\xff", "\xff\xff", "\xff\xff\xff"} {
		b.Put(key, []byte("value"))
	}
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	exec(t, path, fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		INSERT INTO records (run, key, version, value, created_seq, created, updated_seq, updated, places)
		SELECT runs.no, CAST(printf('z/%%06d', i) AS BLOB), 1, x'', 0, 0, 0, 0, 0 FROM n, runs`, n))
	return path
}

// TestPageOfRecordsReadsWhatItReturns counts the pages of the file that a page of records reads, on a
// handle without any of them in memory. The count does not depend on how many records the run has
// behind the prefix, or between the prefix and the key after which the page begins.
func TestPageOfRecordsReadsWhatItReturns(t *testing.T) {
	t.Parallel()
	few, many := manyRecords(t, 100), manyRecords(t, 20_000)
	d := newDisk(t)
	for name, tc := range map[string]struct {
		q    runstore.RecordQuery
		want []runstore.RecordKey
	}{
		"that does not fill":        {runstore.RecordQuery{Prefix: "a/", Limit: 10}, []runstore.RecordKey{"a/1", "a/2", "a/3"}},
		"after a key":               {runstore.RecordQuery{Prefix: "a/", After: "a/2", Limit: 10}, []runstore.RecordKey{"a/3"}},
		"after a key before":        {runstore.RecordQuery{Prefix: "a/2", After: "a/1", Limit: 10}, []runstore.RecordKey{"a/2"}},
		"after a key behind":        {runstore.RecordQuery{Prefix: "a/", After: "z", Limit: 10}, nil},
		"at the end of many":        {runstore.RecordQuery{After: "z/999999", Limit: 2}, []runstore.RecordKey{"\xff", "\xff\xff"}},
		"with a prefix without end": {runstore.RecordQuery{Prefix: "\xff\xff", Limit: 10}, []runstore.RecordKey{"\xff\xff", "\xff\xff\xff"}},
	} {
		t.Run(name, func(t *testing.T) {
			reads := func(path string) (n int) {
				options := sqlite.Options{Clock: embedded.NewHost(), Readers: 1}
				s, err := sqlite.Open(t.Context(), path, options.OnFileSystem(d.name))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = s.Close() }()
				d.set(func(call, _ string) fault {
					if call == "read" {
						n++
					}
					return fault{}
				})
				defer d.set(nil)
				page, err := s.ReadRecords(t.Context(), "run", tc.q)
				if err != nil {
					t.Fatal(err)
				}
				var got []runstore.RecordKey
				for _, r := range page {
					got = append(got, r.Key)
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("got the keys %q, want %q", got, tc.want)
				}
				return n
			}
			// The index of many records has up to two more levels.
			if few, many := reads(few), reads(many); few == 0 || many > few+4 {
				t.Errorf("read %d pages of the file beside 20000 records, and %d beside 100", many, few)
			}
		})
	}
}

// TestQueryEndsWithItsContext ends the context of a read while its rows are read.
func TestQueryEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "tape.db"), embedded.NewHost())
	ctx, cancel := context.WithCancel(t.Context())
	const all, enough = 100_000, 10
	rows := 0
	err := sqlite.ReadRows(ctx, s, all, func() {
		if rows++; rows == enough {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable because of the context", err)
	}
	if after := rows - enough; after > sqlite.RowsPerLook {
		t.Errorf("read %d rows after the context had ended, want at most %d", after, sqlite.RowsPerLook)
	}
	rows = enough // the reader is free again
	if err := sqlite.ReadRows(t.Context(), s, all, func() { rows++ }); err != nil || rows != enough+all {
		t.Errorf("the next read: got %d rows, %v, want %d", rows-enough, err, all)
	}
}

// TestFeedEndsWithItsContextBehindAPurge ends the context of a read while it passes the events of a purged run
// that are not deleted yet.
func TestFeedEndsWithItsContextBehindAPurge(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tape.db")
	s := openAt(t, path, embedded.NewHost())
	b := runstore.NewBatch("run", held(t, s, runstore.MaxTTL).Fence())
	for range 2*sqlite.RowsPerLook + 10 {
		b.Append("test", nil)
	}
	if _, err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	// read returns how often a read looks at its context, which ends at look number last.
	read := func(newest bool, last int) (looks int, events []runstore.FeedEvent, err error) {
		events, err = s.ReadFeed(hookContext{t.Context(), func() error {
			if looks++; last > 0 && looks >= last {
				return context.DeadlineExceeded
			}
			return nil
		}}, runstore.FeedQuery{Limit: 10, Newest: newest})
		return looks, events, err
	}
	for _, newest := range []bool{false, true} {
		few, events, err := read(newest, 0)
		if err != nil || len(events) != 10 {
			t.Fatalf("newest %t: %d events, %v, want a page", newest, len(events), err)
		}
		query[int64](t, path, "UPDATE runs SET no = -no RETURNING no") // as a purge does first
		many, events, err := read(newest, 0)
		if err != nil || len(events) != 0 || many != few+2 {
			t.Errorf("newest %t: %d events, %v, %d looks behind the purge and %d without, want two more", newest, len(events), err, many, few)
		}
		if _, _, err := read(newest, many); !errors.Is(err, runstore.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("newest %t: got %v, want ErrUnavailable and context.DeadlineExceeded", newest, err)
		}
		query[int64](t, path, "UPDATE runs SET no = -no RETURNING no")
	}
}
