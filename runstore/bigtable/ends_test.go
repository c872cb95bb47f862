package bigtable_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// A row that has as many records in queues as it may takes no more: not applied, and told with
// the field and the limit. Deleting makes room, and so does taking records out of the queues. Records in no
// queue go on.
func TestTooManyRecords(t *testing.T) {
	t.Parallel()
	s := openBare(t, newTable(t))
	hold(t, s, "run")
	key := func(n int) runstore.RecordKey {
		return runstore.RecordKey(fmt.Sprintf("%0*d", runstore.MaxRecordKey-8, n))
	}
	var err error
	stored := 0
	for err == nil {
		b := signal("run", "many")
		for i := range 200 {
			b.Put(key(stored+i), make([]byte, 256), waiting)
		}
		if _, err = s.Commit(t.Context(), b); err == nil {
			stored += 200
		}
		if stored > 20_000 {
			t.Fatal("it never has too many")
		}
	}
	var limit *runstore.InputError
	if !errors.Is(err, runstore.ErrTooLarge) || !errors.As(err, &limit) || limit.Field != "records" || !strings.Contains(limit.Problem, "1572864") {
		t.Errorf("got error %v, want ErrTooLarge that names the records and the limit", err)
	}
	run, err := s.GetRun(t.Context(), "run")
	if err != nil || int(run.LastSeq) != stored/200 {
		t.Errorf("the run has %d events, %v, want those of the %d writes that were applied", run.LastSeq, err, stored/200)
	}
	for round := range 20 {
		b := signal("run", "not in a queue")
		for i := range 100 {
			b.Put(key(100_000+100*round+i), make([]byte, 256))
		}
		commit(t, s, b)
	}
	another := func(n int) error {
		b := signal("run", "another")
		for i := range 150 {
			b.Put(key(50_000+1000*n+i), nil, waiting)
		}
		_, err := s.Commit(t.Context(), b)
		return err
	}
	for n, change := range []func(b *runstore.Batch, key runstore.RecordKey){
		func(b *runstore.Batch, key runstore.RecordKey) { b.Delete(key) },
		func(b *runstore.Batch, key runstore.RecordKey) { b.Put(key, make([]byte, 256)) },
	} {
		for filled := 10 * n; err == nil || !errors.Is(err, runstore.ErrTooLarge); filled++ {
			if err = another(filled + 100); filled > 10*n+9 {
				t.Fatalf("it is not full after deleting: %v", err)
			}
		}
		b := signal("run", "fewer")
		for i := range 200 {
			change(&b, key(200*n+i))
		}
		commit(t, s, b)
		if err = another(n); err != nil {
			t.Errorf("change %d made no room: %v", n, err)
		}
	}
}

// TestRecordsThatAreNotRemembered checks that a handle that has created a run, and put more records into its row
// than the handle remembers, does not take the records for absent.
func TestRecordsThatAreNotRemembered(t *testing.T) {
	t.Parallel()
	const most = 4096 // records that a handle remembers
	// A move in the background, which openBare refuses, would drop what the handle remembers.
	s := openBare(t, newTable(t), func(o *bigtable.Options) { bigtable.MoveAbove(o, 1<<30) })
	hold(t, s, "run")
	for stored := 0; stored <= most; {
		b := signal("run", "many")
		for range 256 {
			b.Put(runstore.RecordKey(fmt.Sprint(stored)), nil, waiting)
			stored++
		}
		commit(t, s, b)
	}
	b := runstore.NewBatch("run", runstore.AtVersion("0", 0))
	b.Append("test", []byte("unless the record exists"))
	if _, err := s.Commit(t.Context(), b); !errors.Is(err, runstore.ErrConflict) {
		t.Errorf("a commit that requires the absence of a record that exists: got %v, want ErrConflict", err)
	}
}

// waiting is a place that keeps a record in the row of its run.
var waiting = runstore.Place{Index: "queue", At: runstore.After(0)}

