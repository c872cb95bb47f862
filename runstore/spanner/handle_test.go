package spanner_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	client "cloud.google.com/go/spanner"
	"google.golang.org/api/iterator"

	"github.com/tapestore/tapestore/emulators"
	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/serving"
	"github.com/tapestore/tapestore/runstore/spanner"
)

// place is a database of a test's own, and the emulator that holds it.
type testDatabase struct {
	spanneremulator.DatabaseName
	server *spanneremulator.Server
}

// newDatabase makes an empty database.
func newDatabase(t testing.TB, aborts int) testDatabase {
	t.Helper()
	s := server(t, aborts)
	d, err := s.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Drop(context.WithoutCancel(t.Context()), d); err != nil {
			t.Error(err)
		}
	})
	return testDatabase{d, s}
}

// tryOpen opens a handle, adjusted by change. It does not log, and its RPCs for operations
// carry [serving.Header].
func tryOpen(t testing.TB, p testDatabase, change ...func(*spanner.Options)) (*spanner.Store, error) {
	t.Helper()
	return tryOpenIn(t.Context(), t, p, change...)
}

// tryOpenIn is tryOpen with a context for Open.
func tryOpenIn(ctx context.Context, t testing.TB, p testDatabase, change ...func(*spanner.Options)) (*spanner.Store, error) {
	t.Helper()
	opts := &spanner.Options{
		Project: p.Project, Instance: p.Instance, Database: p.Database, Emulator: p.server.Address(), Logger: slog.New(slog.DiscardHandler),
		DialOptions: serving.DialOptions(),
	}
	for _, f := range change {
		f(opts)
	}
	s, err := spanner.Open(ctx, opts)
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

func open(t testing.TB, p testDatabase, change ...func(*spanner.Options)) *spanner.Store {
	t.Helper()
	s, err := tryOpen(t, p, change...)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

// raw reads and writes the database beside the adapter.
func raw(t testing.TB, p testDatabase) *client.Client {
	t.Helper()
	config := client.ClientConfig{DisableNativeMetrics: true}
	c, err := client.NewClientWithConfig(context.WithoutCancel(t.Context()), p.String(), config, p.server.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// count returns what a query counts.
func count(t testing.TB, c *client.Client, query string) (n int64) {
	t.Helper()
	rows := c.Single().Query(t.Context(), client.NewStatement(query))
	defer rows.Stop()
	row, err := rows.Next()
	if err == nil {
		err = row.Columns(&n)
	}
	if err != nil && err != iterator.Done {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// met waits until a fault was done to n RPCs.
func met(t testing.TB, f emulators.Fault, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	if err := f.Await(ctx, n); err != nil {
		t.Fatalf("an RPC that the test waits for: %v", err)
	}
}

// served matches the RPCs of a method that serve operations on the database; those of
// all methods, if it is empty.
func (p testDatabase) served(method string) func(spanneremulator.Call) bool {
	return func(c spanneremulator.Call) bool {
		return c.Database == p.String() && (method == "" || c.Method == method) && len(c.Metadata.Get(serving.Header)) > 0
	}
}

// hold creates a run and takes its lease.
func hold(t testing.TB, s *spanner.Store, id runstore.RunID) runstore.Lease {
	t.Helper()
	return holdAs(t, s, id, runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL})
}

func holdAs(t testing.TB, s *spanner.Store, id runstore.RunID, spec runstore.LeaseSpec) runstore.Lease {
	t.Helper()
	spec.Grant = "grant-" + runstore.GrantID(id)
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: id, Lease: &spec})
	if err != nil {
		t.Fatalf("create %s: %v", id, err)
	}
	return created.Lease
}

// holdAnew creates a run again that was purged, whose grant id cannot come back.
func holdAnew(t testing.TB, s *spanner.Store, id runstore.RunID) runstore.Lease {
	t.Helper()
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{
		ID: id, Lease: &runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL, Grant: "another-grant-" + runstore.GrantID(id)},
	})
	if err != nil {
		t.Fatalf("create %s anew: %v", id, err)
	}
	return created.Lease
}

// takeOver takes a run's live lease away.
func takeOver(t testing.TB, s *spanner.Store, id runstore.RunID) runstore.Lease {
	t.Helper()
	lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "thief", TTL: runstore.MaxTTL}, Preempt: "test",
	})
	if err != nil {
		t.Fatalf("preempt %s: %v", id, err)
	}
	return lease.Lease
}

// hang ends the wait of a test that would otherwise hang. It says nothing about speed.
const hang = 5 * time.Minute

// patient has the operations of a handle go on for as long as a slow machine may take.
func patient(o *spanner.Options) { o.RetryTimeout = hang }

// await polls until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(hang); !holds(); {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("%s: not within %v", what, hang)
		}
	}
}

// past waits until the store clock has passed a time.
func past(t testing.TB, s *spanner.Store, end time.Time) {
	t.Helper()
	await(t, "the end of a lease", func() bool {
		now, err := s.Now(t.Context())
		return err == nil && now.After(end)
	})
}

// appending is a batch of events under a lease.
func appending(l runstore.Lease, payloads ...string) runstore.Batch {
	b := runstore.NewBatch(l.Run, l.Fence())
	for _, p := range payloads {
		b.Append("test", []byte(p))
	}
	return b
}

// signal is a batch of one event that needs no lease.
func signal(id runstore.RunID, payload string) runstore.Batch {
	b := runstore.NewBatch(id, runstore.Unguarded("test"))
	b.Append("signal", []byte(payload))
	return b
}

func commit(t testing.TB, s *spanner.Store, b runstore.Batch) runstore.Committed {
	t.Helper()
	done, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	return done
}

// setSeenAhead records a last write to the run an hour from now, and returns that time.
func setSeenAhead(t testing.TB, p testDatabase, s *spanner.Store, id runstore.RunID) time.Time {
	t.Helper()
	now, err := s.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hash, _ := spanner.KeyOf(id)
	ahead := now.Add(time.Hour)
	if _, err := raw(t, p).Apply(t.Context(), []*client.Mutation{
		client.Update("Runs", []string{"RunHash", "Run", "Seen"}, []any{hash, []byte(id), ahead}),
	}); err != nil {
		t.Fatal(err)
	}
	return ahead
}
