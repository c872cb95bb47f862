package bigtable_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// place of a cell in a table.
type cellKey struct {
	row, column string
	at          client.Timestamp
}

// cells are those of a table, with their values.
type cells map[cellKey][]byte

// snapshot returns the latest cells of a table.
func snapshot(t testing.TB, tbl *client.Table) cells {
	t.Helper()
	found := cells{}
	err := tbl.ReadRows(t.Context(), client.InfiniteRange(""), func(r client.Row) bool {
		for _, items := range r {
			for _, item := range items {
				found[cellKey{r.Key(), item.Column, item.Timestamp}] = bytes.Clone(item.Value)
			}
		}
		return true
	}, client.RowFilter(client.LatestNFilter(1)))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// put writes the cells that selects returns true for.
func (c cells) put(t testing.TB, tbl *client.Table, selects func(k cellKey) bool) (n int) {
	t.Helper()
	rows := map[string]*client.Mutation{}
	for k, value := range c {
		if !selects(k) {
			continue
		}
		if rows[k.row] == nil {
			rows[k.row] = client.NewMutation()
		}
		family, column, _ := strings.Cut(k.column, ":")
		rows[k.row].Set(family, column, k.at, value)
		n++
	}
	for key, m := range rows {
		if err := tbl.Apply(t.Context(), key, m); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// rollBack replaces all rows of a table by the cells.
func (c cells) rollBack(t testing.TB, tbl *client.Table) {
	t.Helper()
	for _, key := range keys(t, tbl, "") {
		m := client.NewMutation()
		m.DeleteRow()
		if err := tbl.Apply(t.Context(), key, m); err != nil {
			t.Fatal(err)
		}
	}
	c.put(t, tbl, func(cellKey) bool { return true })
}

// timeline commits n events and some records under a lease, in the name of a history, and
// brings the events into the feed, in three segments of its log.
func timeline(t testing.TB, s *bigtable.Store, l runstore.Lease, name string, n int, keys ...runstore.RecordKey) {
	t.Helper()
	for i := range n {
		b := appending(l, fmt.Sprint(name, " ", i))
		if i%10 == 0 {
			b.ID = runstore.BatchID(fmt.Sprint(name, " ", i))
			b.Append("test", bytes.Repeat([]byte(name), 5000)) // in a row of its own
		}
		if i == n-1 {
			for _, k := range append(keys, runstore.SummaryKey) {
				b.Put(k, []byte(name), runstore.Place{Index: "queue", At: runstore.After(0)})
			}
		}
		commit(t, s, b)
		if (i+1)%max(n/3, 1) == 0 || i == n-1 {
			if err := bigtable.Publish(t.Context(), s, l.Run); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// state is what readers of a run see, for a comparison.
func state(t testing.TB, s *bigtable.Store, id runstore.RunID) string {
	t.Helper()
	var b strings.Builder
	run, err := s.GetRun(t.Context(), id)
	fmt.Fprintf(&b, "run %+v %v\n", run, err)
	for _, limit := range []int{1, 2, 100} {
		var after runstore.RecordKey
		for {
			page, err := s.ReadRecords(t.Context(), id, runstore.RecordQuery{After: after, Limit: limit})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range page {
				fmt.Fprintf(&b, "%d: record %s %d %s %+v %+v\n", limit, r.Key, r.Version, r.Value, r.Created, r.Updated)
				after = r.Key
			}
			if len(page) < limit {
				break
			}
		}
	}
	keys := []runstore.RecordKey{"a", "b", "c"}
	some, err := s.ReadRecords(t.Context(), id, runstore.RecordQuery{Keys: keys})
	fmt.Fprintf(&b, "by key %+v %v\n", some, err)
	queue, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: 10})
	fmt.Fprintf(&b, "queue %+v %v\n", queue, err)
	return b.String()
}

// journal checks that the journal of a run is dense, and returns the data of its events.
func journal(t testing.TB, s *bigtable.Store, id runstore.RunID) (data []string) {
	t.Helper()
	for e, err := range runstore.Journal(t.Context(), s, id, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if data = append(data, string(e.Data)); e.Seq != runstore.Seq(len(data)) {
			t.Fatalf("event %d is the journal's number %d", e.Seq, len(data))
		}
	}
	return data
}

func positionsOf(events []runstore.FeedEvent) (positions []runstore.Position) {
	for _, e := range events {
		positions = append(positions, e.Position)
	}
	return positions
}

// After a failover to a cluster that lagged, replication brings what it lacked: cells of a
// history that the store has lost, beside those of the one that it goes on with. No reader and
// no writer takes them for the run's: not in its journal, its records, its head, the results of
// batches, the queues or the feed; and none is sealed.
func TestLateCellsAfterAFailover(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		late  func(k cellKey) bool // the cells that come late
		soon  bool                 // they come before the first write of the new history, too
		there func(k cellKey) bool // those that had come before the failover; nil: none
	}{
		{"all", func(cellKey) bool { return true }, false, nil},
		{"all, at once", func(cellKey) bool { return true }, true, nil},
		{"the run without its head", func(k cellKey) bool { return k.row[0] == 'r' && !strings.HasPrefix(k.column, "h:") }, true, nil},
		{"the head", func(k cellKey) bool { return k.row[0] == 'r' && strings.HasPrefix(k.column, "h:") }, true, nil},
		{"the feed's log", isOfLog, true, nil},
		{"the feed's hint", func(k cellKey) bool { return k.row[0] == 'L' }, true, nil},
		{"segments of the journal", func(k cellKey) bool { return k.row[0] == 's' }, false, nil},
		{"all but the feed's log", func(k cellKey) bool { return !isOfLog(k) }, true, isOfLog},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, n := range []int{3, 150} { // without and with segments of the journal
				lateCells(t, n, tc.late, tc.there, tc.soon)
			}
		})
	}
}

// isOfLog reports whether a cell is one of the log of the feed.
func isOfLog(k cellKey) bool { return k.row[0] == 'l' }

func lateCells(t *testing.T, n int, late, there func(k cellKey) bool, soon bool) {
	t.Helper()
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, old, "run")
	timeline(t, old, lease, "base", n, "a", "b")
	seal(t, old, "run")
	kept := journal(t, old, "run")
	positions := positionsOf(whole(t, old, 0, runstore.MaxPage, nil))
	lagging := snapshot(t, tbl)
	timeline(t, old, lease, "lost", n, "a", "c")
	seal(t, old, "run")
	read := whole(t, old, 0, runstore.MaxPage, nil)
	var readers []runstore.Position // have read what the store loses
	for i := len(kept); i < len(read); i += 1 + len(kept)/7 {
		readers = append(readers, read[i].Position)
	}
	readers = append(readers, read[len(read)-1].Position)
	lost := snapshot(t, tbl)
	for k, value := range lagging {
		if bytes.Equal(lost[k], value) {
			delete(lost, k)
		}
	}

	lagging.rollBack(t, tbl)
	if there != nil {
		lost.put(t, tbl, there)
	}
	move(t, table, tbl)
	s := openBare(t, table) // raises the epoch
	if soon {
		if lost.put(t, tbl, late) == 0 {
			t.Fatal("nothing comes late")
		}
	}
	want := state(t, openBare(t, table), "run")
	if strings.Contains(want, "lost") {
		t.Errorf("before the first write: %s", want)
	}
	next := takeOver(t, s, "run")
	timeline(t, s, next, "new", n, "a")
	want = state(t, s, "run")
	if strings.Contains(want, "lost") {
		t.Errorf("before they come: %s", want)
	}
	history := journal(t, s, "run")
	if n > 100 {
		seal(t, s, "run")
	}
	lost.put(t, tbl, late)

	check := func(what string, s *bigtable.Store, want string, events []string) {
		t.Helper()
		if got := state(t, s, "run"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
		}
		data := journal(t, s, "run")
		if !slices.Equal(data, events) {
			t.Errorf("%s: the journal has %d events, want %d: %.30q, want %.30q", what, len(data), len(events), data, events)
		}
		for _, limit := range []int{7, runstore.MaxPage} {
			all := whole(t, s, 0, limit, nil)
			var inFeed []string
			for _, e := range all {
				if inFeed = append(inFeed, string(e.Data)); e.Err != nil {
					t.Errorf("%s: event %d of the feed: %v", what, e.Seq, e.Err)
				}
			}
			if at := positionsOf(all); !slices.Equal(at[:len(kept)], positions) {
				t.Errorf("%s: the events of before moved in the feed: %v, were %v", what, at[:len(kept)], positions)
			}
			if !slices.Equal(inFeed, events) {
				t.Errorf("%s: the feed has %d events, want %d: %.30q", what, len(inFeed), len(events), inFeed)
			}
			for _, from := range readers {
				news := whole(t, s, from, limit, map[runstore.RunID]runstore.Seq{"run": runstore.Seq(len(kept) + 1)})
				if len(news) != len(events)-len(kept) {
					t.Errorf("%s: a reader from %d has %d events, want %d", what, from, len(news), len(events)-len(kept))
				}
			}
		}
	}
	fresh := openBare(t, table)
	for what, reader := range map[string]*bigtable.Store{"the handle that wrote": s, "another handle": fresh} {
		check(what, reader, want, history)
	}
	for _, name := range []string{"lost 0", "new 0"} {
		b := appending(next, "repeated")
		b.ID = runstore.BatchID(name)
		done := commit(t, fresh, b)
		if done.Replayed != (name == "new 0") {
			t.Errorf("a batch with the id %q: replayed is %t", name, done.Replayed)
		}
	}
	b := appending(next, "last")
	b.Put("c", []byte("last"))
	b.Put("a", []byte("last"))
	if done := commit(t, fresh, b); !slices.Equal(done.Versions, []runstore.Version{1, 3}) {
		t.Errorf("the records have the versions %v, want 1 and 3", done.Versions)
	}
	for i := range n {
		commit(t, s, appending(next, fmt.Sprint("after ", i)))
	}
	seal(t, fresh, "run")
	bigtable.OrphanScan(t.Context(), fresh)
	lost.put(t, tbl, late)
	history = append(history, "repeated", "last")
	for i := range n {
		history = append(history, fmt.Sprint("after ", i))
	}
	final := openBare(t, table)
	check("at the end", final, state(t, s, "run"), history)
	if got := state(t, final, "run"); strings.Contains(got, "lost") {
		t.Errorf("at the end: %s", got)
	}
}

