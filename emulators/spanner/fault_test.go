package spanner

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/spanner"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

// calls matches a method's calls in a database.
func (o testDatabase) calls(methods ...string) func(Call) bool {
	return func(c Call) bool {
		for _, method := range methods {
			if c.Method == method && c.Database == o.db.String() {
				return true
			}
		}
		return false
	}
}

// withAndWithoutShim runs a test with the session shim, and without. The emulator does the
// latter well enough as long as one transaction is used at a time.
func withAndWithoutShim(t *testing.T, opts *Options, test func(t *testing.T, o testDatabase)) {
	t.Helper()
	for _, shimmed := range []bool{true, false} {
		t.Run(fmt.Sprintf("shimmed %v", shimmed), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, opts)
			if !shimmed {
				s.withoutShim()
			}
			if s.Shimmed() != shimmed {
				t.Skipf("not applicable: %s needs no shim", s.Engine())
			}
			test(t, newTestDatabase(t, s))
		})
	}
}

// withoutShim is what follows from a probe that finds all well.
func (s *Server) withoutShim() {
	s.proxy.use(newBackend(s.proxy.backend.Load().conn, false, s.opts.Idle))
}

func TestCalls(t *testing.T) {
	t.Parallel()
	withAndWithoutShim(t, nil, func(t *testing.T, o testDatabase) {
		c := o.raw()
		var kinds []string
		watch := o.Watch(func(c Call) bool {
			if c.Database != o.db.String() {
				t.Errorf("%s is on %q, want %s", c.Method, c.Database, o.db)
			}
			kinds = append(kinds, fmt.Sprintf("%s %T %v", c.Method, c.Request, c.ReadWrite))
			return true
		})
		res, err := c.sql(t.Context(), andBegin(), 1, "SELECT 1")
		c.is("begin", err, codes.OK)
		id := res.GetMetadata().GetTransaction().GetId()
		_, err = c.sql(t.Context(), withID(id), 2, "SELECT 1")
		c.is("go on", err, codes.OK)
		_, err = c.commit(t.Context(), id)
		c.is("commit", err, codes.OK)
		_, err = c.sql(t.Context(), nil, 0, "SELECT 1")
		c.is("outside", err, codes.OK)
		c.is("rollback", c.rollback(c.begin()), codes.OK)
		want := []string{
			"ExecuteSql *spannerpb.ExecuteSqlRequest true", "ExecuteSql *spannerpb.ExecuteSqlRequest true",
			"Commit *spannerpb.CommitRequest true", "ExecuteSql *spannerpb.ExecuteSqlRequest false",
			"BeginTransaction *spannerpb.BeginTransactionRequest true", "Rollback *spannerpb.RollbackRequest true",
		}
		if fmt.Sprint(kinds) != fmt.Sprint(want) || watch.Count() != len(want) {
			t.Errorf("saw %v, want %v", kinds, want)
		}
		if n := o.Calls(); n["ExecuteSql"] != 3 || n["Commit"] != 1 || n["UpdateDatabaseDdl"] != 1 || n["CreateDatabase"] != 0 {
			t.Errorf("counted %v", n)
		}
	})
}

func TestAbort(t *testing.T) {
	t.Parallel()
	// With 0 nobody would get in if the aborted transaction were still there.
	withAndWithoutShim(t, &Options{AbortProbability: percent(0)}, func(t *testing.T, o testDatabase) {
		c := o.client()
		o.put(c, map[string]int64{"row": 0})
		abort := o.Abort(2, o.calls("Commit"))
		runs := 0
		ctx, cancel := context.WithTimeout(t.Context(), hosttest.Hang)
		defer cancel()
		_, err := c.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
			runs++
			if abort.Count() > 0 {
				// The transaction that was aborted is in nobody's way.
				if err := add(context.WithoutCancel(t.Context()), c, "row", 10); err != nil {
					return err
				}
			}
			n, err := number(ctx, tx, "row")
			if err != nil {
				return err
			}
			return tx.BufferWrite([]*spanner.Mutation{spanner.Update("T", []string{"K", "N"}, []any{"row", n + 1})})
		})
		if err != nil || runs != 2 || abort.Count() != 2 {
			t.Errorf("%v after %d runs and %d faults", err, runs, abort.Count())
		}
		o.has(c, "row", 11)
	})
}