// What a record reserves counts for every handle while the record is there, and the batch
// that deletes it and puts what it reserved fits, however full the run is.
func TestRoomIsKept(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	hold(t, s, "run")
	key := func(n int) runstore.RecordKey {
		return runstore.RecordKey(fmt.Sprintf("%0*d", runstore.MaxRecordKey, n))
	}
	places := []runstore.Place{{Index: runstore.IndexName(strings.Repeat("i", runstore.MaxIndexName)), At: runstore.After(0)}}
	reserving, later := signal("run", "reserving"), signal("run", "later")
	later.Delete("reserving")
	for i := range 250 { // which take more than what is between the two limits of the row's records
		later.Put(key(i), make([]byte, []int{16 << 10, 0, 256, 257, 17 << 10}[i%5]), places...)
	}
	reserving.Put("reserving", nil)
	reserving.Records[0].Reserve = later.Records
	commit(t, s, reserving)
	next := 1000
	other := openBare(t, table)
	for _, n := range []int{100, 10, 1} {
		for err := error(nil); err == nil; next += n {
			b := signal("run", "filling")
			for i := range n {
				b.Put(key(next+i), make([]byte, 256), waiting)
			}
			if _, err = other.Commit(t.Context(), b); err != nil && !errors.Is(err, runstore.ErrTooLarge) {
				t.Fatal(err)
			}
		}
	}
	replaced := signal("run", "replaced") // by one that keeps as much
	replaced.Put("reserving", nil)
	replaced.Records[0].Reserve = later.Records
	commit(t, other, replaced)
	commit(t, other, later)
}

// A record may keep room for its own later form. Then it can be replaced by a value of any size,
// however full the run is; and it takes little room before.
func TestRoomIsKeptForTheRecordItself(t *testing.T) {
	t.Parallel()
	s := openBare(t, newTable(t))
	hold(t, s, "run")
	key := func(n int) runstore.RecordKey { return runstore.RecordKey(fmt.Sprintf("record-%05d", n)) }
	queues := []runstore.Place{{Index: "queue", At: runstore.After(0)}, {Index: "another queue", At: runstore.After(0)}}
	largest := make([]byte, runstore.MaxRecordValue)
	stored := 0
	for _, n := range []int{100, 10, 1} {
		for err := error(nil); err == nil; {
			b := signal("run", "filling")
			for i := range n {
				b.Records = append(b.Records, runstore.RecordWrite{Key: key(stored + i), Reserve: []runstore.RecordWrite{
					{Key: key(stored + i), Value: largest, Index: queues},
				}})
			}
			switch _, err = s.Commit(t.Context(), b); {
			case err == nil:
				stored += n
			case !errors.Is(err, runstore.ErrTooLarge):
				t.Fatal(err)
			}
		}
	}
	if stored < 1500 {
		t.Errorf("the run has room for %d records, want 1500 at least", stored)
	}
	sizes := []int{runstore.MaxRecordValue, 0, 1, 200, 256, 257, 16 << 10, 16<<10 + 1}
	for from := 0; from < stored; {
		b := signal("run", "replaced")
		n, size := 1, sizes[0] // one of the largest, then many at once
		if from > 0 {
			n = min(100, stored-from)
		}
		for i := range n {
			if from > 0 {
				size = sizes[1+(from+i)%(len(sizes)-1)]
			}
			b.Put(key(from+i), largest[:size], queues...)
		}
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Fatalf("replacing %d records from %d on: %v", n, from, err)
		}
		from += n
	}
}

// A record may keep room for its own later form and another record. Together they take little room
// before, too.
func TestRoomIsKeptForTwoRecords(t *testing.T) {
	t.Parallel()
	s := openBare(t, newTable(t))
	hold(t, s, "run")
	largest := make([]byte, runstore.MaxRecordValue)
	pair := func(n int) []runstore.RecordWrite {
		own, other := runstore.RecordKey(fmt.Sprintf("own-%05d", n)), runstore.RecordKey(fmt.Sprintf("other-%05d", n))
		return []runstore.RecordWrite{
			{Key: own, Value: largest, Index: []runstore.Place{waiting}}, {Key: other, Value: largest, Index: []runstore.Place{waiting}},
		}
	}
	stored := 0
	for _, n := range []int{100, 10, 1} {
		for err := error(nil); err == nil; {
			b := signal("run", "filling")
			for i := range n {
				later := pair(stored + i)
				b.Records = append(b.Records, runstore.RecordWrite{Key: later[0].Key, Reserve: later})
			}
			switch _, err = s.Commit(t.Context(), b); {
			case err == nil:
				stored += n
			case !errors.Is(err, runstore.ErrTooLarge):
				t.Fatal(err)
			}
		}
	}
	if stored < 1000 {
		t.Errorf("the run has room for %d pairs, want 1000 at least", stored)
	}
	sizes := []int{16 << 10, 256, 257, 16<<10 + 1}
	for from := 0; from < stored; from += 100 {
		b := signal("run", "replaced")
		for i := from; i < min(from+100, stored); i++ {
			for j, w := range pair(i) {
				b.Put(w.Key, largest[:sizes[(from/100+i+j)%len(sizes)]], waiting)
			}
		}
		if _, err := s.Commit(t.Context(), b); err != nil {
			t.Fatalf("replacing the records from %d on: %v", from, err)
		}
	}
}

