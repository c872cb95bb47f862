package spanner_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	client "cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	spanneremulator "github.com/tapestore/tapestore/emulators/spanner"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/spanner"
)

func noCreate(o *spanner.Options) { o.NoCreate = true }

// What is missing is made: on an emulator the instance too.
func TestOpenCreates(t *testing.T) {
	t.Parallel()
	s := server(t, fair)
	for _, missing := range []spanneremulator.DatabaseName{
		{Project: "new", Instance: "new-instance", Database: "first"}, {Project: "new", Instance: "new-instance", Database: "second"},
	} {
		p := testDatabase{missing, s}
		if _, err := tryOpen(t, p, noCreate); err == nil ||
			!strings.Contains(err.Error(), "gcloud spanner databases create "+p.Database+" --instance="+p.Instance+" --project="+p.Project) {
			t.Errorf("got %v, want the command that makes the database", err)
		}
		store := open(t, p)
		hold(t, store, "run")
		if err := store.Close(); err != nil {
			t.Error(err)
		}
		hold(t, open(t, p, noCreate), "second run")
		if err := s.Drop(t.Context(), p.DatabaseName); err != nil {
			t.Error(err)
		}
	}
}

// A database that is not as this program needs it is refused, and left as it is.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	if _, err := tryOpen(t, p, noCreate); !errors.Is(err, runstore.ErrUnsupported) || !strings.Contains(err.Error(), "version 0 of") {
		t.Errorf("an empty database with create=no: got %v, want ErrUnsupported", err)
	}
	open(t, p)
	if _, err := raw(t, p).Apply(t.Context(), []*client.Mutation{
		client.Insert("TapestoreSchema", []string{"Version", "Migrated"}, []any{99, client.CommitTimestamp}),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := tryOpen(t, p); !errors.Is(err, runstore.ErrUnsupported) || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("a newer schema: got %v, want ErrUnsupported", err)
	}

	others := newDatabase(t, fair)
	alter(t, others, "CREATE TABLE Orders (Id INT64) PRIMARY KEY (Id)")
	if _, err := tryOpen(t, others); !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), "Orders") {
		t.Errorf("a database of somebody's: got %v, want ErrInvalid that names a table", err)
	}
}

// alter changes the schema of a database beside the adapter.
func alter(t *testing.T, p testDatabase, statements ...string) {
	t.Helper()
	admin, err := database.NewDatabaseAdminClient(t.Context(), p.server.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close() }()
	changed, err := admin.UpdateDatabaseDdl(t.Context(), &databasepb.UpdateDatabaseDdlRequest{Database: p.String(), Statements: statements})
	if err == nil {
		err = changed.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// together opens handles at once.
func together(t *testing.T, p testDatabase, n int) {
	t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if _, err := tryOpen(t, p); err != nil {
				t.Errorf("open: %v", err)
			}
		})
	}
	all.Wait()
}

// Ten handles find a database empty, and each can use it.
func TestOpenTogether(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	together(t, p, 10)
	c := raw(t, p)
	if n := count(t, c, "SELECT COUNT(*) FROM GrantEpochs WHERE Epoch = 0"); n != spanner.Shards {
		t.Errorf("the epoch has %d copies", n)
	}
	if n := count(t, c, "SELECT COUNT(*) FROM TapestoreSchema"); n != int64(len(spanner.Migrations())) {
		t.Errorf("%d versions of the schema, want %d", n, len(spanner.Migrations()))
	}
	hold(t, open(t, p), "run")
}

// restore makes a database one that was restored from elsewhere.
func restore(t *testing.T, p testDatabase) {
	t.Helper()
	if _, err := raw(t, p).Apply(t.Context(), []*client.Mutation{
		client.Update("Store", []string{"One", "Incarnation"}, []any{1, "projects/p/instances/i/databases/before"}),
	}); err != nil {
		t.Fatal(err)
	}
}

// epochs are those of a store.
func epochs(t *testing.T, s *spanner.Store) []runstore.EpochChange {
	t.Helper()
	all, err := s.Epochs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A store that was restored into another database begins one new epoch, however many
// handles find out, and every lease is over.
func TestRestoredStore(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p)
	lease := hold(t, s, "run")
	restore(t, p)
	together(t, p, 5)
	if all := epochs(t, s); len(all) != 1 || all[0].Epoch != 1 || !strings.Contains(all[0].Reason, "databases/before") {
		t.Errorf("got the epochs %+v, want one that tells where the store was", all)
	}
	if _, err := s.Commit(t.Context(), appending(lease, "zombie")); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a commit of before: got %v, want ErrFenced", err)
	}
	if n := count(t, raw(t, p), "SELECT COUNT(*) FROM GrantEpochs WHERE Epoch = 1"); n != 8 {
		t.Errorf("%d shards know the epoch", n)
	}
	open(t, p)
	if all := epochs(t, s); len(all) != 1 {
		t.Errorf("raised again: %+v", all)
	}
	if next := takeOver(t, s, "run"); next.Token != runstore.Epoch(1).Floor()+1 {
		t.Errorf("the next token is %v", next.Token)
	}
}