// What has been committed is not aborted, whoever asks again.
func TestAbortOfARepeatedCommit(t *testing.T) {
	t.Parallel()
	withAndWithoutShim(t, nil, func(t *testing.T, o testDatabase) {
		c := o.raw()
		id := c.begin()
		_, err := c.commit(t.Context(), id, insertInto("a", "1"))
		c.is("commit", err, codes.OK)
		abort := o.Abort(0, nil)
		_, err = c.commit(t.Context(), id, insertInto("a", "1"))
		c.is("again", err, codes.OK)
		_, err = c.BeginTransaction(t.Context(), &spannerpb.BeginTransactionRequest{Session: c.session, Options: readWrite()})
		c.is("begin", err, codes.Aborted)
		_, err = c.sql(t.Context(), andBegin(), 1, "SELECT 1")
		c.is("begin with a query", err, codes.Aborted)
		_, err = c.sql(t.Context(), nil, 0, "SELECT 1")
		c.is("outside", err, codes.OK)
		abort.Stop()
		c.rows(1)
	})
}

func TestAbortAtRandom(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, nil))
	c := o.raw()
	pattern := func(seed uint64) (codes []bool) {
		f := o.AbortAtRandom(0.5, seed, o.calls("BeginTransaction"))
		defer f.Stop()
		for range 20 {
			tx, err := c.BeginTransaction(t.Context(), &spannerpb.BeginTransactionRequest{Session: c.session, Options: readWrite()})
			if err == nil {
				c.is("rollback", c.rollback(tx.Id), 0)
			}
			codes = append(codes, err == nil)
		}
		return codes
	}
	first, again, other := fmt.Sprint(pattern(1)), fmt.Sprint(pattern(1)), fmt.Sprint(pattern(2))
	if first != again || first == other {
		t.Errorf("one seed gives %s and %s, another one %s", first, again, other)
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	withAndWithoutShim(t, nil, func(t *testing.T, o testDatabase) {
		c := o.raw()
		o.Refuse(1, codes.ResourceExhausted, o.calls("Commit"))
		id := c.begin()
		_, err := c.commit(t.Context(), id, insertInto("a", "1"))
		c.is("refused", err, codes.ResourceExhausted)
		c.rows(0)
		_, err = c.commit(t.Context(), id, insertInto("a", "1"))
		c.is("again", err, codes.OK)
		marked := metadata.AppendToOutgoingContext(t.Context(), "op", "mine")
		refuse := o.Refuse(0, codes.PermissionDenied, func(c Call) bool { return len(c.Metadata.Get("op")) > 0 })
		_, err = c.sql(marked, nil, 0, "SELECT 1")
		c.is("marked", err, codes.PermissionDenied)
		refuse.Stop()
		_, err = c.sql(marked, nil, 0, "SELECT 1")
		c.is("marked, after that", err, codes.OK)
	})
}

// A Commit is on its way when its sender gives it up. It arrives when the test says so.
func TestHold(t *testing.T) {
	t.Parallel()
	withAndWithoutShim(t, &Options{AbortProbability: percent(0)}, func(t *testing.T, o testDatabase) {
		c := o.raw()
		hold := o.Hold(1, o.calls("Commit"))
		id := c.begin()
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan error, 1)
		go func() {
			_, err := c.commit(ctx, id, insertInto("late", "1"))
			given <- err
		}()
		hosttest.AwaitFault(t, hold, 1)
		cancel()
		c.is("the sender", <-given, codes.Canceled)
		c.rows(0)
		hold.Stop()
		hold.Stop()
		other := o.raw() // reads are transactions, for which the emulator may forget others of a session
		hosttest.WaitFor(t, "the late one is applied", func() bool {
			res, err := other.sql(t.Context(), nil, 0, "SELECT K FROM T")
			return err == nil && len(res.Rows) == 1
		})
	})
}

