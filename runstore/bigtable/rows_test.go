package bigtable_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// maxRow is what a run's row stays below, and every message.
const maxRow = 4 << 20

// scales weighs the messages of a handle.
type scales struct{ heaviest atomic.Int64 }

func (s *scales) through(o *bigtable.Options) {
	o.DialOptions = append(o.DialOptions, grpc.WithStatsHandler(s))
}

func (s *scales) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (s *scales) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (s *scales) HandleConn(context.Context, stats.ConnStats)                       {}
func (s *scales) HandleRPC(_ context.Context, one stats.RPCStats) {
	n := 0
	switch one := one.(type) {
	case *stats.InPayload:
		n = one.Length
	case *stats.OutPayload:
		n = one.Length
	}
	for at := s.heaviest.Load(); int64(n) > at && !s.heaviest.CompareAndSwap(at, int64(n)); at = s.heaviest.Load() {
	}
}

// weigh returns the size of the one run's row in a table, as a reader gets it that
// does not ask for the latest versions only.
func weigh(t testing.TB, tbl *client.Table) (size int) {
	t.Helper()
	err := tbl.ReadRows(t.Context(), client.PrefixRange("r"), func(r client.Row) bool {
		for _, items := range r {
			for _, item := range items {
				size += len(item.Column) + len(item.Value) + 16
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// tagged is n bytes that tell where they belong.
func tagged(n, tag int) []byte {
	b := bytes.Repeat([]byte{byte('a' + tag%26)}, n)
	copy(b, fmt.Sprint(tag))
	return b
}

// histories are what a run can have behind it. Each returns how many events it made.
var histories = []struct {
	name    string
	records bool // and no events
	write   func(t *testing.T, s *bigtable.Store, l runstore.Lease, check func()) (events int)
}{
	{"events of all sizes", false, func(t *testing.T, s *bigtable.Store, l runstore.Lease, check func()) (events int) {
		for round := range 12 {
			for i, n := range []int{0, 1, 255, 256, 257, 4 << 10, 16<<10 - 1, 16 << 10, 16<<10 + 1, 100 << 10} {
				b := appending(l)
				for range 1 + i%3*5 {
					b.Events = append(b.Events, runstore.NewEvent{Kind: strings.Repeat("k", runstore.MaxKind), Data: tagged(n, events)})
					events++
				}
				commit(t, s, b)
			}
			if round%3 == 0 {
				check()
			}
		}
		return events
	}},
	{"events just small enough", false, func(t *testing.T, s *bigtable.Store, l runstore.Lease, check func()) (events int) {
		for round := range 24 { // 6 MiB
			b := appending(l)
			for range 16 { // 256 KiB stay in the row
				b.Append("test", tagged(16<<10, events))
				events++
			}
			commit(t, s, b)
			if round%2 == 1 {
				check()
			}
		}
		return events
	}},
	{"a thousand events a batch", false, func(t *testing.T, s *bigtable.Store, l runstore.Lease, check func()) (events int) {
		for range 4 {
			b := appending(l)
			for range runstore.MaxEvents {
				b.Events = append(b.Events, runstore.NewEvent{Kind: strings.Repeat("k", runstore.MaxKind), Data: tagged(256, events)})
				events++
			}
			commit(t, s, b)
			check()
		}
		return events
	}},
	{"batches of 8 MiB", false, func(t *testing.T, s *bigtable.Store, l runstore.Lease, check func()) (events int) {
		for _, n := range []int{1 << 20, 16 << 10, 8 << 10, 8 << 10} {
			b := appending(l)
			for range min(runstore.MaxEvents, (runstore.MaxBatchBytes-1<<10)/n) {
				b.Append("test", tagged(n, events))
				events++
			}
			commit(t, s, b)
			check()
		}
		return events
	}},
	{"records put again and again", true, func(t *testing.T, s *bigtable.Store, l runstore.Lease, check func()) (events int) {
		for round := range 40 {
			b := appending(l)
			for i := range runstore.MaxRecordWrites {
				b.Put(runstore.RecordKey(fmt.Sprint("key ", i)), tagged([]int{16, 256, 1 << 10, 3 << 10}[(i+round)%4], round))
			}
			commit(t, s, b)
			if round%10 == 0 {
				check()
			}
		}
		for _, n := range []int{16 << 10, 16<<10 + 1, 200 << 10, 1 << 20, 4 << 20} {
			b := appending(l)
			b.Put("large", tagged(n, n))
			commit(t, s, b)
			check()
		}
		return 0
	}},
	{"batch ids of many versions", true, func(t *testing.T, s *bigtable.Store, l runstore.Lease, check func()) (events int) {
		for round := range 200 { // more than a row remembers
			b := appending(l)
			b.ID = runstore.NewBatchID()
			for i := range runstore.MaxRecordWrites {
				b.Put(runstore.RecordKey(fmt.Sprint("key ", i)), tagged(8, round))
			}
			commit(t, s, b)
			if round%50 == 49 {
				check()
			}
		}
		return 0
	}},
	{"everything at its longest", false, func(t *testing.T, s *bigtable.Store, l runstore.Lease, check func()) (events int) {
		long := func(prefix string, n int) string { return prefix + strings.Repeat("x", n-len(prefix)) }
		for round := range 2 {
			b := appending(l)
			for range runstore.MaxEvents {
				b.Events = append(b.Events, runstore.NewEvent{Kind: long("k", runstore.MaxKind), Data: tagged(256, events)})
				events++
			}
			for i := range runstore.MaxRecordWrites {
				var places []runstore.Place
				for p := range runstore.MaxPlaces {
					places = append(places, runstore.Place{Index: runstore.IndexName(long(fmt.Sprint(p), runstore.MaxIndexName)), At: runstore.After(0)})
				}
				b.Put(runstore.RecordKey(long(fmt.Sprint(i, " "), runstore.MaxRecordKey)), tagged(4<<10, round), places...)
			}
			commit(t, s, b)
			check()
		}
		return events
	}},
}

// A run's row stays small whatever its history, and so does every message; what was
// written is read as it was.
func TestRowsStaySmall(t *testing.T) {
	t.Parallel()
	for _, h := range histories {
		rowStaysSmall(t, h.name, h.write, open)
		if !h.records { // what is done in the background is for events
			rowStaysSmall(t, h.name+", and nothing in the background", h.write, openBare)
		}
	}
}

func rowStaysSmall(t *testing.T, name string, write func(*testing.T, *bigtable.Store, runstore.Lease, func()) int,
	open func(testing.TB, bigtableemulator.TableName, ...func(*bigtable.Options)) *bigtable.Store,
) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		table := newTable(t)
		weight := &scales{}
		s, tbl := open(t, table, weight.through), raw(t, table)
		bigtable.BoundScans(s, time.Minute) // the emulator filters long keys slowly
		created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &runstore.LeaseSpec{
			Owner: runstore.Owner(strings.Repeat("o", runstore.MaxOwner)), TTL: runstore.MaxTTL,
		}})
		if err != nil {
			t.Fatal(err)
		}
		heaviest := 0
		n := write(t, s, created.Lease, func() { heaviest = max(heaviest, weigh(t, tbl)) })
		heaviest = max(heaviest, weigh(t, tbl))
		if heaviest >= maxRow {
			t.Errorf("the row had %d bytes, want less than %d", heaviest, maxRow)
		}
		i := 0
		for e, err := range runstore.Journal(t.Context(), s, "run", 1) {
			if err != nil {
				t.Fatal(err)
			}
			if want := tagged(len(e.Data), i); e.Seq != runstore.Seq(i+1) || !bytes.Equal(e.Data, want) {
				t.Fatalf("event %d is %s at %d", i+1, short(e.Data), e.Seq)
			}
			i++
		}
		if i != n {
			t.Errorf("the journal has %d events, want %d", i, n)
		}
		readAll(t, s)
		if _, err := s.RaiseEpoch(t.Context(), "test"); err != nil { // writes the whole row again
			t.Fatal(err)
		}
		readAll(t, s)
		if got := weigh(t, tbl); got >= maxRow {
			t.Errorf("after the raise the row has %d bytes, want less than %d", got, maxRow)
		}
		if got := weight.heaviest.Load(); got >= maxRow {
			t.Errorf("a message had %d bytes, want less than %d", got, maxRow)
		}
		t.Logf("the row had up to %d bytes, a message up to %d", heaviest, weight.heaviest.Load())
	})
}

// readAll reads what a store with the run "run" has, in all ways.
func readAll(t testing.TB, s *bigtable.Store) {
	t.Helper()
	for _, err := range runstore.Records(t.Context(), s, "run", "") {
		if err != nil {
			t.Fatal(err)
		}
	}
	var after runstore.Position
	for {
		page, err := s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: runstore.MaxPage})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1].Position
	}
	for _, index := range []runstore.IndexName{runstore.IndexRuns, "0" + runstore.IndexName(strings.Repeat("x", runstore.MaxIndexName-1))} {
		for _, err := range runstore.Entries(t.Context(), s, runstore.IndexQuery{Index: index, Until: runstore.EndOfTime}) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A long journal does not make a larger row than a short one.
func TestRowOfALongJournal(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := open(t, table), raw(t, table)
	lease := hold(t, s, "run")
	size := func() int { return weigh(t, tbl) }
	var early int
	for round := range 20 {
		b := appending(lease)
		for range runstore.MaxEvents {
			b.Append("test", []byte("event"))
		}
		commit(t, s, b)
		if round == 2 {
			early = size()
		}
	}
	if late := size(); late > early+early/2 {
		t.Errorf("the row has %d bytes after 20000 events, and had %d after 3000", late, early)
	}
}
