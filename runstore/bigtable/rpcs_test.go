package bigtable_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
)

// The RPCs as the tables here write them.
const (
	swaps  = "CheckAndMutateRow"
	reads  = "ReadRows"
	writes = "MutateRows"
	clock  = "ReadModifyWriteRow"
)

// ledger lists the RPCs to a table that serve operations.
type ledger struct {
	mu   sync.Mutex
	all  []string
	rest int // those that serve none
}

func keepLedger(t *testing.T, table bigtableemulator.TableName) *ledger {
	l := &ledger{}
	watch := server(t).Watch(func(c bigtableemulator.Call) bool {
		if c.Table != table.String() {
			return false
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if isServed(c) {
			l.all = append(l.all, c.Method)
		} else {
			l.rest++
		}
		return true
	})
	t.Cleanup(watch.Stop)
	return l
}

// during returns the RPCs that f makes.
func (l *ledger) during(f func()) string {
	l.mu.Lock()
	l.all = nil
	l.mu.Unlock()
	f()
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, ", ")
}

// cost is what an operation costs: the RPCs that it makes one after another.
type cost struct {
	name string
	rpcs string
	want error
	do   func() error
}

func rpcs(all ...string) string { return strings.Join(all, ", ") }

// expired returns a run's lease when it is over.
func expired(t *testing.T, s *bigtable.Store, id runstore.RunID) runstore.Lease {
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "holder", TTL: runstore.MinTTL}})
	if err != nil {
		t.Fatal(err)
	}
	run, err := s.GetRun(t.Context(), id) // its expiry may be later than the holder was told
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the end of a lease", func() bool {
		now, err := s.Now(t.Context())
		return err == nil && now.After(run.ExpiresAt.Add(time.Millisecond))
	})
	return created.Lease
}