// Under a strict lease a write is not repeated past its end. Whether a copy may still be
// under way is not known then; one that was never sent is surely not applied.
func TestStrictWriteEndsWithItsLease(t *testing.T) {
	t.Parallel()
	for what, write := range strictWrites {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			strictWriteEnds(t, write)
		})
	}
}

func strictWriteEnds(t *testing.T, write func(ctx context.Context, s *bigtable.Store, l runstore.Lease) error) {
	table := newTable(t)
	s := openBare(t, table)
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	bigtable.SetRetryTimeout(s, 2*hang) // so what ends the write is the lease
	var lease runstore.Lease
	for ttl, sent := 500*time.Millisecond, 0; sent == 0; ttl *= 4 { // until it is sent before the lease ends
		granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "strict", TTL: ttl, Strict: true}, Preempt: "test",
		})
		if err != nil {
			t.Fatal(err)
		}
		lease = granted.Lease
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		lost := server(t).Refuse(0, served(table, swaps))
		err = write(ctx, s, lease)
		if ctx.Err() != nil {
			t.Errorf("the write was not given up, %v after its lease ended", hang-ttl)
		}
		sent = lost.Count()
		lost.Stop()
		cancel()
		if sent > 0 && !errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Errorf("got error %v, want ErrUnknownOutcome", err)
		}
	}
	run, err := s.GetRun(t.Context(), "run")
	if err != nil {
		t.Fatal(err)
	}
	isPast(t, s, run.ExpiresAt) // the write was given up earlier, by as much as the request for the time took
	if err := write(t.Context(), s, lease); !errors.Is(err, runstore.ErrLeaseExpired) {
		t.Errorf("got error %v, want ErrLeaseExpired", err)
	}
	if events, err := s.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(events) != 0 {
		t.Errorf("the journal has %d events, %v, want none", len(events), err)
	}
}

// An outcome that is unknown matches no other kind, whatever was met on the way.
func TestUnknownIsNothingElse(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	lease := hold(t, s, "run")
	swapped := server(t).DropReplies(1, served(table, swaps))
	unread := server(t).Refuse(0, served(table, reads))
	err := cutAt(t, unread, func(ctx context.Context) error {
		_, err := s.Commit(ctx, appending(lease, "event"))
		return err
	})
	unread.Stop()
	swapped.Stop()
	if !errors.Is(err, runstore.ErrUnknownOutcome) || errors.Is(err, runstore.ErrUnavailable) {
		t.Errorf("got error %v, want ErrUnknownOutcome alone", err)
	}
	if events, err := s.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(events) != 1 {
		t.Errorf("the journal has %d events, %v, want the one that was applied", len(events), err)
	}
}

// A purge comes to rest: once the run was cleared away nobody writes to its row.
func TestPurgeComesToRest(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := open(t, table), raw(t, table)
	purge(t, s, hold(t, s, "run"))
	await(t, "the mark is gone", func() bool { return len(keys(t, tbl, "m")) == 0 })
	rev := func() string {
		row, err := tbl.ReadRow(t.Context(), bigtable.RunKey("run"))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(row)
	}
	before := rev()
	other := openBare(t, table)
	for range 20 { // who has come to rest does not begin again when others pass
		bigtable.OrphanScan(t.Context(), other)
	}
	if after := rev(); after != before {
		t.Errorf("the row of a purged run went on from\n%s\nto\n%s", before, after)
	}
}

