package spanner

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/spanner"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func percent(p int) *int { return &p }

// Both transactions are of one session, and each is used after the other: whichever has
// to yield is told ABORTED and nothing else.
func TestTransactionsOfOneSession(t *testing.T) {
	t.Parallel()
	for _, probability := range []int{0, 100} {
		c := newTestDatabase(t, startServer(t, &Options{AbortProbability: percent(probability)})).raw()
		first, second := c.begin(), c.begin()
		want := [2]codes.Code{codes.OK, codes.OK}
		want[1-probability/100] = codes.Aborted
		_, err := c.sql(t.Context(), withID(first), 0, "SELECT K FROM T")
		c.is("the first reads", err, codes.OK)
		_, err = c.sql(t.Context(), withID(second), 0, "SELECT K FROM T")
		c.is("the second reads", err, want[1])
		_, err = c.sql(t.Context(), withID(first), 0, "SELECT K FROM T")
		c.is("the first reads again", err, want[0])
		for range 2 { // the same answer whoever asks again
			_, err = c.commit(t.Context(), first, insertInto("first", "1"))
			c.is("the first commits", err, want[0])
			_, err = c.commit(t.Context(), second, insertInto("second", "2"))
			c.is("the second commits", err, want[1])
		}
		c.is("roll back who was aborted", c.rollback([][]byte{second, first}[probability/100]), codes.OK)
		c.is("roll back who has committed", c.rollback([][]byte{first, second}[probability/100]), codes.FailedPrecondition)
		c.rows(1)
	}
}

// A batch that meets another transaction is told so, and when to try again.
func TestBatchIsAborted(t *testing.T) {
	t.Parallel()
	c := newTestDatabase(t, startServer(t, &Options{AbortProbability: percent(0)})).raw()
	res, err := c.sql(t.Context(), andBegin(), 1, "INSERT INTO T (K, N) VALUES ('a', 1)")
	c.is("who came first", err, codes.OK)
	for _, selector := range []*spannerpb.TransactionSelector{andBegin(), withID(c.begin())} {
		_, err := c.ExecuteBatchDml(t.Context(), &spannerpb.ExecuteBatchDmlRequest{
			Session: c.session, Transaction: selector, Seqno: 1,
			Statements: []*spannerpb.ExecuteBatchDmlRequest_Statement{{Sql: "INSERT INTO T (K, N) VALUES ('b', 1)"}},
		})
		c.is("who came next", err, codes.Aborted)
	}
	_, err = c.commit(t.Context(), res.GetMetadata().GetTransaction().GetId())
	c.is("commit", err, codes.OK)
	c.rows(1)
}

// A Commit may come any number of times, at once and late.
func TestCommitIsReplayed(t *testing.T) {
	t.Parallel()
	c := newTestDatabase(t, startServer(t, nil)).raw()
	id := c.begin()
	answers := make([]*spannerpb.CommitResponse, 8)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			var err error
			answers[i], err = c.commit(t.Context(), id, insertInto("a", "1"))
			c.is("at once", err, codes.OK)
		})
	}
	wg.Wait()
	other := c.begin() // on the session that was given back
	_, err := c.sql(t.Context(), withID(other), 1, "INSERT INTO T (K, N) VALUES ('b', 2)")
	c.is("another transaction", err, codes.OK)
	late, err := c.commit(t.Context(), id, insertInto("a", "1"))
	c.is("late", err, codes.OK)
	for i, answer := range append(answers, late) {
		if !proto.Equal(answer, answers[0]) || answer.GetCommitTimestamp() == nil {
			t.Errorf("answer %d is %v, the first is %v", i, answer, answers[0])
		}
	}
	_, err = c.commit(t.Context(), other)
	c.is("the other commits", err, codes.OK)
	c.rows(2)

	// What failed has failed for good, and is in nobody's way.
	failed := c.begin()
	for range 2 {
		_, err = c.commit(t.Context(), failed, insertInto("c", "3"), insertInto("a", "1"))
		c.is("a row that is there", err, codes.AlreadyExists)
	}
	_, err = c.commit(t.Context(), c.begin(), insertInto("c", "3"))
	c.is("after that", err, codes.OK)
	c.rows(3)
}