// costs are those of the engine's page.
func costs(t *testing.T, s, other *bigtable.Store) []cost {
	ctx := t.Context()
	lease, taken, free, bulk := hold(t, s, "run"), hold(t, s, "taken"), hold(t, s, "free"), hold(t, s, "bulk")
	fenced, dead := hold(t, s, "fenced"), hold(t, s, "dead")
	over := expired(t, s, "over")
	unlisted := func(id runstore.RunID, spec runstore.LeaseSpec) runstore.Lease {
		spec.Owner, spec.TTL = "holder", runstore.MaxTTL
		created, err := s.CreateRun(ctx, runstore.RunSpec{ID: id, Unlisted: true, Lease: &spec})
		if err != nil {
			t.Fatal(err)
		}
		return created.Lease
	}
	bound := func(id runstore.RunID, maxStall time.Duration) runstore.Lease {
		return unlisted(id, runstore.LeaseSpec{MaxStall: maxStall})
	}
	strict, brief := unlisted("strict", runstore.LeaseSpec{Strict: true}), unlisted("brief", runstore.LeaseSpec{Strict: true})
	busy, slow, stalled := bound("busy", runstore.MaxMaxStall), bound("slow", 30*time.Minute), bound("stalled", runstore.MinTTL)
	takeOver(t, other, "fenced")
	takeOver(t, other, "dead")
	large := bytes.Repeat([]byte("x"), 64<<10)
	seed := appending(lease, "event")
	seed.Put("key", []byte("value"))
	seed.Put("large", large)
	seed.Put(runstore.SummaryKey, []byte("summary"))
	commit(t, s, seed)
	for i := range 3 {
		b := appending(taken, "event")
		b.Put(runstore.RecordKey(fmt.Sprint("due ", i)), []byte("value"), runstore.Place{Index: "due", At: runstore.After(0)})
		commit(t, s, b)
	}
	committing := func(fill func(b *runstore.Batch)) func() error {
		return func() error {
			b := appending(lease, "event")
			fill(&b)
			_, err := s.Commit(ctx, b)
			return err
		}
	}
	acquire := func(id runstore.RunID, guards ...runstore.Guard) func() error {
		return func() error {
			_, err := s.AcquireLease(ctx, runstore.AcquireRequest{
				Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: runstore.MaxTTL}, Guards: guards,
			})
			return err
		}
	}
	renew := func(l runstore.Lease, id runstore.BatchID, w runstore.Writes) func() error {
		return func() error {
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL, ID: id, Writes: w})
			return err
		}
	}
	var event runstore.Writes
	event.Append("test", []byte("event"))
	release := func() error {
		_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: busy.Fence(), Writes: event})
		return err
	}
	acquireWith := func() error {
		_, err := s.AcquireLease(ctx, runstore.AcquireRequest{
			Run: "busy", LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: runstore.MaxTTL, Grant: "with writes"}, Writes: event,
		})
		return err
	}
	scanning := func(q runstore.IndexQuery, n int) func() error {
		return func() error {
			q.Limit = 100
			found, err := s.ScanIndex(ctx, q)
			if err == nil && len(found) != n {
				t.Errorf("a scan of %s found %d entries, want %d", q.Index, len(found), n)
			}
			return err
		}
	}
	scan := func(index runstore.IndexName, until time.Time, n int) func() error {
		return scanning(runstore.IndexQuery{Index: index, Until: until}, n)
	}
	read := func(key runstore.RecordKey) func() error {
		return func() error {
			_, err := s.ReadRecords(ctx, "run", runstore.RecordQuery{Keys: []runstore.RecordKey{key}})
			return err
		}
	}
	return []cost{
		{"commit one event", rpcs(swaps), nil, committing(func(*runstore.Batch) {})},
		{"commit 1000 events", rpcs(swaps), nil, func() error {
			b := appending(bulk)
			for range runstore.MaxEvents {
				b.Append("test", []byte("event"))
			}
			_, err := s.Commit(ctx, b)
			return err
		}},
		{"commit a record that the handle wrote before", rpcs(swaps), nil, committing(func(b *runstore.Batch) { b.Put("key", []byte("new")) })},
		{"commit a record that is new to the handle", rpcs(swaps), nil, committing(func(b *runstore.Batch) { b.Put("new", []byte("new")) })},
		{"commit a status", rpcs(swaps), nil, committing(func(b *runstore.Batch) {
			status := runstore.Status(1)
			b.Status = &status
		})},
		{"commit with places in queues", rpcs(writes, swaps), nil, committing(func(b *runstore.Batch) {
			b.Put("key", []byte("new"), runstore.Place{Index: "a", At: runstore.After(0)}, runstore.Place{Index: "b", At: runstore.After(0)})
			b.Runnable = runstore.After(time.Hour)
		})},
		{"commit with a large value", rpcs(writes, swaps), nil, committing(func(b *runstore.Batch) { b.Put("large", large) })},
		{"commit with an id, the first", rpcs(reads, swaps), nil, committing(func(b *runstore.Batch) { b.ID = "first" })},
		{"commit with an id", rpcs(swaps), nil, committing(func(b *runstore.Batch) { b.ID = "second" })},
		{"renew with writes and an id", rpcs(swaps), nil, renew(lease, "third", event)},
		{"commit of a handle that does not know the run", rpcs(reads, swaps), nil, func() error {
			_, err := other.Commit(ctx, signal("over", "event"))
			return err
		}},
		{"commit that another handle's write came before", rpcs(swaps, reads, swaps), nil, func() error {
			commit(t, other, signal("run", "between"))
			_, err := s.Commit(ctx, appending(lease, "event"))
			return err
		}},
		{"commit that lost its lease", rpcs(swaps, reads), runstore.ErrFenced, func() error {
			_, err := s.Commit(ctx, appending(fenced, "zombie"))
			return err
		}},
		{"commit that lost its lease, again", rpcs(reads), runstore.ErrFenced, func() error {
			b := appending(fenced, "zombie")
			_, err := s.Commit(ctx, b)
			return err
		}},
		{"renew", rpcs(swaps), nil, renew(lease, "", runstore.Writes{})},
		{"renew with writes", rpcs(swaps), nil, renew(lease, "", event)},
		{"renew with a bound", rpcs(swaps), nil, renew(busy, "", runstore.Writes{})},
		{"renew within two seconds of the bound", rpcs(clock, swaps), nil, func() (err error) {
			bigtable.Ahead(s, func() { err = renew(slow, "", runstore.Writes{})() })
			return err
		}},
		{"renew without progress", rpcs(clock, reads, clock), runstore.ErrNoProgress, renew(stalled, "", runstore.Writes{})},
		{"renew without progress, with an id", rpcs(reads, clock, reads, clock, swaps), runstore.ErrNoProgress, renew(stalled, "stalled", runstore.Writes{Status: new(runstore.Status)})},
		{"renew with writes after that", rpcs(swaps), nil, renew(stalled, "", event)},
		{"renew a lost lease", rpcs(swaps, reads), runstore.ErrFenced, renew(dead, "", runstore.Writes{})},
		{"release with writes", rpcs(swaps), nil, release},
		{"release with writes, repeated", rpcs(reads), nil, release},
		{"acquire a free lease with writes", rpcs(reads, swaps), nil, acquireWith},
		{"acquire with writes, repeated", rpcs(reads), nil, acquireWith},
		{"release with guards", rpcs(swaps), nil, func() error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: free.Fence(), Guards: []runstore.Guard{runstore.AtSeq(1), runstore.AtToken(free.Token)}})
			return err
		}},
		{"acquire a free lease", rpcs(reads, swaps), nil, acquire("free")},
		{"acquire an expired lease", rpcs(reads, clock, swaps), nil, acquire(over.Run)},
		{"acquire a held lease", rpcs(reads), runstore.ErrLeaseHeld, acquire("taken")},
		{"acquire a lease that may have ended", rpcs(reads, clock), runstore.ErrLeaseHeld, func() (err error) {
			bigtable.Ahead(s, func() { err = acquire("taken")() })
			return err
		}},
		{"hand a lease off", rpcs(reads, swaps), nil, acquire("taken", taken.Fence())},
		{"commit under a strict lease", rpcs(clock, swaps), nil, func() error { _, err := s.Commit(ctx, appending(strict, "event")); return err }},
		{"renew a strict lease", rpcs(clock, swaps), nil, renew(strict, "", runstore.Writes{})},
		{"release a strict lease", rpcs(clock, swaps), nil, func() error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: brief.Fence()})
			return err
		}},
		{"hand a strict lease off", rpcs(reads, clock, swaps), nil, acquire("strict", strict.Fence())},
		{"create", rpcs(reads, writes, swaps), nil, func() error {
			_, err := s.CreateRun(ctx, runstore.RunSpec{
				ID: "new", Writes: someWrites(), Lease: &runstore.LeaseSpec{Owner: "first", TTL: time.Minute},
			})
			return err
		}},
		{"create an unlisted run", rpcs(reads, writes, swaps), nil, func() error {
			_, err := s.CreateRun(ctx, runstore.RunSpec{ID: "unlisted", Unlisted: true})
			return err
		}},
		{"create what exists", rpcs(reads, reads), nil, func() error {
			_, err := s.CreateRun(ctx, runstore.RunSpec{ID: "taken"})
			return err
		}},
		{"get a run", rpcs(reads), nil, func() error { _, err := s.GetRun(ctx, "taken"); return err }},
		{"get what is absent", rpcs(reads), runstore.ErrNotFound, func() error { _, err := s.GetRun(ctx, "absent"); return err }},
		{"read records", rpcs(reads), nil, read("key")},
		{"read a large record", rpcs(reads, reads), nil, read("large")},
		{"read the journal's end", rpcs(reads), nil, func() error {
			run, err := s.GetRun(ctx, "taken")
			if err == nil {
				_, err = s.ReadJournal(ctx, "taken", run.LastSeq, 10)
			}
			return err
		}},
		{"scan a queue up to a time", rpcs(reads, reads), nil, scan("due", runstore.EndOfTime, 3)},
		{"scan what is due in a queue", rpcs(clock, reads, reads), nil, scan("due", time.Time{}, 3)},
		{"scan an empty queue", rpcs(clock, reads), nil, scan("empty", time.Time{}, 0)},
		{"scan a queue from a time, with heads", rpcs(reads, reads), nil, scanning(runstore.IndexQuery{
			Index: "due", From: lease.ExpiresAt.Add(-2 * runstore.MaxTTL), Until: runstore.EndOfTime, Heads: true,
		}, 3)},
		{"scan the runs", rpcs(reads, reads), nil, scan(runstore.IndexRuns, runstore.EndOfTime, 8)},
		{"read the feed", rpcs(reads, reads), nil, func() error {
			found, err := s.ReadFeed(ctx, runstore.FeedQuery{Limit: 1})
			if err == nil && len(found) != 1 {
				t.Errorf("a page of the feed has %d events, want 1", len(found))
			}
			return err
		}},
		{"now", rpcs(clock), nil, func() error { _, err := s.Now(ctx); return err }},
	}
}