func TestDelay(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, nil))
	c := o.raw()
	const delay = 100 * time.Millisecond
	o.Delay(delay, o.calls("Commit"))
	id := c.begin()
	ctx, cancel := context.WithTimeout(t.Context(), delay/10)
	defer cancel()
	_, err := c.commit(ctx, id, insertInto("late", "1"))
	c.is("the sender", err, codes.DeadlineExceeded)
	began := time.Now()
	_, err = c.commit(t.Context(), id, insertInto("late", "1"))
	c.is("again", err, codes.OK)
	if took := time.Since(began); took < delay {
		t.Errorf("took %v, want %v or more", took, delay)
	}
	c.rows(1)
	never := o.Delay(time.Hour, o.calls("ExecuteSql"))
	given := make(chan error, 1)
	go func() {
		_, err := c.sql(t.Context(), nil, 0, "SELECT 1")
		given <- err
	}()
	hosttest.AwaitFault(t, never, 1)
	never.Stop()
	c.is("who was delayed for an hour", <-given, codes.OK)
}

// The official client repeats a Commit whose answer was lost, and the transaction is
// committed once.
func TestDropReplies(t *testing.T) {
	t.Parallel()
	withAndWithoutShim(t, nil, func(t *testing.T, o testDatabase) {
		c := o.client()
		o.put(c, map[string]int64{"row": 0})
		drop := o.DropReplies(2, o.calls("Commit"))
		before := o.Calls()["Commit"]
		if err := add(t.Context(), c, "row", 1); err != nil {
			t.Error(err)
		}
		if n := o.Calls()["Commit"] - before; n != 3 || drop.Count() != 2 {
			t.Errorf("%d commits were sent, and %d answers dropped; want 3 and 2", n, drop.Count())
		}
		o.has(c, "row", 1)
	})
}

// A transaction of which only the emulator knows is in nobody's way.
func TestDropsTheBegin(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, &Options{AbortProbability: percent(0)}))
	c := o.raw()
	o.DropReplies(3, o.calls("BeginTransaction", "ExecuteSql", "ExecuteStreamingSql"))
	_, err := c.BeginTransaction(t.Context(), &spannerpb.BeginTransactionRequest{Session: c.session, Options: readWrite()})
	c.is("begin", err, codes.Unavailable)
	_, err = c.sql(t.Context(), andBegin(), 1, "INSERT INTO T (K, N) VALUES ('a', 1)")
	c.is("begin with DML", err, codes.Unavailable)
	stream, err := c.ExecuteStreamingSql(t.Context(), &spannerpb.ExecuteSqlRequest{Session: c.session, Transaction: andBegin(), Sql: "SELECT * FROM T"})
	c.is("begin with a query", err, codes.OK)
	_, err = stream.Recv()
	c.is("begin with a query", err, codes.Unavailable)
	res, err := c.sql(t.Context(), andBegin(), 1, "INSERT INTO T (K, N) VALUES ('a', 1)")
	c.is("another", err, codes.OK)
	_, err = c.commit(t.Context(), res.GetMetadata().GetTransaction().GetId())
	c.is("its commit", err, codes.OK)
	c.rows(1)
}

func TestSwallowReplies(t *testing.T) {
	t.Parallel()
	withAndWithoutShim(t, nil, func(t *testing.T, o testDatabase) {
		c := o.raw()
		swallow := o.SwallowReplies(2, o.calls("Commit"))
		id := c.begin()
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan error, 1)
		ask := func(ctx context.Context) {
			_, err := c.commit(ctx, id, insertInto("a", "1"))
			given <- err
		}
		go ask(ctx)
		other := o.raw()
		hosttest.WaitFor(t, "it is carried out", func() bool {
			res, err := other.sql(t.Context(), nil, 0, "SELECT K FROM T")
			return err == nil && len(res.Rows) == 1
		})
		cancel()
		c.is("who gave up", <-given, codes.Canceled)
		go ask(t.Context())
		hosttest.AwaitFault(t, swallow, 2)
		swallow.Stop()
		c.is("who waited", <-given, codes.Unavailable)
		_, err := c.commit(t.Context(), id, insertInto("a", "1"))
		c.is("who asks again", err, codes.OK)
	})
}

