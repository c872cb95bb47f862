package bigtable_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// crowd is a queue of many runs, spread over its shards, and one record that moves
// between its ends.
type crowd struct {
	table         bigtableemulator.TableName
	s, scanner    *bigtable.Store
	stayers       []runstore.RunID
	first, last   time.Time
	newest        bool
	before, after time.Time // where the mover is before and after it moved
}

func newCrowd(t *testing.T, newest bool) *crowd {
	t.Helper()
	table := newTable(t)
	c := &crowd{table: table, s: openBare(t, table), scanner: openBare(t, table), newest: newest}
	now, err := c.s.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.first, c.last = now.Add(-time.Hour), now
	for i := range 60 { // so many that the second page, too, is read shard by shard
		id := runstore.RunID(fmt.Sprint("stays ", i))
		c.create(t, id, c.first.Add(time.Duration(i+1)*time.Second))
		c.stayers = append(c.stayers, id)
	}
	if newest {
		slices.Reverse(c.stayers)
		c.first, c.last = c.last, c.first
	}
	c.create(t, "mover", c.last)
	return c
}

// create makes a run that stands at a time.
func (c *crowd) create(t *testing.T, id runstore.RunID, at time.Time) {
	t.Helper()
	spec := runstore.RunSpec{ID: id}
	spec.Writes.Put("key", []byte(at.String()), runstore.Place{Index: "queue", At: runstore.At(at)})
	if _, err := c.s.CreateRun(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

// move has the mover stand at a time.
func (c *crowd) move(t *testing.T, at time.Time) {
	t.Helper()
	b := runstore.NewBatch("mover", runstore.Unguarded("test"))
	b.Put("key", []byte(at.String()), runstore.Place{Index: "queue", At: runstore.At(at)})
	commit(t, c.s, b)
}

func (c *crowd) query(after runstore.Cursor, limit int) runstore.IndexQuery {
	return runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, After: after, Limit: limit, Newest: c.newest}
}

// check checks a page that begins with the n-th stayer: in order, without a gap and
// without a repeat, and nothing in it but what was true while it was read. It returns
// how often it has the mover.
func (c *crowd) check(t *testing.T, what string, page []runstore.IndexEntry, n int) (movers int) {
	t.Helper()
	for i, e := range page {
		if i > 0 && (e.At.Before(page[i-1].At) != c.newest || e.At.Equal(page[i-1].At)) {
			t.Errorf("%s: the entry at %v comes after the one at %v", what, e.At, page[i-1].At)
		}
		if string(e.Record.Value) != e.At.String() {
			t.Errorf("%s: the entry at %v carries the record of %s", what, e.At, e.Record.Value)
		}
		switch {
		case e.Run == "mover":
			movers++
			if !e.At.Equal(c.before) && !e.At.Equal(c.after) {
				t.Errorf("%s: the mover is at %v, and was at %v and %v", what, e.At, c.before, c.after)
			}
		case n >= len(c.stayers) || e.Run != c.stayers[n]:
			t.Errorf("%s: %q comes as number %d", what, e.Run, n)
			return movers
		default:
			n++
		}
	}
	return movers
}

// A record that moves while a scan reads, from a place that the scan has not reached to
// one that it has passed or the other way, is found: by that scan, if its page has both
// places, and by the next one in any case. What stays is met once and in order, and nothing
// is returned that was never true.
func TestRecordMovesDuringAScan(t *testing.T) {
	t.Parallel()
	for _, newest := range []bool{false, true} {
		for _, way := range []string{"back to what was read", "on to what was not"} {
			t.Run(fmt.Sprintf("%s, newest first %v", way, newest), func(t *testing.T) {
				t.Parallel()
				c := newCrowd(t, newest)
				c.before, c.after = c.last, c.first
				if way == "on to what was not" {
					c.before, c.after = c.first, c.last
				}
				// Before the entries are read, before each shard is, while some are, before
				// the runs are, and in pages: before each of these again.
				for _, n := range []int{0, 1, 9, 17} {
					for _, limit := range []int{100, 20} {
						c.scan(t, n, limit)
					}
				}
			})
		}
	}
}

// scan has the record move before the n-th read of a scan, of the second page if the
// first does not have all.
func (c *crowd) scan(t *testing.T, n, limit int) {
	t.Helper()
	what := fmt.Sprintf("pages of %d, held from request %d on", limit, n)
	c.move(t, c.before)
	read := func(s *bigtable.Store, after runstore.Cursor, limit int) []runstore.IndexEntry {
		page, err := s.ScanIndex(t.Context(), c.query(after, limit))
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		return page
	}
	var cursor runstore.Cursor
	stayers := 0
	if limit < len(c.stayers) {
		page := read(c.scanner, "", limit)
		stayers = len(page) - c.check(t, what+", the first page", page, 0)
		cursor = page[len(page)-1].Cursor
	}
	var page []runstore.IndexEntry
	moved := whilePaused(t, c.table, "scan index", n, func() { page = read(c.scanner, cursor, limit) }, func() { c.move(t, c.after) })
	if !moved && (n < 2 || limit < len(c.stayers)) {
		t.Fatalf("%s: there are not so many", what)
	}
	if !moved {
		return
	}
	movers := c.check(t, what, page, stayers)
	if limit > len(c.stayers) && (movers != 1 || len(page) != len(c.stayers)+1) {
		t.Errorf("%s: got %d entries, the mover %d times, want %d and once", what, len(page), movers, len(c.stayers)+1)
	}
	c.before, c.after = c.after, c.before
	defer func() { c.before, c.after = c.after, c.before }()
	page = read(c.scanner, "", 100)
	if movers := c.check(t, what+", the next scan", page, 0); movers != 1 || len(page) != len(c.stayers)+1 {
		t.Errorf("%s: the next scan has %d entries, the mover %d times", what, len(page), movers)
	}
}

// Pages of a queue have all entries, in each direction, though some shards have many more than others in the
// time of a page.
func TestPagesOverManyShards(t *testing.T) {
	t.Parallel()
	s := openBare(t, newTable(t))
	const runs, records = 8, 60
	base := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	for i := range runs {
		lease := hold(t, s, runstore.RunID(fmt.Sprint("run ", i)))
		b := appending(lease)
		for j := range records {
			at := base.Add(time.Duration((j-records/2)*(1+5*i)) * time.Second)
			b.Put(runstore.RecordKey(fmt.Sprint(j)), nil, runstore.Place{Index: "queue", At: runstore.At(at)})
		}
		commit(t, s, b)
	}
	for _, newest := range []bool{false, true} {
		for _, limit := range []int{30, 100} {
			var last time.Time
			n := 0
			for e, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: "queue", Limit: limit, Newest: newest}) {
				if err != nil {
					t.Fatal(err)
				}
				if n > 0 && (newest && e.At.After(last) || !newest && e.At.Before(last)) {
					t.Fatalf("newest first %t: an entry at %v comes after one at %v", newest, e.At, last)
				}
				last = e.At
				n++
			}
			if n != runs*records {
				t.Errorf("newest first %t, limit %d: got %d entries, want %d", newest, limit, n, runs*records)
			}
		}
	}
}

