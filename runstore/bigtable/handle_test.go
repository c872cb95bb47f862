package bigtable_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	client "cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators"
	bigtableemulator "github.com/tapestore/tapestore/emulators/bigtable"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/bigtable"
	"github.com/tapestore/tapestore/runstore/serving"
)

// newTable names a table of the test's own.
func newTable(t testing.TB) bigtableemulator.TableName {
	t.Helper()
	s := server(t)
	table := s.NewTable()
	t.Cleanup(func() {
		if err := s.Drop(context.WithoutCancel(t.Context()), table); err != nil {
			t.Error(err)
		}
	})
	return table
}

// tryOpen opens a handle on a table, adjusted by change. It does not log, its operations wait
// for as long as a slow machine takes, and their RPCs carry [serving.Header].
func tryOpen(t testing.TB, table bigtableemulator.TableName, change ...func(*bigtable.Options)) (*bigtable.Store, error) {
	t.Helper()
	opts := &bigtable.Options{
		Project: table.Project, Instance: table.Instance, Table: table.Table, Emulator: server(t).Address(),
		Logger: slog.New(slog.DiscardHandler), DialOptions: serving.DialOptions(), RetryTimeout: hang,
	}
	bigtable.Bound(opts, hang)
	for _, f := range change {
		f(opts)
	}
	s, err := bigtable.Open(t.Context(), opts)
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

func open(t testing.TB, table bigtableemulator.TableName, change ...func(*bigtable.Options)) *bigtable.Store {
	t.Helper()
	s, err := tryOpen(t, table, change...)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

// openBare opens a handle that does nothing in the background: what it leaves undone
// is what a process leaves that dies.
func openBare(t testing.TB, table bigtableemulator.TableName, change ...func(*bigtable.Options)) *bigtable.Store {
	t.Helper()
	var stopped atomic.Bool
	refused := func(ctx context.Context) error {
		md, _ := metadata.FromOutgoingContext(ctx)
		if stopped.Load() && serving.Operation(ctx) == "" && len(md.Get(bigtable.ByTest)) == 0 {
			return status.Error(codes.PermissionDenied, "nothing is done in the background")
		}
		return nil
	}
	s := open(t, table, append(change, func(o *bigtable.Options) {
		o.DialOptions = append(o.DialOptions,
			grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if err := refused(ctx); err != nil {
					return err
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}),
			grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				if err := refused(ctx); err != nil {
					return nil, err
				}
				return begin(ctx, desc, cc, method, opts...)
			}))
	})...)
	stopped.Store(true)
	bigtable.StopWorkers(s)
	return s
}

// rawOptions are those of clients that are not the adapter's.
func rawOptions(t testing.TB) []option.ClientOption {
	return []option.ClientOption{
		option.WithEndpoint("passthrough:///" + server(t).Address()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

// raw reads and writes a table beside the adapter.
func raw(t testing.TB, table bigtableemulator.TableName) *client.Table {
	t.Helper()
	return callersClient(t, table).Open(table.Table)
}

// keys returns the keys of a table's rows that begin with prefix.
func keys(t testing.TB, tbl *client.Table, prefix string) (found []string) {
	t.Helper()
	err := tbl.ReadRows(t.Context(), client.PrefixRange(prefix), func(r client.Row) bool {
		found = append(found, r.Key())
		return true
	}, client.RowFilter(client.StripValueFilter()))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// hang ends the wait of a test that would otherwise hang. It says nothing about speed.
const hang = 5 * time.Minute

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

// met waits until a fault was done to n RPCs.
func met(t testing.TB, f emulators.Fault, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	if err := f.Await(ctx, n); err != nil {
		t.Fatalf("an RPC that the test waits for: %v", err)
	}
}

// isServed reports whether an RPC serves an operation of a caller.
func isServed(c bigtableemulator.Call) bool { return len(c.Metadata.Get(serving.Header)) > 0 }

// served matches the RPCs of a method that serve operations on a table.
func served(table bigtableemulator.TableName, method string) func(bigtableemulator.Call) bool {
	return func(c bigtableemulator.Call) bool {
		return c.Table == table.String() && c.Method == method && isServed(c)
	}
}

// hold creates a run and takes its lease.
func hold(t testing.TB, s *bigtable.Store, id runstore.RunID) runstore.Lease {
	t.Helper()
	created, err := s.CreateRun(t.Context(), runstore.RunSpec{
		ID: id, Lease: &runstore.LeaseSpec{Owner: "holder", TTL: runstore.MaxTTL, Grant: "grant-" + runstore.GrantID(id)},
	})
	if err != nil {
		t.Fatalf("create %s: %v", id, err)
	}
	return created.Lease
}

// holdAnew creates a run again that was purged, whose grant id cannot come back.
func holdAnew(t testing.TB, s *bigtable.Store, id runstore.RunID) runstore.Lease {
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
func takeOver(t testing.TB, s *bigtable.Store, id runstore.RunID) runstore.Lease {
	t.Helper()
	granted, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
		Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "thief", TTL: runstore.MaxTTL}, Preempt: "test",
	})
	if err != nil {
		t.Fatalf("preempt %s: %v", id, err)
	}
	return granted.Lease
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

func commit(t testing.TB, s *bigtable.Store, b runstore.Batch) runstore.Committed {
	t.Helper()
	done, err := s.Commit(t.Context(), b)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	return done
}

// feed waits until n events are in the feed behind a position.
func feed(t testing.TB, s *bigtable.Store, after runstore.Position, n int) (events []runstore.FeedEvent) {
	t.Helper()
	await(t, "the feed", func() bool {
		var err error
		if events, err = s.ReadFeed(t.Context(), runstore.FeedQuery{After: after, Limit: runstore.MaxPage}); err != nil {
			t.Fatalf("feed: %v", err)
		}
		return len(events) >= n
	})
	return events
}

// seal brings a run's events into the feed, and those that are many enough into
// segments.
func seal(t testing.TB, s *bigtable.Store, id runstore.RunID) {
	t.Helper()
	if err := bigtable.Publish(t.Context(), s, id); err != nil {
		t.Fatalf("sequence %s: %v", id, err)
	}
	if err := bigtable.Seal(t.Context(), s, id); err != nil {
		t.Fatalf("seal %s: %v", id, err)
	}
}