// Whoever reads a stream that breaks has each row once in the end.
func TestBreakStreams(t *testing.T) {
	t.Parallel()
	withAndWithoutShim(t, nil, func(t *testing.T, o testDatabase) {
		c := o.client()
		numbers := map[string]int64{}
		var want int64
		for i := range int64(500) {
			numbers[fmt.Sprintf("%03d", i)] = i
			want += i
		}
		o.put(c, numbers)
		for after := range 3 {
			broken := o.BreakStreams(2, after, o.calls("StreamingRead", "ExecuteStreamingSql"))
			rows, sum := 0, int64(0)
			count := func(r *spanner.Row) error {
				var n int64
				rows, sum = rows+1, sum+n
				err := r.Column(1, &n)
				sum += n
				return err
			}
			ctx, cancel := context.WithTimeout(t.Context(), hosttest.Hang)
			defer cancel()
			if err := c.Single().Read(ctx, "T", spanner.AllKeys(), []string{"K", "N"}).Do(count); err != nil || rows != 500 || sum != want {
				t.Errorf("broken after %d messages: %d rows with %d, %v; want 500 with %d", after, rows, sum, err, want)
			}
			if broken.Count() != 2 {
				t.Errorf("broken %d times, want 2", broken.Count())
			}
			if !o.Shimmed() {
				continue // the emulator by itself does not repeat the rows that DML returned
			}
			// In a transaction: DML that returns rows is done once.
			again := o.BreakStreams(2, after, o.calls("ExecuteStreamingSql"))
			_, err := c.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
				if _, err := number(ctx, tx, "000"); err != nil { // begins it
					return err
				}
				rows, sum = 0, 0
				return tx.Query(ctx, spanner.NewStatement("UPDATE T SET N = N + 1 WHERE true THEN RETURN K, N")).Do(count)
			})
			want += 500
			if err != nil || sum != want || rows != 500 || again.Count() != 2 {
				t.Errorf("DML broken %d times after %d messages: %d rows with %d, %v; want 500 with %d", again.Count(), after, rows, sum, err, want)
			}
		}
	})
}

// Whoever is held when the emulator ends hears of it.
func TestEndsWithHeldCalls(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, nil))
	c := o.raw()
	id := c.begin()
	hold := o.Hold(0, o.calls("Commit"))
	swallow := o.SwallowReplies(0, o.calls("ExecuteSql"))
	given := make(chan error, 2)
	go func() {
		_, err := c.commit(t.Context(), id)
		given <- err
	}()
	go func() {
		_, err := c.sql(t.Context(), nil, 0, "SELECT 1")
		given <- err
	}()
	hosttest.AwaitFault(t, hold, 1)
	hosttest.AwaitFault(t, swallow, 1)
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		select {
		case err := <-given:
			c.is("who was held", err, codes.Unavailable)
		case <-time.After(hosttest.Hang):
			t.Fatal("a call has no end")
		}
	}
	if f := o.Hold(1, nil); f.Count() != 0 {
		t.Error("a fault of a closed server was met")
	}
}

// With 100, whoever comes last wins: a takeover gets in while the holder stalls, and the
// holder is told so.
func TestTakeoverDuringAStall(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, &Options{AbortProbability: percent(100)}))
	holder, other := o.client(), o.client()
	o.put(holder, map[string]int64{"token": 1, "seen": 0})
	stalls, resume := make(chan struct{}), make(chan struct{})
	var runs atomic.Int64
	done := make(chan error, 1)
	go func() {
		_, err := holder.ReadWriteTransaction(t.Context(), func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
			n, err := number(ctx, tx, "token")
			if err != nil {
				return err
			}
			if runs.Add(1) == 1 {
				close(stalls)
				<-resume
			}
			return tx.BufferWrite([]*spanner.Mutation{spanner.Update("T", []string{"K", "N"}, []any{"seen", n})})
		})
		done <- err
	}()
	<-stalls
	if err := add(soonOn(t), other, "token", 1); err != nil {
		t.Error(err)
	}
	close(resume)
	if err := <-done; err != nil || runs.Load() < 2 {
		t.Errorf("the holder: %v after %d runs, want it to run again", err, runs.Load())
	}
	o.has(other, "seen", 2)
}