// TestRestoredFromALongName checks that a database whose former name is longer than a reason may be is
// opened, and its epoch raised.
func TestRestoredFromALongName(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	open(t, p)
	if _, err := raw(t, p).Apply(t.Context(), []*client.Mutation{
		client.Update("Store", []string{"One", "Incarnation"}, []any{1, "projects/" + strings.Repeat("p", 300)}),
	}); err != nil {
		t.Fatal(err)
	}
	if all := epochs(t, open(t, p)); len(all) != 1 || len(all[0].Reason) != runstore.MaxOwner {
		t.Errorf("got the epochs %+v, want one with a reason of %d bytes", all, runstore.MaxOwner)
	}
}

// created has the Admin API answer for the database's creation time; nil refuses the answer.
func created(at *timestamppb.Timestamp) func(o *spanner.Options) {
	return func(o *spanner.Options) {
		o.DialOptions = append(o.DialOptions, grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				found, ok := reply.(*databasepb.Database)
				if ok && at == nil {
					return status.Error(codes.PermissionDenied, "spanner.databases.get")
				}
				err := invoke(ctx, method, req, reply, cc, opts...)
				if ok {
					found.CreateTime = at
				}
				return err
			}))
	}
}

// A database that was deleted and restored under its own name begins a new epoch, once. An
// account that may not read the creation time does not notice, and is told so.
func TestRestoredUnderTheSameName(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	at := func(sec int64) func(*spanner.Options) { return created(&timestamppb.Timestamp{Seconds: sec}) }
	s := open(t, p, at(1))
	lease := hold(t, s, "run")
	var log strings.Builder
	open(t, p, created(nil), func(o *spanner.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	if !strings.Contains(log.String(), "spanner.databases.get") {
		t.Errorf("an account that may not look: the log says %q", log.String())
	}
	open(t, p, at(1))
	if all := epochs(t, s); len(all) != 0 {
		t.Errorf("the same database: got the epochs %+v, want none", all)
	}
	for range 2 {
		open(t, p, at(2))
	}
	if all := epochs(t, s); len(all) != 1 || !strings.Contains(all[0].Reason, "restored") {
		t.Errorf("another database of the name: got the epochs %+v, want one", all)
	}
	if _, err := s.Commit(t.Context(), appending(lease, "zombie")); !errors.Is(err, runstore.ErrFenced) {
		t.Errorf("a commit of before: got %v, want ErrFenced", err)
	}
	// A store of before has no creation time: it takes over the first that it hears of.
	if _, err := raw(t, p).Apply(t.Context(), []*client.Mutation{client.Update("Store", []string{"One", "Incarnation"}, []any{1, p.String()})}); err != nil {
		t.Fatal(err)
	}
	open(t, p, at(3))
	if all := epochs(t, s); len(all) != 1 {
		t.Errorf("a store without a creation time: got the epochs %+v, want one", all)
	}
	open(t, p, at(4))
	if all := epochs(t, s); len(all) != 2 {
		t.Errorf("another database again: got the epochs %+v, want two", all)
	}
}

// TestRaiseWithoutPermissionKeepsTheCreationTime checks that an account that may not read the
// creation time leaves it in the store when it raises the epoch: a later restore under the same name
// is still noticed.
func TestRaiseWithoutPermissionKeepsTheCreationTime(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p, created(&timestamppb.Timestamp{Seconds: 1}))
	if epoch, err := open(t, p, created(nil)).RaiseEpoch(t.Context(), "by hand"); err != nil || epoch != 1 {
		t.Fatalf("got epoch %d, error %v, want epoch 1", epoch, err)
	}
	open(t, p, created(&timestamppb.Timestamp{Seconds: 2}))
	if all := epochs(t, s); len(all) != 2 || !strings.Contains(all[1].Reason, "restored") {
		t.Errorf("after the restore: got the epochs %+v, want a second one that the restore began", all)
	}
	restore(t, p)
	open(t, p, created(nil))
	open(t, p, created(&timestamppb.Timestamp{Seconds: 3}))
	if all := epochs(t, s); len(all) != 3 {
		t.Errorf("restored from elsewhere and opened by the account: got the epochs %+v, want one more", all)
	}
}

// A handle that ended between a new epoch and the end of former grants leaves that to
// the next one.
func TestRaiseIsFinished(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, fair)
	s := open(t, p)
	hold(t, s, "run")
	restore(t, p)
	cut := p.server.Refuse(0, codes.PermissionDenied, func(c spanneremulator.Call) bool {
		begin, ok := c.Request.(*spannerpb.BeginTransactionRequest)
		return ok && c.Database == p.String() && begin.GetOptions().GetPartitionedDml() != nil
	})
	defer cut.Stop()
	if _, err := tryOpen(t, p); err == nil || cut.Count() == 0 {
		t.Fatalf("got %v, want that former grants cannot be ended", err)
	}
	if run, err := s.GetRun(t.Context(), "run"); err != nil || run.Holder.Token == 0 || len(epochs(t, s)) != 1 {
		t.Fatalf("got %+v, %v, %v", run, err, epochs(t, s))
	}
	cut.Stop()
	open(t, p)
	if run, err := s.GetRun(t.Context(), "run"); err != nil || run.Holder.Token != 0 || len(epochs(t, s)) != 1 {
		t.Errorf("got %+v, %v, %v, want a free lease and one epoch", run, err, epochs(t, s))
	}
	if n := count(t, raw(t, p), "SELECT COUNT(*) FROM Store WHERE Ended"); n != 1 {
		t.Error("the store does not know that former grants are ended")
	}
}