// A record moves on before each of the first three requests with which a scan verifies entries, so that the
// scan takes it ahead of its place. The scan does not skip the entries before it.
func TestRecordMovesAheadOfAScan(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 2} {
		t.Run(fmt.Sprint("limit ", limit), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s := openBare(t, table)
			now, err := s.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			put := func(id runstore.RunID, key string, at float64) {
				t.Helper()
				b := runstore.NewBatch(id, runstore.Unguarded("test"))
				b.Put(runstore.RecordKey(key), nil, runstore.Place{Index: "queue", At: runstore.At(now.Add(time.Duration(at * float64(time.Second))))})
				commit(t, s, b)
			}
			// Each shard has fewer entries than one request reads of it, so the first candidates are all. All
			// but the last are stale.
			const n, live = 224, 150
			runs := map[string]runstore.RunID{}
			for i := 0; len(runs) < 16; i++ {
				id := runstore.RunID(fmt.Sprint("run ", i))
				if shard := bigtable.Shard(id); runs[shard] == "" {
					runs[shard] = id
					if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id}); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i := 1; i <= n; i++ {
				id, key := runs[string([]byte{byte(i % 16)})], fmt.Sprint(i)
				if put(id, key, float64(i)); i < live {
					b := runstore.NewBatch(id, runstore.Unguarded("test"))
					b.Put(runstore.RecordKey(key), nil)
					commit(t, s, b)
				}
			}
			mover := runs["\x00"]
			put(mover, "mover", 0)
			steps := []float64{30.5, 70.5, 160.5}
			scanner := openBare(t, table, func(o *bigtable.Options) {
				o.DialOptions = append(o.DialOptions, grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
					stream, err := begin(ctx, d, cc, method, opts...)
					return &beforeRows{stream, 'r', func() {
						if len(steps) > 0 {
							put(mover, "mover", steps[0])
							steps = steps[1:]
						}
					}}, err
				}))
			})
			next := live
			for e, err := range runstore.Entries(t.Context(), scanner, runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: limit}) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Record.Key == "mover" {
					continue
				}
				if got := string(e.Record.Key); got != fmt.Sprint(next) {
					t.Fatalf("got entry %s, want %d", got, next)
				}
				next++
			}
			if len(steps) > 0 || next != n+1 {
				t.Errorf("the scan ended before entry %d, want %d; %d moves were not made", next, n+1, len(steps))
			}
		})
	}
}