// A Commit is carried out although its sender has left, who may then ask what came of it.
func TestCommitOutlivesItsSender(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, nil))
	c := o.raw()
	id := c.begin()
	hold := o.Hold(1, func(c Call) bool { return c.Method == "Commit" })
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := c.commit(ctx, id, insertInto("a", "1"))
		left <- err
	}()
	hosttest.AwaitFault(t, hold, 1)
	cancel()
	c.is("the sender", <-left, codes.Canceled)
	c.rows(0)
	hold.Stop()
	_, err := c.commit(t.Context(), id, insertInto("a", "1"))
	c.is("again", err, codes.OK)
	c.rows(1)
}

// DML that is repeated with its number is done once, and has the same answer with the
// same rows.
func TestStatementsAreReplayed(t *testing.T) {
	t.Parallel()
	c := newTestDatabase(t, startServer(t, nil)).raw()
	res, err := c.sql(t.Context(), andBegin(), 1, "INSERT INTO T (K, N) VALUES ('a', 1)")
	c.is("insert", err, codes.OK)
	id := res.GetMetadata().GetTransaction().GetId()
	const more = "UPDATE T SET N = N + 1 WHERE K = 'a' THEN RETURN N"
	for range 3 {
		res, err := c.sql(t.Context(), withID(id), 2, more)
		c.is("update", err, codes.OK)
		if n := res.GetRows()[0].GetValues()[0].GetStringValue(); n != "2" {
			t.Errorf("update returns %s, want 2", n)
		}
	}
	for range 3 {
		stream, err := c.ExecuteStreamingSql(t.Context(), &spannerpb.ExecuteSqlRequest{Session: c.session, Transaction: withID(id), Sql: more, Seqno: 3})
		c.is("streaming update", err, codes.OK)
		part, err := stream.Recv()
		c.is("streaming update", err, codes.OK)
		if n := part.GetValues()[0].GetStringValue(); n != "3" {
			t.Errorf("streaming update returns %s, want 3", n)
		}
	}
	for range 3 {
		res, err := c.ExecuteBatchDml(t.Context(), &spannerpb.ExecuteBatchDmlRequest{
			Session: c.session, Transaction: withID(id), Seqno: 4,
			Statements: []*spannerpb.ExecuteBatchDmlRequest_Statement{{Sql: more}, {Sql: more}},
		})
		c.is("batch", err, codes.OK)
		if n := res.GetResultSets()[1].GetRows(); len(res.GetResultSets()) != 2 {
			t.Errorf("batch returns %v", n)
		}
	}
	_, err = c.sql(t.Context(), withID(id), 2, "DELETE FROM T WHERE true")
	c.is("another statement with the same number", err, codes.InvalidArgument)
	// A query is asked again: it is to see what was done since.
	for range 2 {
		res, err := c.sql(t.Context(), withID(id), 5, "SELECT N FROM T")
		c.is("query", err, codes.OK)
		if n := res.GetRows()[0].GetValues()[0].GetStringValue(); n != "5" {
			t.Errorf("N is %s, want 5", n)
		}
	}
	_, err = c.commit(t.Context(), id)
	c.is("commit", err, codes.OK)
	_, err = c.sql(t.Context(), withID(id), 2, more)
	c.is("a late statement", err, codes.FailedPrecondition)
}

// A first statement that fails leaves nothing behind, and one of a batch what it has to.
func TestFirstStatementFails(t *testing.T) {
	t.Parallel()
	c := newTestDatabase(t, startServer(t, &Options{AbortProbability: percent(0)})).raw()
	for _, kind := range []string{"SELECT nothing FROM T", "INSERT INTO T (K) VALUES (1)"} {
		_, err := c.sql(t.Context(), andBegin(), 1, kind)
		c.is(kind, err, codes.InvalidArgument)
	}
	batch := func(statements ...string) *spannerpb.ExecuteBatchDmlResponse {
		req := &spannerpb.ExecuteBatchDmlRequest{Session: c.session, Transaction: andBegin(), Seqno: 1}
		for _, text := range statements {
			req.Statements = append(req.Statements, &spannerpb.ExecuteBatchDmlRequest_Statement{Sql: text})
		}
		res, err := c.ExecuteBatchDml(t.Context(), req)
		c.is("batch", err, codes.OK)
		return res
	}
	if res := batch("INSERT INTO T (K) VALUES (1)"); codes.Code(res.GetStatus().GetCode()) != codes.InvalidArgument || len(res.ResultSets) > 0 {
		t.Errorf("a batch whose first statement is bad: %v", res)
	}
	// With 0, nobody gets in while another transaction is open.
	res := batch("INSERT INTO T (K, N) VALUES ('a', 1)", "INSERT INTO T (K) VALUES (1)")
	id := res.GetResultSets()[0].GetMetadata().GetTransaction().GetId()
	if id == nil || codes.Code(res.GetStatus().GetCode()) != codes.InvalidArgument {
		t.Fatalf("a batch whose second statement is bad: %v", res)
	}
	_, err := c.commit(t.Context(), id)
	c.is("its commit", err, codes.OK)
	c.rows(1)
}

