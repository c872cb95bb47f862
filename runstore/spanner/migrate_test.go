package spanner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	client "cloud.google.com/go/spanner"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// row is a row's values by the names of their columns.
type row = map[string]any

// ofVersion makes a database of an earlier version of the schema and fills it as a program
// of that version did: in epoch 1, the run "held" with a lease, "released" and "purged".
func ofVersion(t *testing.T, version int64) testDatabase {
	t.Helper()
	p := newDatabase(t, fair)
	var statements []string
	for _, of := range spanner.Migrations()[:version] {
		statements = append(statements, of...)
	}
	alter(t, p, statements...)
	now := time.Now().UTC().Truncate(runstore.TimePrecision)
	var all []*client.Mutation
	add := func(table string, r row) { all = append(all, client.InsertMap(table, r)) }
	for v := range version {
		add("TapestoreSchema", row{"Version": v + 1, "Migrated": client.CommitTimestamp})
	}
	add("Store", row{"One": 1, "Epoch": 1, "Incarnation": p.String(), "Ended": true})
	add("Epochs", row{"Epoch": 1, "Began": now, "Reason": []byte("test")})
	for shard := range spanner.Shards {
		add(epochTable(version), row{"Shard": shard, "Epoch": 1})
	}
	for i, id := range []runstore.RunID{"held", "released", "purged"} {
		hash, shard := spanner.KeyOf(id)
		of := func(r row) row {
			r["RunHash"], r["Run"] = hash, []byte(id)
			return r
		}
		created := client.NullTime{Time: now.Add(-time.Duration(i) * time.Millisecond), Valid: id != "purged"}
		head := of(row{
			"Shard": shard, "Status": 4, "Created": created, "Runnable": created, "LastSeq": 1, "Token": firstToken, "GrantState": i + 1,
			"GrantId": []byte("grant of " + id), "Owner": []byte("owner"), "Reactor": []byte("agent"), "Strict": false, "Expires": now.Add(runstore.MaxTTL),
			"PreemptedFrom": []byte{}, "PreemptReason": []byte{}, "VersionFloor": 1, "VersionTop": 1, "CallerWrites": 1, "OtherWrites": 1, "Seen": now,
		})
		if version >= 4 {
			head["HeldUntil"] = head["Expires"]
		}
		add("Runs", head)
		if !created.Valid {
			continue
		}
		slot := int64(i)
		event := row{
			"Seq": 1, "Committed": client.CommitTimestamp, "Slot": slot, "Time": now, "Token": firstToken, "Kind": []byte("event"),
			"Owner": []byte("owner"), "Data": []byte("data"),
		}
		own := of(row{
			"Seq": 0, "Committed": client.CommitTimestamp, "Slot": 0, "Time": now, "Token": 0, "Kind": []byte{}, "Owner": []byte{}, "Data": []byte{},
		})
		add("Events", own)
		feed := row{"Shard": spanner.FeedShard(slot), "Run": []byte(id)}
		for column, value := range event {
			if version < 4 || column == "Committed" || column == "Slot" || column == "Seq" {
				feed[column] = value
			}
		}
		add("Events", of(event))
		add("Feed", feed)
		for _, key := range []string{"", "run"} {
			record := of(row{
				"Key": []byte(key), "Version": len(key) / 3, "CreatedSeq": len(key) / 3, "CreatedTime": now, "UpdatedSeq": len(key) / 3, "UpdatedTime": now,
				"Value": []byte(key),
			})
			if key != "" {
				record["PlaceNames"], record["PlaceTimes"] = [][]byte{[]byte("queue")}, []time.Time{now}
			}
			add("Records", record)
		}
		add("Queue", of(row{
			"Name": []byte("queue"), "Shard": shard, "Due": now, "UpdatedTime": now, "Key": []byte("run"), "Version": 1, "CreatedSeq": 1,
			"CreatedTime": now, "UpdatedSeq": 1, "Value": []byte("run"),
		}))
		add("Writes", of(row{
			"Callers": true, "Slot": 0, "Id": []byte("batch"), "FirstSeq": 1, "LastSeq": 1, "Time": now, "Token": firstToken, "Versions": []int64{1},
		}))
	}
	if _, err := raw(t, p).Apply(t.Context(), all); err != nil {
		t.Fatalf("fill a database of version %d: %v", version, err)
	}
	return p
}