// Every operation makes exactly these RPCs. The log of the test is the table of the
// engine's page.
func TestRPCs(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s, other := open(t, table), open(t, table)
	all := costs(t, s, other)
	feed(t, s, 0, 1)
	l := keepLedger(t, table)
	page := []string{"| operation | RPCs | which |", "|---|---|---|"}
	for _, c := range all {
		// The other handle's RPCs, and those that ask where the journal ends, are not the operation's.
		now(t, s) // so that the operation does not read the clock because the test was slow
		now(t, other)
		n := l.during(func() {
			if err := c.do(); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Errorf("%s: got %v, want %v", c.name, err, c.want)
			}
		})
		switch c.name {
		case "commit that another handle's write came before":
			n = strings.TrimPrefix(n, rpcs(reads, swaps)+", ")
		case "read the journal's end":
			n = strings.TrimPrefix(n, reads+", ")
		}
		if n != c.rpcs {
			t.Errorf("%s: got the RPCs %s, want %s", c.name, n, c.rpcs)
		}
		page = append(page, fmt.Sprintf("| %s | %d | %s |", c.name, strings.Count(n, ",")+1, n))
	}
	t.Logf("\n%s", strings.Join(page, "\n"))
}

// Sealed events cost a page of the journal one more read, of however many segments.
func TestRPCsOfASealedJournal(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	lease := hold(t, s, "run")
	for range 3 {
		b := appending(lease)
		for range 200 {
			b.Append("test", []byte("event"))
		}
		commit(t, s, b)
	}
	seal(t, s, "run")
	l := keepLedger(t, table)
	for _, tc := range []struct {
		from, limit int
		want        string
	}{{1, 10, rpcs(reads, reads)}, {1, 1000, rpcs(reads, reads)}, {600, 10, rpcs(reads)}} {
		n := l.during(func() {
			found, err := s.ReadJournal(t.Context(), "run", runstore.Seq(tc.from), tc.limit)
			if want := min(tc.limit, 600-tc.from+1); err != nil || len(found) != want {
				t.Errorf("from %d: got %d events, %v, want %d", tc.from, len(found), err, want)
			}
		})
		if n != tc.want {
			t.Errorf("a page of %d events from %d on: got the RPCs %s, want %s", tc.limit, tc.from, n, tc.want)
		}
	}
}