// Ids that the emulator never gave out, or of a time before, are not given to it: it
// would forget all transactions of a session that are older than such an id.
func TestUnknownTransactions(t *testing.T) {
	t.Parallel()
	c := newTestDatabase(t, startServer(t, nil)).raw()
	id := c.begin()
	for _, unknown := range []string{"999999", "x", c.session + "\x00999999", "\x00\x00\x00", c.session + "\x001\x00x"} {
		_, err := c.sql(t.Context(), withID([]byte(unknown)), 0, "SELECT 1")
		c.is("a query", err, codes.NotFound)
		_, err = c.commit(t.Context(), []byte(unknown))
		c.is("a commit", err, codes.NotFound)
		c.is("a rollback", c.rollback([]byte(unknown)), codes.OK)
	}
	_, err := c.commit(t.Context(), id)
	c.is("a transaction that is known", err, codes.OK)
}

// A transaction that nobody ends is ended, and is told so if somebody comes back.
func TestAbandonedTransaction(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, &Options{AbortProbability: percent(0), Idle: 2 * time.Second}))
	c := o.raw()
	res, err := c.sql(t.Context(), andBegin(), 1, "INSERT INTO T (K, N) VALUES ('a', 1)")
	c.is("insert", err, codes.OK)
	official := o.client()
	o.put(official, map[string]int64{"a": 2}) // returns when it could be done
	id := res.GetMetadata().GetTransaction().GetId()
	_, err = c.sql(t.Context(), withID(id), 2, "SELECT 1")
	c.is("a query of who was away", err, codes.Aborted)
	_, err = c.commit(t.Context(), id)
	c.is("the commit of who was away", err, codes.Aborted)
	o.has(official, "a", 2)
}

// 32 read-only transactions of a session are all that the emulator remembers, and none
// that is older than a read-write one in use.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, nil))
	c := o.client()
	o.put(c, map[string]int64{"row": 0})
	var snapshots []*spanner.ReadOnlyTransaction
	for i := range 50 {
		tx := c.ReadOnlyTransaction()
		defer tx.Close()
		if n, err := number(t.Context(), tx, "row"); err != nil || n != int64(i) {
			t.Fatalf("snapshot %d has %d, %v", i, n, err)
		}
		snapshots = append(snapshots, tx)
		if err := add(soonOn(t), c, "row", 1); err != nil {
			t.Fatal(err)
		}
	}
	for i, tx := range snapshots {
		if n, err := number(t.Context(), tx, "row"); err != nil || n != int64(i) {
			t.Errorf("snapshot %d has %d later, %v", i, n, err)
		}
		if at, err := tx.Timestamp(); err != nil || at.IsZero() {
			t.Errorf("snapshot %d was at %v, %v", i, at, err)
		}
	}
	batch, err := c.BatchReadOnlyTransaction(t.Context(), spanner.StrongRead())
	if err != nil {
		t.Fatal(err)
	}
	defer batch.Cleanup(context.WithoutCancel(t.Context()))
	parts, err := batch.PartitionQuery(t.Context(), spanner.NewStatement("SELECT K, N FROM T"), spanner.PartitionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		o.has(c, "row", 50)
	}
	rows := 0
	for _, part := range parts {
		if err := batch.Execute(t.Context(), part).Do(func(*spanner.Row) error { rows++; return nil }); err != nil {
			t.Error(err)
		}
	}
	if rows != 1 {
		t.Errorf("%d rows in parts, want 1", rows)
	}
}

// The probe is right: without the shim, a transaction is forgotten for another one of the
// same session.
func TestProbe(t *testing.T) {
	t.Parallel()
	s := startServer(t, &Options{AbortProbability: percent(0)})
	shimmed := s.Shimmed()
	s.withoutShim()
	o := newTestDatabase(t, s)
	c := o.raw()
	first, second := c.begin(), c.begin()
	for _, id := range [][]byte{first, second} {
		_, _ = c.sql(t.Context(), withID(id), 0, "SELECT 1")
	}
	_, err := c.commit(t.Context(), first, insertInto("a", "1"))
	if forgotten := err != nil && status.Code(err) != codes.Aborted; forgotten != shimmed {
		t.Errorf("shimmed: %v, and without the shim a commit gets %v", shimmed, err)
	}
}

