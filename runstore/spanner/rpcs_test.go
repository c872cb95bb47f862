package spanner_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/spanner/apiv1/spannerpb"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// The RPCs as the tables here write them.
const (
	sql      = "ExecuteStreamingSql"
	keys     = "StreamingRead"
	commits  = "Commit"
	rollback = "Rollback"
)

func rpcs(all ...string) string { return strings.Join(all, ", ") }

// cost is what an operation costs: the RPCs that it makes one after another.
type cost struct {
	name string
	rpcs string
	want error
	do   func() error
}

func withLease(id runstore.RunID) runstore.RunSpec {
	var w runstore.Writes
	w.Append("test", []byte("begun"))
	w.Put(runstore.SummaryKey, []byte("summary"))
	return runstore.RunSpec{ID: id, Writes: w, Lease: &runstore.LeaseSpec{Owner: "first", TTL: runstore.MaxTTL}}
}

// costs are those of the engine's page.
func costs(t *testing.T, s *spanner.Store) []cost {
	ctx := t.Context()
	lease, taken, free, fenced, second := hold(t, s, "run"), hold(t, s, "taken"), hold(t, s, "free"), hold(t, s, "fenced"), hold(t, s, "second")
	handed, claimed := hold(t, s, "handed"), hold(t, s, "claimed")
	ahead := second
	ahead.Token = runstore.Epoch(1).Floor() + 1
	takeOver(t, s, "fenced")
	over, err := s.CreateRun(ctx, runstore.RunSpec{ID: "over", Lease: &runstore.LeaseSpec{Owner: "holder", TTL: runstore.MinTTL}})
	if err != nil {
		t.Fatal(err)
	}
	stalled := holdAs(t, s, "stalled", runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL, MaxStall: runstore.MinTTL})
	strict := holdAs(t, s, "strict", runstore.LeaseSpec{Owner: "holder", TTL: runstore.MinTTL, Strict: true})
	past(t, s, over.Lease.ExpiresAt)
	past(t, s, strict.ExpiresAt)
	past(t, s, stalled.ExpiresAt.Add(2*runstore.MinTTL-runstore.MaxTTL))
	checkpoint := runstore.RenewRequest{Fence: taken.Fence(), TTL: runstore.MaxTTL, ID: "checkpoint", Writes: someWrites()}
	claim := runstore.AcquireRequest{Run: claimed.Run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute, Grant: "claim"}, Preempt: "test", Writes: someWrites()}
	for range 3 {
		b := appending(taken, "event")
		b.Put("due", []byte("value"), runstore.Place{Index: "due", At: runstore.After(0)})
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
	acquire := func(id runstore.RunID, preempt string) func() error {
		return func() error {
			_, err := s.AcquireLease(ctx, runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}, Preempt: preempt})
			return err
		}
	}
	scan := func(index runstore.IndexName, newest bool) func() error {
		return func() error {
			found, err := s.ScanIndex(ctx, runstore.IndexQuery{Index: index, Limit: 100, Newest: newest, From: time.Unix(1, 0), Until: runstore.EndOfTime, Heads: true})
			if err == nil && len(found) == 0 {
				err = fmt.Errorf("nothing in %s", index)
			}
			return err
		}
	}
	write := rpcs(sql, commits)
	return []cost{
		{"commit one event", write, nil, committing(func(*runstore.Batch) {})},
		{"commit with records, queues, a status", write, nil, committing(func(b *runstore.Batch) {
			b.Put("key", []byte("new"), runstore.Place{Index: "a", At: runstore.After(0)}, runstore.Place{Index: "b", At: runstore.After(0)})
			b.Put("other", []byte("new"))
			b.Runnable = runstore.After(time.Hour)
		})},
		{"commit with an id", write, nil, committing(func(b *runstore.Batch) { b.ID = "id" })},
		{"commit with an id, again", rpcs(sql, rollback), nil, committing(func(b *runstore.Batch) { b.ID = "id" })},
		{"commit to two runs", write, nil, func() error {
			_, err := s.CommitMulti(ctx, []runstore.Batch{appending(lease, "one"), appending(second, "two")})
			return err
		}},
		{"commit that lost its lease", rpcs(sql, rollback), runstore.ErrFenced, func() error { _, err := s.Commit(ctx, appending(fenced, "zombie")); return err }},
		{"commit under a token of a later epoch", rpcs(sql, keys, rollback), runstore.ErrStoreBehind, func() error {
			_, err := s.Commit(ctx, appending(ahead, "from the future"))
			return err
		}},
		{"commit that conflicts", rpcs(sql, rollback), runstore.ErrConflict, committing(func(b *runstore.Batch) { b.Require(runstore.AtSeq(1)) })},
		{"commit at a token", write, nil, committing(func(b *runstore.Batch) { b.Require(runstore.AtToken(lease.Token)) })},
		{"commit at another token", rpcs(sql, rollback), runstore.ErrConflict, committing(func(b *runstore.Batch) { b.Require(runstore.AtToken(lease.Token - 1)) })},
		{"renew", write, nil, func() error {
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL})
			return err
		}},
		{"renew with writes", write, nil, func() error { _, err := s.RenewLease(ctx, checkpoint); return err }},
		{"renew with writes, again", rpcs(sql, rollback), nil, func() error { _, err := s.RenewLease(ctx, checkpoint); return err }},
		{"renew without progress", rpcs(sql, rollback), runstore.ErrNoProgress, func() error {
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: stalled.Fence(), TTL: runstore.MaxTTL})
			return err
		}},
		{"release", write, nil, func() error {
			_, err := s.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: free.Fence(), Guards: []runstore.Guard{runstore.AtToken(free.Token)}})
			return err
		}},
		{"acquire a free lease", write, nil, acquire("free", "")},
		{"acquire with writes", write, nil, func() error { _, err := s.AcquireLease(ctx, claim); return err }},
		{"acquire with writes, again", rpcs(sql, rollback), nil, func() error { _, err := s.AcquireLease(ctx, claim); return err }},
		{"acquire an expired lease", write, nil, acquire("over", "")},
		{"acquire a live lease by preempting", write, nil, acquire("taken", "test")},
		{"hand a lease off", write, nil, func() error {
			_, err := s.AcquireLease(ctx, runstore.AcquireRequest{
				Run: handed.Run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}, Guards: []runstore.Guard{handed.Fence()},
			})
			return err
		}},
		{"hand a strict lease off after its expiry", write, runstore.ErrLeaseExpired, func() error {
			_, err := s.AcquireLease(ctx, runstore.AcquireRequest{
				Run: strict.Run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: time.Minute}, Guards: []runstore.Guard{strict.Fence()},
			})
			return err
		}},
		{"acquire a held lease", rpcs(sql, rollback), runstore.ErrLeaseHeld, acquire("taken", "")},
		{"create with a lease", write, nil, func() error { _, err := s.CreateRun(ctx, withLease("new")); return err }},
		{"create what exists", rpcs(sql, rollback, sql), nil, func() error { _, err := s.CreateRun(ctx, runstore.RunSpec{ID: "taken"}); return err }},
		{"purge", rpcs(sql, commits, keys, keys, keys, commits), nil, func() error {
			b := runstore.NewBatch("over", runstore.Unguarded("test"))
			b.Purge = true
			_, err := s.Commit(ctx, b)
			return err
		}},
		{"get a run", sql, nil, func() error { _, err := s.GetRun(ctx, "taken"); return err }},
		{"get what is absent", sql, runstore.ErrNotFound, func() error { _, err := s.GetRun(ctx, "absent"); return err }},
		{"read the journal", keys, nil, func() error { _, err := s.ReadJournal(ctx, "taken", 1, 10); return err }},
		{"read a stale journal", keys, nil, func() error { _, err := s.ReadJournalStale(ctx, "taken", 1, 10, time.Second); return err }},
		{"scan for candidates", sql, nil, func() error {
			_, err := s.ScanIndexStale(ctx, runstore.IndexQuery{Index: runstore.IndexRunnable, Limit: 10}, time.Second)
			return err
		}},
		{"read the journal of what is absent", keys, runstore.ErrNotFound, func() error { _, err := s.ReadJournal(ctx, "absent", 1, 10); return err }},
		{"read records", keys, nil, func() error {
			_, err := s.ReadRecords(ctx, "taken", runstore.RecordQuery{Keys: []runstore.RecordKey{"due", "absent"}})
			return err
		}},
		{"read records by prefix", keys, nil, func() error { _, err := s.ReadRecords(ctx, "taken", runstore.RecordQuery{Limit: 10}); return err }},
		{"scan a queue", sql, nil, scan("due", false)},
		{"scan the runs", sql, nil, scan(runstore.IndexRuns, true)},
		{"scan what is runnable", sql, nil, scan(runstore.IndexRunnable, false)},
		{"read the feed", sql, nil, func() error {
			found, err := s.ReadFeed(ctx, runstore.FeedQuery{Limit: 2})
			if err == nil && len(found) != 2 {
				err = fmt.Errorf("a page has %d events, want 2", len(found))
			}
			return err
		}},
		{"now", sql, nil, func() error { _, err := s.Now(ctx); return err }},
	}
}