// A log of the feed that lags behind the rows of its runs lacks events that these say it has.
// After a failover the feed has them, in another place.
func TestLateLogAfterAFailover(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, old, "run")
	commit(t, old, appending(lease, "first"))
	if err := bigtable.Publish(t.Context(), old, "run"); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, tbl)
	commit(t, old, appending(lease, "second", "third"))
	if err := bigtable.Publish(t.Context(), old, "run"); err != nil {
		t.Fatal(err)
	}
	reader := whole(t, old, 0, 10, nil)[0].Position // has read the first
	lost := snapshot(t, tbl)
	before.rollBack(t, tbl)
	lost.put(t, tbl, func(k cellKey) bool { return k.row[0] == 'r' })
	move(t, table, tbl)
	s := openBare(t, table)
	lost.put(t, tbl, isOfLog)
	commit(t, s, appending(takeOver(t, s, "run"), "fourth"))
	if err := bigtable.Publish(t.Context(), s, "run"); err != nil {
		t.Fatal(err)
	}
	next := map[runstore.RunID]runstore.Seq{"run": 2}
	if n := len(whole(t, s, reader, 10, next)); n != 3 {
		t.Errorf("behind the first event the feed has %d, want 3", n)
	}
	if n := len(whole(t, s, 0, 10, nil)); n != 4 {
		t.Errorf("the feed has %d events, want 4", n)
	}
}