// What else the official client does.
func TestOfficialClient(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, nil))
	ctx := soonOn(t)
	for _, compression := range []string{"", "gzip"} {
		c := o.client(func(config *spanner.ClientConfig) { config.Compression = compression })
		key := func(s string) string { return s + compression }
		insert := func(k string, n int64) *spanner.Mutation {
			return spanner.Insert("T", []string{"K", "N"}, []any{k, n})
		}
		if _, err := c.Apply(ctx, []*spanner.Mutation{insert(key("applied"), 1)}); err != nil {
			t.Error(err)
		}
		if _, err := c.Apply(ctx, []*spanner.Mutation{insert(key("once"), 1)}, spanner.ApplyAtLeastOnce()); err != nil {
			t.Error(err)
		}
		if n, err := c.PartitionedUpdate(ctx, spanner.NewStatement("UPDATE T SET N = 7 WHERE true")); err != nil || n < 2 {
			t.Errorf("partitioned update: %d, %v", n, err)
		}
		var groups []int32
		err := c.BatchWrite(ctx, []*spanner.MutationGroup{
			{Mutations: []*spanner.Mutation{insert(key("written"), 1), insert(key("with it"), 1)}},
			{Mutations: []*spanner.Mutation{insert(key("not written"), 1), insert(key("once"), 1)}},
			{Mutations: []*spanner.Mutation{insert(key("also written"), 1)}},
		}).Do(func(res *spannerpb.BatchWriteResponse) error {
			groups = append(groups, res.Status.Code)
			return nil
		})
		if want := []int32{0, int32(codes.AlreadyExists), 0}; err != nil || !slices.Equal(groups, want) {
			t.Errorf("batch write: %v, %v; want %v", groups, err, want)
		}
		res, err := c.ReadWriteTransactionWithOptions(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
			counts, err := tx.BatchUpdate(ctx, []spanner.Statement{
				{SQL: "UPDATE T SET N = 8 WHERE K = @k", Params: map[string]any{"k": key("once")}},
				{SQL: "DELETE FROM T WHERE K = @k", Params: map[string]any{"k": key("applied")}},
			})
			if err != nil || !slices.Equal(counts, []int64{1, 1}) {
				return fmt.Errorf("batch update: %v, %w", counts, err)
			}
			it := tx.Query(ctx, spanner.Statement{SQL: "UPDATE T SET N = N + 1 WHERE K = @k THEN RETURN N", Params: map[string]any{"k": key("once")}})
			defer it.Stop()
			row, err := it.Next()
			if err != nil {
				return err
			}
			var n int64
			if err := row.Column(0, &n); err != nil || n != 9 {
				return fmt.Errorf("returned %d, %w; want 9", n, err)
			}
			return nil
		}, spanner.TransactionOptions{TransactionTag: "tag"})
		if err != nil || res.CommitTs.IsZero() {
			t.Errorf("transaction: %+v, %v", res, err)
		}
		o.has(c, key("once"), 9)
		o.has(c, key("also written"), 1)
		for _, k := range []string{"applied", "not written"} {
			if _, err := number(ctx, c.Single(), key(k)); spanner.ErrCode(err) != codes.NotFound {
				t.Errorf("%s: %v, want NOT_FOUND", key(k), err)
			}
		}
	}
}

// Schema changes wait for transactions and for each other, and transactions don't fail
// for them.
func TestSchemaChangesBesideTransactions(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, nil))
	c := o.client()
	o.put(c, map[string]int64{"row": 0})
	ctx := soonOn(t)
	conn := dialRaw(t, o.Server)
	var wg sync.WaitGroup
	const each = 5
	for w := range 3 {
		wg.Go(func() {
			for i := range each {
				op, err := databasepb.NewDatabaseAdminClient(conn).UpdateDatabaseDdl(ctx, &databasepb.UpdateDatabaseDdlRequest{
					Database: o.db.String(), Statements: []string{fmt.Sprintf("CREATE TABLE U%d%d (K INT64) PRIMARY KEY (K)", w, i)},
				})
				if err := awaitOperation(ctx, conn, op, err); err != nil {
					t.Errorf("change %d of %d: %v", i, w, err)
				}
				if err := add(ctx, c, "row", 1); err != nil {
					t.Errorf("transaction %d of %d: %v", i, w, err)
				}
			}
		})
	}
	wg.Wait()
	o.has(c, "row", 3*each)
}
