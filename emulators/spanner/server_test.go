package spanner

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// startServer starts an emulator that ends with the test.
func startServer(t *testing.T, opts *Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), opts)
	emulators.Require(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// testDatabase is a test's own database, with a table T of numbers N by name K.
type testDatabase struct {
	t *testing.T
	*Server
	db DatabaseName
}

func newTestDatabase(t *testing.T, s *Server) testDatabase {
	t.Helper()
	db, err := s.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn := dialRaw(t, s)
	op, err := databasepb.NewDatabaseAdminClient(conn).UpdateDatabaseDdl(t.Context(), &databasepb.UpdateDatabaseDdlRequest{
		Database: db.String(), Statements: []string{"CREATE TABLE T (K STRING(100), N INT64) PRIMARY KEY (K)"},
	})
	if err := awaitOperation(t.Context(), conn, op, err); err != nil {
		t.Fatal(err)
	}
	return testDatabase{t, s, db}
}

// dialRaw connects without the official client.
func dialRaw(t *testing.T, s *Server) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.Address(), grpcproxy.DialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// client is the official client.
func (o testDatabase) client(change ...func(*spanner.ClientConfig)) *spanner.Client {
	o.t.Helper()
	config := spanner.ClientConfig{DisableNativeMetrics: true}
	for _, f := range change {
		f(&config)
	}
	c, err := spanner.NewClientWithConfig(o.t.Context(), o.db.String(), config,
		append(o.ClientOptions(), option.WithGRPCConnectionPool(1))...)
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(c.Close)
	return c
}

// put writes numbers.
func (o testDatabase) put(c *spanner.Client, numbers map[string]int64) {
	o.t.Helper()
	var ms []*spanner.Mutation
	for k, n := range numbers {
		ms = append(ms, spanner.InsertOrUpdate("T", []string{"K", "N"}, []any{k, n}))
	}
	if _, err := c.Apply(o.t.Context(), ms); err != nil {
		o.t.Fatal(err)
	}
}

// has compares what is stored of a name with what is wanted.
func (o testDatabase) has(c *spanner.Client, k string, want int64) {
	o.t.Helper()
	if got, err := number(o.t.Context(), c.Single(), k); err != nil || got != want {
		o.t.Errorf("%s is %d (%v), want %d", k, got, err, want)
	}
}

type rowReader interface {
	ReadRow(ctx context.Context, table string, key spanner.Key, columns []string) (*spanner.Row, error)
}

func number(ctx context.Context, r rowReader, k string) (n int64, err error) {
	row, err := r.ReadRow(ctx, "T", spanner.Key{k}, []string{"N"})
	if err != nil {
		return 0, err
	}
	return n, row.Column(0, &n)
}

// add adds to a number that is there.
func add(ctx context.Context, c *spanner.Client, k string, n int64) error {
	_, err := c.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
		old, err := number(ctx, tx, k)
		if err != nil {
			return err
		}
		return tx.BufferWrite([]*spanner.Mutation{spanner.Update("T", []string{"K", "N"}, []any{k, old + n})})
	})
	return err
}

func soonOn(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), hosttest.Hang)
	t.Cleanup(cancel)
	return ctx
}

// One client, one session, many transactions: what the emulator cannot do by itself.
func TestContention(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, nil))
	c := o.client()
	o.put(c, map[string]int64{"row": 0})
	const writers, times = 16, 6
	ctx := soonOn(t)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range times {
				own := fmt.Sprintf("%d-%d", w, i)
				_, err := c.ReadWriteTransaction(ctx, func(ctx context.Context, tx *spanner.ReadWriteTransaction) error {
					old, err := number(ctx, tx, "row")
					if err != nil {
						return err
					}
					return tx.BufferWrite([]*spanner.Mutation{
						spanner.Update("T", []string{"K", "N"}, []any{"row", old + 1}),
						spanner.Insert("T", []string{"K", "N"}, []any{own, old}),
					})
				})
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				if _, err := number(ctx, c.Single(), own); err != nil {
					t.Errorf("writer %d: what was acknowledged is not there: %v", w, err)
				}
			}
		})
	}
	wg.Wait()
	o.has(c, "row", writers*times)
	t.Logf("%v: %v", o.Engine(), o.Calls())
}

// The address that the proxy gives wins over the one that Google's clients look for.
// Not parallel: it changes the environment.
func TestClientOptions(t *testing.T) {
	s := startServer(t, nil)
	t.Setenv(serviceVariable, "127.0.0.1:1")
	o := newTestDatabase(t, s)
	c := o.client()
	o.put(c, map[string]int64{"a": 1})
	o.has(c, "a", 1)
	if n := o.Calls()["Commit"]; n != 1 {
		t.Errorf("%d commits passed the proxy, want 1", n)
	}
	admin, err := database.NewDatabaseAdminClient(t.Context(), o.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if d, err := admin.GetDatabase(t.Context(), &databasepb.GetDatabaseRequest{Name: o.db.String()}); err != nil || d.State != databasepb.Database_READY {
		t.Errorf("got %v, %v", d, err)
	}
}

func TestDifferencesNameCases(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, c := range conformance.Cases() {
		known[c.Guarantee+"/"+c.Name] = true
	}
	for _, d := range KnownGaps() {
		if d.Emulator == "" || d.Service == "" || d.Handled == "" {
			t.Errorf("not told in full: %+v", d)
		}
		for _, name := range d.Cases {
			if !known[name] {
				t.Errorf("%s: there is no case %s", d.Emulator, name)
			}
		}
	}
}
