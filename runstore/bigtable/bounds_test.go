package bigtable_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// The bounds of a scan are bounds of the range of keys that is read: however many entries
// lie before From or behind Until, all shards are read by one request.
func TestScanReadsNothingBesideItsBounds(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, false)
	from := c.last.Add(-time.Second) // the mover alone is between
	before := c.first.Add(2 * time.Second)
	l := keepLedger(t, c.table)
	for _, newest := range []bool{false, true} {
		for _, heads := range []bool{false, true} {
			for _, test := range []struct {
				what        string
				from, until time.Time
				want        int
			}{
				{"the last entry", from, runstore.EndOfTime, 1},
				{"the first two entries", c.first, before, 2},
				{"the first two entries, from just before the second", before.Add(-time.Nanosecond), before, 1},
				{"the first two entries, from just behind the second", before.Add(time.Nanosecond), before.Add(runstore.TimePrecision), 0},
			} {
				want := rpcs(reads, reads)
				if test.want == 0 {
					want = reads
				}
				n := l.during(func() {
					found, err := c.scanner.ScanIndex(t.Context(), runstore.IndexQuery{
						Index: "queue", From: test.from, Until: test.until, Limit: 10, Newest: newest, Heads: heads,
					})
					if err != nil || len(found) != test.want {
						t.Errorf("%s, newest %t, heads %t: got %d entries, %v, want %d", test.what, newest, heads, len(found), err, test.want)
					}
				})
				if n != want {
					t.Errorf("%s, newest %t, heads %t: got the RPCs %s, want %s", test.what, newest, heads, n, want)
				}
			}
		}
	}
}

// summarized commits a record in a queue and a summary of a size together with an event,
// so that record, summary and head show by their seqs which commits they have seen.
func summarized(t *testing.T, s *bigtable.Store, id runstore.RunID, size, round int) {
	t.Helper()
	b := signal(id, fmt.Sprint(round))
	b.Put("key", []byte(fmt.Sprint(round)), runstore.Place{Index: "queue", At: runstore.After(0)})
	b.Put(runstore.SummaryKey, tagged(size, round))
	commit(t, s, b)
}

// An entry and its run's head are of one state, also where the run is written to between
// the requests of the scan and where the summary's value is in rows of its own.
func TestHeadIsOfTheStateOfItsEntry(t *testing.T) {
	t.Parallel()
	const large = 64 << 10
	for _, size := range []int{10, large} {
		t.Run(fmt.Sprintf("a summary of %d bytes", size), func(t *testing.T) {
			t.Parallel()
			table := newTable(t)
			s, scanner := openBare(t, table), openBare(t, table)
			hold(t, s, "run")
			round := 0
			write := func() { round++; summarized(t, s, "run", size, round) }
			write()
			for n := range 3 { // the entries, the run, the large value
				var found []runstore.IndexEntry
				whilePaused(t, table, "scan index", n, func() {
					var err error
					found, err = scanner.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10, Heads: true})
					if err != nil {
						t.Error(err)
					}
				}, write)
				if len(found) != 1 {
					t.Fatalf("held before read %d: got %d entries, want 1", n, len(found))
				}
				record, head := found[0].Record, found[0].Head
				if seq := record.Updated.Seq; head.LastSeq != seq || head.Summary.Updated != record.Updated || head.Summary.Version != record.Version {
					t.Errorf("held before read %d: the record is of seq %d, the head of %d, the summary of %d", n, seq, head.LastSeq, head.Summary.Updated.Seq)
				}
				var tag int
				if _, err := fmt.Sscan(string(record.Value), &tag); err != nil || !bytes.Equal(head.Summary.Value, tagged(size, tag)) {
					t.Errorf("held before read %d: the summary's value is not that of %q", n, record.Value)
				}
			}
		})
	}
}

// The summaries of a page count towards its bytes if heads are asked for.
func TestSummariesCountTowardsAPage(t *testing.T) {
	t.Parallel()
	s := openBare(t, newTable(t))
	const runs = 4
	for i := range runs {
		id := runstore.RunID(fmt.Sprint("run ", i))
		hold(t, s, id)
		summarized(t, s, id, runstore.MaxPageBytes/2, i)
	}
	for heads, want := range map[bool]int{false: runs, true: 2} {
		q := runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 100, Heads: heads}
		found, err := s.ScanIndex(t.Context(), q)
		if err != nil || len(found) != want {
			t.Errorf("heads %t: got a page of %d entries, %v, want %d", heads, len(found), err, want)
		}
		for _, e := range found {
			if heads != (len(e.Head.Summary.Value) == runstore.MaxPageBytes/2) {
				t.Errorf("heads %t: %q has a summary of %d bytes", heads, e.Run, len(e.Head.Summary.Value))
			}
		}
	}
}