// epochTable is the table of a version whose name every write of that version reads.
func epochTable(version int64) string {
	switch {
	case version < 3:
		return "EpochCopies"
	case version < 4:
		return "EpochShards"
	}
	return "GrantEpochs"
}

var firstToken = int64(runstore.Epoch(1).Floor()) + 1

// A database of an earlier version of the schema is migrated with all that it holds, by
// however many handles are opened at once.
func TestMigrate(t *testing.T) {
	t.Parallel()
	for version := int64(1); version < int64(len(spanner.Migrations())); version++ {
		t.Run(fmt.Sprintf("from version %d", version), func(t *testing.T) {
			t.Parallel()
			p := ofVersion(t, version)
			var updates atomic.Int64
			watched := p.server.Refuse(0, codes.Unavailable, func(c spanneremulator.Call) bool {
				if r, ok := c.Request.(*spannerpb.ExecuteSqlRequest); ok && c.Database == p.String() && strings.HasPrefix(r.GetSql(), "UPDATE Feed") {
					updates.Add(1)
				}
				return false
			})
			together(t, p, 3)
			watched.Stop()
			if n := updates.Load(); (n > 0) != (version < 4) {
				t.Errorf("%d updates read all rows of the feed, want some only from versions below 4", n)
			}
			if n := count(t, raw(t, p), "SELECT MAX(Version) FROM TapestoreSchema"); n != int64(len(spanner.Migrations())) {
				t.Errorf("got version %d of the schema, want %d", n, len(spanner.Migrations()))
			}
			if n := count(t, raw(t, p), "SELECT COUNT(*) FROM Feed WHERE Data IS NOT NULL"); n != 0 {
				t.Errorf("%d rows of the feed still hold their events", n)
			}
			s := open(t, p)
			asItWas(t, s)
			inUse(t, s)
		})
	}
}