// A renewal of the history that the store has lost comes late, from a server whose clock was
// ahead. The lease that the store has instead ends when it would have.
func TestLateRenewalAfterAFailover(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	old, tbl := openBare(t, table), raw(t, table)
	lease := hold(t, old, "run")
	lagging := snapshot(t, tbl)
	if _, err := old.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
		t.Fatal(err)
	}
	ahead := cells{}
	for k, value := range snapshot(t, tbl) {
		if k.column == "h:beat" {
			k.at += client.Timestamp(time.Hour.Microseconds())
			ahead[k] = value
		}
	}
	lagging.rollBack(t, tbl)
	move(t, table, tbl)
	s := openBare(t, table)
	for _, granted := range []bool{false, true} {
		if granted {
			takeOver(t, s, "run")
		}
		want := state(t, openBare(t, table), "run")
		ahead.put(t, tbl, func(cellKey) bool { return true })
		if got := state(t, openBare(t, table), "run"); got != want {
			t.Errorf("granted anew: %t: got %s, want %s", granted, got, want)
		}
	}
}

// A deletion of the history that the store has lost comes late: what the
// store has instead stays.
func TestLateDeletionAfterAFailover(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	var mu sync.Mutex
	var sent []*bigtablepb.CheckAndMutateRowRequest
	old := openBare(t, table, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if r, ok := req.(*bigtablepb.CheckAndMutateRowRequest); ok {
					mu.Lock()
					sent = append(sent, proto.Clone(r).(*bigtablepb.CheckAndMutateRowRequest))
					mu.Unlock()
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}))
	})
	tbl := raw(t, table)
	lease := hold(t, old, "run")
	timeline(t, old, lease, "base", 150, "a", "b")
	lagging := snapshot(t, tbl)
	mu.Lock()
	sent = nil
	mu.Unlock()
	deleting := appending(lease, "lost")
	deleting.Delete("a")
	deleting.Delete("b")
	commit(t, old, deleting)
	seal(t, old, "run") // takes events out of the row
	lagging.rollBack(t, tbl)
	move(t, table, tbl)
	s := openBare(t, table)
	next := takeOver(t, s, "run")
	timeline(t, s, next, "new", 3, "a")
	want := state(t, s, "run")
	events := journal(t, s, "run")
	positions := positionsOf(whole(t, s, 0, runstore.MaxPage, nil))
	conn, err := grpc.NewClient("passthrough:///"+server(t).Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for _, r := range sent {
		if _, err := bigtablepb.NewBigtableClient(conn).MutateRow(t.Context(), &bigtablepb.MutateRowRequest{
			TableName: r.TableName, RowKey: r.RowKey, Mutations: r.TrueMutations,
		}); err != nil && len(r.TrueMutations) > 0 {
			t.Fatal(err)
		}
	}
	for what, s := range map[string]*bigtable.Store{"the handle that wrote": s, "another handle": openBare(t, table)} {
		if got := state(t, s, "run"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
		}
		if got, at := journal(t, s, "run"), positionsOf(whole(t, s, 0, runstore.MaxPage, nil)); !slices.Equal(got, events) || !slices.Equal(at[:len(positions)], positions) {
			t.Errorf("%s: the journal has %d events, want %d: %.30q at %v, want %v", what, len(got), len(events), got, at, positions)
		}
		commit(t, s, appending(next, "more"))
		events = append(events, "more")
		want = state(t, s, "run")
	}
}