// A commit spends nothing on the feed: what brings its events there carries no
// operation, however many commits there are.
func TestFeedCostsCommitsNothing(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := open(t, table)
	leases := make([]runstore.Lease, 10)
	for i := range leases {
		leases[i] = hold(t, s, runstore.RunID(fmt.Sprint("run ", i)))
	}
	l := keepLedger(t, table)
	const commits = 100
	n := l.during(func() {
		for i := range commits {
			commit(t, s, appending(leases[i%len(leases)], "event"))
		}
		found, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 1}) // whatever is there
		if err != nil {
			t.Errorf("the feed: %d events, %v", len(found), err)
		}
	})
	if got := strings.Count(n, swaps); got != commits || strings.Contains(n, writes) {
		t.Errorf("%d commits: got %d conditional mutations among %s", commits, got, n)
	}
	feed(t, s, 0, commits)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rest == 0 {
		t.Error("nothing was seen of what brings the events into the feed")
	}
	t.Logf("%d commits to %d runs: %d RPCs in the background brought their events into the feed", commits, len(leases), l.rest)
}

// A batch is one conditional mutation, and before it a request for each MiB of large
// values.
func TestRPCsOfALargeBatch(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	lease := hold(t, s, "run")
	l := keepLedger(t, table)
	b := appending(lease)
	for range 7 {
		b.Append("test", bytes.Repeat([]byte("x"), runstore.MaxEventData))
	}
	if n, want := l.during(func() { commit(t, s, b) }), strings.Repeat(writes+", ", 7)+swaps; n != want {
		t.Errorf("a batch of 7 MiB: got the RPCs %s, want %s", n, want)
	}
}

// A write to a row that is full of events copies segments before it, and records them itself. If the background
// has copied them, or has kept up, it makes no other request.
func TestRPCsOfACrowdedRow(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	lease := hold(t, s, "run")
	b := appending(lease)
	for range runstore.MaxEvents {
		b.Append("test", []byte("event"))
	}
	l := keepLedger(t, table)
	for _, prepared := range []bool{false, true} {
		commit(t, s, b)
		want := rpcs(reads, writes, swaps)
		if prepared {
			want = swaps
			if err := bigtable.PrepareSeal(t.Context(), s, "run"); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if n := l.during(func() { commit(t, s, appending(lease, "event")) }); n != want {
				t.Errorf("prepared %t: got the RPCs %s, want %s", prepared, n, want)
			}
			want = swaps
		}
	}
}

// A scan of a range with more entries than a page has reads each shard on its own.
func TestRPCsOfALongQueue(t *testing.T) {
	t.Parallel()
	table := newTable(t)
	s := openBare(t, table)
	lease := hold(t, s, "run")
	const limit, beyond = 10, 16
	l := keepLedger(t, table)
	next := 0
	for _, c := range []struct{ entries, want int }{{limit + beyond - 1, 2}, {limit + beyond, 2 + 16}} {
		b := appending(lease)
		for ; next < c.entries; next++ {
			b.Put(runstore.RecordKey(fmt.Sprint(next)), nil, runstore.Place{Index: "queue", At: runstore.After(0)})
		}
		commit(t, s, b)
		n := l.during(func() {
			found, err := s.ScanIndex(t.Context(), runstore.IndexQuery{Index: "queue", Until: runstore.EndOfTime, Limit: limit})
			if err != nil || len(found) != limit {
				t.Errorf("%d entries: got %d, %v, want %d", c.entries, len(found), err, limit)
			}
		})
		if got := strings.Count(n, reads); got != c.want || strings.Count(n, ",")+1 != got {
			t.Errorf("%d entries: got the RPCs %s, want %d reads", c.entries, n, c.want)
		}
	}
}