// A migration whose program was killed before it recorded the versions is completed by the next
// handle, at its first change of the schema.
func TestMigrationIsResumed(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	if err := open(t, p).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := raw(t, p).Apply(t.Context(), []*client.Mutation{client.Delete("TapestoreSchema", client.AllKeys())}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var changes atomic.Int64
	watched := p.server.Refuse(0, codes.Unavailable, func(c spanneremulator.Call) bool {
		if r, ok := c.Request.(*databasepb.UpdateDatabaseDdlRequest); ok && r.GetDatabase() == p.String() && changes.Add(1) > 1 {
			cancel() // opening would repeat the change for ever
		}
		return false
	})
	defer watched.Stop()
	_, err := tryOpenIn(ctx, t, p)
	if n := changes.Load(); n != 1 {
		t.Fatalf("%d changes of the schema, want one", n)
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := count(t, raw(t, p), "SELECT COUNT(*) FROM TapestoreSchema"); n != int64(len(spanner.Migrations())) {
		t.Errorf("%d versions of the schema, want %d", n, len(spanner.Migrations()))
	}
}

// asItWas fails the test unless a migrated store shows all that ofVersion put there.
func asItWas(t *testing.T, s *spanner.Store) {
	t.Helper()
	run, err := s.GetRun(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	want := runstore.Holder{Owner: "owner", Reactor: "agent", Token: runstore.Token(firstToken), ExpiresAt: run.ExpiresAt}
	if run.Holder != want || run.Unlisted || run.Summary.Updated.Token != 0 || run.LastSeq != 1 {
		t.Errorf("got %+v, want a listed run, the holder %+v and a summary without a token", run, want)
	}
	for _, q := range []runstore.IndexQuery{
		{Index: runstore.IndexRuns}, {Index: runstore.IndexRuns, Newest: true}, {Index: runstore.IndexRunnable}, {Index: "queue"},
	} {
		q.Limit = 10
		want := map[bool]int{true: 1, false: 2}[q.Index == runstore.IndexRunnable] // the lease of "held" is live
		if found, err := s.ScanIndex(t.Context(), q); err != nil || len(found) != want {
			t.Errorf("scan of %s, newest %t: got %d entries, error %v, want %d", q.Index, q.Newest, len(found), err, want)
		}
	}
	if events, err := s.ReadFeed(t.Context(), runstore.FeedQuery{Limit: 10}); err != nil || len(events) != 2 || string(events[0].Data) != "data" {
		t.Errorf("got the events %+v in the feed, error %v, want 2 with their data", events, err)
	}
}

// inUse fails the test unless the runs of a migrated store go on where they were.
func inUse(t *testing.T, s *spanner.Store) {
	t.Helper()
	spec := runstore.LeaseSpec{Owner: "owner", TTL: runstore.MaxTTL, Grant: "grant of held"}
	lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: "held", LeaseSpec: spec})
	if err != nil || lease.Ended || lease.Token != runstore.Token(firstToken) {
		t.Fatalf("the acquire of the last grant, repeated: got %+v, error %v, want the grant", lease, err)
	}
	b := appending(lease.Lease, "again")
	b.ID = "batch"
	if done := commit(t, s, b); !done.Replayed || done.FirstSeq != 1 {
		t.Errorf("a batch, repeated: got %+v, want the first result", done)
	}
	if _, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: lease.Fence(), TTL: runstore.MaxTTL}); err != nil {
		t.Errorf("renew: %v", err)
	}
	b = appending(lease.Lease, "more")
	b.Put(runstore.SummaryKey, nil)
	done := commit(t, s, b)
	run, err := s.GetRun(t.Context(), "held")
	if h := run.Holder; err != nil || !h.ProgressedAt.Equal(done.Time) || h.RenewedAt.IsZero() || !h.GrantedAt.IsZero() {
		t.Errorf("after a renewal and a commit: got %+v, error %v", run.Holder, err)
	}
	if run.Summary.Created.Token != 0 || run.Summary.Updated.Token != lease.Token {
		t.Errorf("got the summary %+v, want one that was updated under %v", run.Summary, lease.Token)
	}
	for _, tc := range []struct {
		run  runstore.RunID
		want runstore.GrantEnd
	}{{"held", runstore.EndPreempted}, {"released", runstore.EndReleased}} {
		next, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: tc.run, LeaseSpec: runstore.LeaseSpec{Owner: "next", TTL: runstore.MaxTTL}, Preempt: "test",
		})
		if err != nil || next.Former != tc.want || next.Token != runstore.Token(firstToken)+1 {
			t.Errorf("acquire %s: got %+v, error %v, want a former grant that was %v", tc.run, next, err, tc.want)
		}
		// The former version kept whose a grant was that had ended, but not when.
		terms, err := s.ReadTerms(t.Context(), tc.run)
		if err != nil || len(terms) != 2 || terms[0].Owner != "owner" || terms[0].End != tc.want || terms[0].EndedAt.IsZero() != (tc.run == "released") || terms[1].Owner != "next" {
			t.Errorf("the terms of %s: %+v, %v", tc.run, terms, err)
		}
		spec.Grant = runstore.GrantID("grant of " + tc.run)
		if _, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{Run: tc.run, LeaseSpec: spec}); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("acquire %s with the id of the grant before: got error %v, want ErrFenced", tc.run, err)
		}
	}
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "purged", Lease: &runstore.LeaseSpec{Owner: "next", TTL: runstore.MaxTTL}})
	if err != nil || created.Former != runstore.EndRevoked || created.Lease.Token != runstore.Token(firstToken)+1 {
		t.Errorf("create a purged run anew: got %+v, error %v", created, err)
	}
	if fresh := hold(t, s, "fresh"); fresh.Token != runstore.Token(firstToken) {
		t.Errorf("the first token of a run is %v, want %v of the epoch", fresh.Token, firstToken)
	}
}

// guardOf is what every write of a program of an older version reads first.
func guardOf(version int64) string {
	return `SELECT
	CURRENT_TIMESTAMP() AS Now,
	ARRAY(SELECT AS STRUCT h.Run, h.Status, h.Created, h.Runnable, h.LastSeq, h.Token, h.GrantState, h.GrantId, h.Owner, h.Reactor,
	h.Strict, h.Expires, h.PreemptedFrom, h.PreemptReason, h.VersionFloor, h.VersionTop, h.CallerWrites, h.OtherWrites, h.Seen, h.Purging
		FROM Runs AS h WHERE h.RunHash = @hash AND h.Run = @run) AS Head,
	(SELECT e.Epoch FROM ` + epochTable(version) + ` AS e WHERE e.Shard = @shard) AS Epoch`
}