// A creation that read the epoch before a raise, and arrives after it, makes no grant
// that the new epoch knows: the next token is of that.
func TestCreationOfAnEpochBefore(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, slow := openBare(t, table), openBare(t, table)
	held := server(t).Hold(1, served(table, swaps))
	done := make(chan error, 1)
	var old runstore.Created
	go func() {
		var err error
		old, err = slow.CreateRun(t.Context(), runstore.RunSpec{ID: "run", Lease: &runstore.LeaseSpec{Owner: "old", TTL: runstore.MaxTTL}})
		done <- err
	}()
	met(t, held, 1)
	epoch, err := s.RaiseEpoch(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	held.Stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	req := runstore.AcquireRequest{Run: "run", LeaseSpec: runstore.LeaseSpec{Owner: "new", TTL: time.Minute}}
	req.Guards = []runstore.Guard{old.Lease.Fence()}
	if _, err := s.AcquireLease(t.Context(), req); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a handoff by the holder of the epoch before: got %v, want ErrFenced", err)
	}
	req.Guards = []runstore.Guard{runstore.AtToken(epoch.Floor())} // below any token that the epoch grants
	if _, err := s.AcquireLease(t.Context(), req); !errors.Is(err, runstore.ErrConflict) {
		t.Errorf("a request at a token of an epoch that the run has not seen: got %v, want ErrConflict", err)
	}
	req.Guards = nil
	lease, err := s.AcquireLease(t.Context(), req)
	if err != nil || lease.Token <= epoch.Floor() {
		t.Errorf("got token %v, %v, want one of epoch %d, for the grant of the one before is over", lease.Token, err, epoch)
	}
}

// TestCreationDuringARaise checks that runs that are created while a raise visits the runs get tokens of the new
// epoch: a raise need not visit them.
func TestCreationDuringARaise(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other := openBare(t, table), openBare(t, table)
	hold(t, s, "run")
	held := server(t).Hold(1, func(c bigtableemulator.Call) bool {
		return served(table, swaps)(c) && string(c.Row) == bigtable.RunKey("run")
	})
	raised := make(chan error, 1)
	go func() {
		_, err := s.RaiseEpoch(t.Context(), "test")
		raised <- err
	}()
	met(t, held, 1)
	for i := range 64 { // each reads one of the copies of the epochs, chosen at random
		id := runstore.RunID(fmt.Sprint("created meanwhile ", i))
		if lease := hold(t, other, id); lease.Token <= runstore.Epoch(1).Floor() {
			t.Errorf("%s: got token %d, want one above %d, that of the epoch which has begun", id, lease.Token, runstore.Epoch(1).Floor())
		}
	}
	held.Stop()
	if err := <-raised; err != nil {
		t.Fatal(err)
	}
}

// Operations under way end before Close returns, and those after it have not begun.
func TestCloseWaitsForOperations(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := open(t, table)
	lease := hold(t, s, "run")
	held := server(t).Hold(1, served(table, swaps))
	committed, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.Commit(t.Context(), appending(lease, "event"))
		committed <- err
	}()
	met(t, held, 1)
	go func() { closed <- s.Close() }()
	await(t, "the handle takes no more", func() bool {
		_, err := s.GetRun(t.Context(), "run")
		return errors.Is(err, runstore.ErrClosed)
	})
	if len(closed) > 0 {
		t.Error("Close did not wait")
	}
	held.Stop()
	if err := <-committed; err != nil {
		t.Errorf("the commit under way: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// A collection deletes a mark whose creation never came, and then the creation
// cannot be made any more. One whose run is there stays, whatever was seen before.
func TestOrphanMarks(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, tbl := openBare(t, table), raw(t, table)
	for _, id := range []runstore.RunID{"never", "after all"} {
		dyingCreation(t, table, runstore.RunSpec{ID: id})
	}
	bigtable.OrphanScan(t.Context(), s)
	if n := len(keys(t, tbl, "m")); n != 2 {
		t.Fatalf("after a pass there are %d marks, want both", n)
	}
	hold(t, s, "after all")
	collect(t, s)
	for _, mark := range keys(t, tbl, "m") {
		if strings.Contains(mark, "never") {
			t.Errorf("the collection left the mark %q of a creation that was never made", mark)
		}
	}
	for range 2 {
		bigtable.OrphanScan(t.Context(), s)
		collect(t, s)
	}
	left := keys(t, tbl, "m")
	if len(left) != 1 || !strings.Contains(left[0], "after all") {
		t.Errorf("got the marks %q, want that of the run that is there", left)
	}
	if _, err := s.GetRun(t.Context(), "never"); !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("got error %v, want ErrNotFound", err)
	}
	hold(t, s, "never") // it can still be created anew
}