// A value that is replaced while a scan reads it is no lost value.
func TestValueIsReplacedDuringAScan(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	hold(t, s, "run")
	put := func(value string) {
		t.Helper()
		b := runstore.NewBatch("run", runstore.Unguarded("test"))
		b.Put("key", []byte(strings.Repeat(value, 100<<10)), runstore.Place{Index: "queue", At: runstore.After(0)})
		commit(t, s, b)
	}
	put("a")
	values := []string{"b", "c"}
	var log lines
	scanner := openBare(t, table, log.into, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := begin(ctx, d, cc, method, opts...)
			return &beforeRows{stream, 'd', func() {
				if len(values) > 0 {
					put(values[0])
					values = values[1:]
					bigtable.EmptyGarbage(t.Context(), s)
				}
			}}, err
		}))
	})
	found, err := scanner.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10})
	if err != nil || len(found) != 1 || found[0].Record.Value[0] != 'c' {
		t.Errorf("got %d entries, %v, want the one with the last value", len(found), err)
	}
	if n := log.with("run=run"); n != 0 || len(values) > 0 {
		t.Errorf("logged %q, want nothing of the run; %d values were not replaced", log.all, len(values))
	}
}

// beforeRows is a stream of a read that calls before if the read is of rows of a kind.
type beforeRows struct {
	grpc.ClientStream
	kind   byte
	before func()
}

func (s *beforeRows) SendMsg(m any) error {
	if req, ok := m.(*bigtablepb.ReadRowsRequest); ok {
		if keys := req.GetRows().GetRowKeys(); len(keys) > 0 && keys[0][0] == s.kind {
			s.before()
		}
	}
	return s.ClientStream.SendMsg(m)
}

// TestScanLeavesRecentEntries checks that a scan does not delete a former entry of a record that was changed less than
// 20 s ago, which a scan under way may still need, and deletes it later. The scanning handle takes Bigtable's clock to
// be some seconds later than it is.
func TestScanLeavesRecentEntries(t *testing.T) {
	t.Parallel()
	const ahead, grace = 2 * time.Second, 20 * time.Second
	for { // until the write and the scan fall into the time
		table := newTable(t)
		s, scanner, tbl := openBare(t, table), openBare(t, table), raw(t, table)
		hold(t, s, "run")
		scan := func() int {
			for _, err := range runstore.Entries(t.Context(), scanner, runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime}) {
				if err != nil {
					t.Fatal(err)
				}
			}
			bigtable.DeleteGarbage(t.Context(), scanner)
			return len(keys(t, tbl, "i"))
		}
		began := time.Now()
		for range 2 {
			b := signal("run", "event")
			b.Put("key", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
			commit(t, s, b)
		}
		before, after := len(keys(t, tbl, "i")), 0
		bigtable.Shift(scanner, ahead, func() { after = scan() })
		if time.Since(began) > grace-2*ahead {
			continue
		}
		if after != before {
			t.Errorf("%d of %d entries are left after a scan of a change in the last %v", after, before, grace)
		}
		bigtable.Ahead(scanner, func() { after = scan() })
		if after != before-1 {
			t.Errorf("%d of %d entries are left after a scan an hour later, want all but the former one", after, before)
		}
		return
	}
}

// TestScanLeavesEntriesOfWritesUnderWay checks that a scan does not delete the index entries of a write that arrives
// after the scan, although the run's last change is long ago. The scan deletes former entries of the same run.
func TestScanLeavesEntriesOfWritesUnderWay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change
		entries int // that are true after the write
	}{
		{change{"commit", func(t testing.TB, s *bigtable.Store) runstore.Lease {
			lease := holding(t, s)
			b := appending(lease, "event")
			b.Put("old", nil, runstore.Place{Index: "queue", At: runstore.After(2 * time.Hour)})
			commit(t, s, b)
			return lease
		}, committing(func(b *runstore.Batch) { b.Writes, b.Runnable = someWrites(), runstore.After(0) }), true}, 4},
		{change{"create anew", purged, creating(runstore.RunSpec{ID: "run", Writes: someWrites(), Runnable: runstore.After(0)}), false}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, scanner, tbl := openBare(t, table), openBare(t, table), raw(t, table)
			lease := c.before(t, s)
			former := keys(t, tbl, "i")
			held := server(t).Hold(1, served(table, swaps))
			defer held.Stop()
			done := make(chan error, 1)
			go func() {
				_, err := c.do(t.Context(), s, lease)
				done <- err
			}()
			met(t, held, 1)
			ahead := slices.DeleteFunc(keys(t, tbl, "i"), func(k string) bool { return slices.Contains(former, k) })
			if len(ahead) < 2 {
				t.Fatalf("%d entries were written ahead of the run's head, want those in \"queue\" and IndexRunnable at least", len(ahead))
			}
			var left []string
			await(t, "a scan deletes a former entry", func() bool {
				scanAll(t, scanner)
				left = keys(t, tbl, "i")
				return slices.ContainsFunc(former, func(k string) bool { return !slices.Contains(left, k) })
			})
			for _, k := range ahead {
				if !slices.Contains(left, k) {
					t.Errorf("a scan has deleted the entry %q of the write that is under way", k)
				}
			}
			held.Stop()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if n := scanAll(t, scanner); n != c.entries {
				t.Errorf("after the write there are %d entries, want %d", n, c.entries)
			}
		})
	}
}