// feedOfVersion3 names the tables and the index that the feed and the scans of versions 2 and
// 3 read.
const feedOfVersion3 = `SELECT q.Run, p.Run FROM Feed AS q LEFT JOIN (SELECT p.Run FROM Runs@{FORCE_INDEX=RunsPurging} AS p WHERE p.Purging IS NOT NULL) AS p ON p.Run = q.Run`

// A program of an older version that has the database open can neither write to runs nor
// raise the epoch once the schema is of a later version, nor read a feed that it would
// misunderstand. A program of version 4 misunderstands nothing of the next, and goes on.
func TestMigrationEndsOlderPrograms(t *testing.T) {
	t.Parallel()
	for version := int64(2); version < 4; version++ {
		t.Run(fmt.Sprintf("version %d", version), func(t *testing.T) {
			t.Parallel()
			p := ofVersion(t, version)
			c := raw(t, p)
			hash, _ := spanner.KeyOf("held")
			query := func(sql string) error {
				stmt := client.Statement{SQL: sql, Params: map[string]any{"hash": hash, "run": []byte("held"), "shard": client.NullInt64{}}}
				return c.Single().Query(t.Context(), stmt).Do(func(*client.Row) error { return nil })
			}
			raise := func() error {
				_, err := c.Apply(t.Context(), []*client.Mutation{
					client.InsertOrUpdate("Store", []string{"One", "Epoch", "Incarnation", "Ended"}, []any{1, 2, p.String(), true}),
					client.InsertOrUpdate(epochTable(version), []string{"Shard", "Epoch"}, []any{0, 2}),
				})
				return err
			}
			if err := errors.Join(query(guardOf(version)), query(feedOfVersion3)); err != nil {
				t.Fatalf("its statements before: %v", err)
			}
			s := open(t, p)
			if err := query(guardOf(version)); client.ErrCode(err) != codes.InvalidArgument {
				t.Errorf("a write: got error %v, want InvalidArgument", err)
			}
			if err := query(feedOfVersion3); client.ErrCode(err) != codes.InvalidArgument {
				t.Errorf("a page of the feed: got error %v, want InvalidArgument", err)
			}
			if err := raise(); client.ErrCode(err) != codes.NotFound {
				t.Errorf("a new epoch: got error %v, want NotFound", err)
			}
			if next := takeOver(t, s, "held"); next.Token != runstore.Token(firstToken)+1 {
				t.Errorf("the next token is %v, want %v", next.Token, firstToken+1)
			}
		})
	}
}

// A handle whose database a newer program migrates meanwhile reports that, and that nothing
// was written.
func TestMigratedMeanwhile(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p)
	lease := hold(t, s, "run")
	alter(t, p, "ALTER TABLE Runs DROP COLUMN PreemptReason")
	refused := func(when string, want error) {
		t.Helper()
		_, err := s.Commit(t.Context(), appending(lease, "late"))
		if !errors.Is(err, want) || errors.Is(err, runstore.ErrUnknownOutcome) {
			t.Errorf("%s: got error %v, want %v", when, err, want)
		}
		if want == runstore.ErrUnsupported && !strings.Contains(err.Error(), "version 99") {
			t.Errorf("%s: got error %v, want one that names the version", when, err)
		}
	}
	refused("the migration is under way", runstore.ErrUnavailable)
	if _, err := raw(t, p).Apply(t.Context(), []*client.Mutation{
		client.Insert("TapestoreSchema", []string{"Version", "Migrated"}, []any{99, client.CommitTimestamp}),
	}); err != nil {
		t.Fatal(err)
	}
	refused("the migration is done", runstore.ErrUnsupported)
	if events, err := s.ReadJournal(t.Context(), "run", 1, 10); err != nil || len(events) != 0 {
		t.Errorf("got %d events, error %v, want a run without any", len(events), err)
	}
}