// Every operation makes exactly these RPCs, and each of them says all that the service
// is to be told. The log of the test is the table of the engine's page.
func TestRPCs(t *testing.T) {
	t.Parallel()
	var l ledger
	s := open(t, newDatabase(t, fair), l.keep, func(o *spanner.Options) { o.Priority = spannerpb.RequestOptions_PRIORITY_MEDIUM })
	page := []string{"| operation | RPCs | which |", "|---|---|---|"}
	for _, c := range costs(t, s) {
		made := l.during(func() {
			if err := c.do(); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Errorf("%s: got %v, want %v", c.name, err, c.want)
			}
		})
		var methods []string
		for _, one := range made {
			methods = append(methods, one.method)
			if problem := says(one); problem != "" {
				t.Errorf("%s: %s %s: %v", c.name, one.method, problem, one.request)
			}
		}
		if got := rpcs(methods...); got != c.rpcs {
			t.Errorf("%s: got the RPCs %s, want %s", c.name, got, c.rpcs)
		}
		page = append(page, fmt.Sprintf("| %s | %d | %s |", c.name, len(made), rpcs(methods...)))
	}
	t.Logf("\n%s", strings.Join(page, "\n"))
}

// says tells what an RPC of a medium priority does not say, or says wrongly.
func says(one sent) string {
	type tagged interface {
		GetRequestOptions() *spannerpb.RequestOptions
	}
	if r, ok := one.request.(tagged); ok {
		o := r.GetRequestOptions()
		if o.GetPriority() != spannerpb.RequestOptions_PRIORITY_MEDIUM {
			return "has not the priority"
		}
		if one.method != commits && !strings.HasPrefix(o.GetRequestTag(), "tapestore-") {
			return "has no request tag"
		}
	}
	selector := (*spannerpb.TransactionSelector)(nil)
	if r, ok := one.request.(interface {
		GetTransaction() *spannerpb.TransactionSelector
	}); ok {
		selector = r.GetTransaction()
	}
	begin := selector.GetBegin()
	writes := begin != nil || len(selector.GetId()) > 0 || one.method == commits || one.method == rollback
	switch {
	case !writes:
		return ""
	case len(one.md.Get("x-goog-spanner-route-to-leader")) != 1:
		return "is not routed to the leader"
	case one.method != rollback && !strings.HasPrefix(one.request.(tagged).GetRequestOptions().GetTransactionTag(), "tapestore-"):
		return "has no transaction tag"
	case begin != nil && !locks(one.request):
		return "takes the wrong locks"
	case begin != nil && begin.GetIsolationLevel() != spannerpb.TransactionOptions_SERIALIZABLE:
		return "is not serializable"
	case begin != nil && begin.GetReadWrite().GetReadLockMode() != spannerpb.TransactionOptions_ReadWrite_PESSIMISTIC:
		return "is not pessimistic"
	case one.method == sql && begin == nil && one.operation != "commit":
		return "does not begin its transaction"
	}
	return ""
}

// locks reports whether a request that begins a transaction takes exclusive locks, as all do
// but grants, which read rows that all grants share.
func locks(request any) bool {
	r, ok := request.(*spannerpb.ExecuteSqlRequest)
	return !ok || strings.Contains(r.GetSql(), "LOCK_SCANNED_RANGES=exclusive") != strings.Contains(r.GetSql(), "GrantEpochs")
}
