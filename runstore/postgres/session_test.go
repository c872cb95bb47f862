package postgres_test

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// onDB sets what every new session of the database begins with.
func onDB(t *testing.T, conn execer, setting string) {
	t.Helper()
	name := get[string](t, conn, `SELECT current_database()::text`)
	exec(t, conn, `ALTER DATABASE "`+name+`" SET `+setting)
}

// A commit over several runs has the right clock whatever way the role writes dates.
func TestOneClockWhateverTheDateStyle(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	onDB(t, conn, `"DateStyle" = 'SQL, DMY'`)
	onDB(t, conn, `"TimeZone" = 'Asia/Shanghai'`)
	s := open(t, address)
	lease := hold(t, s, "run")
	done, err := s.CommitMulti(t.Context(), []runstore.Batch{appending(lease, "x")})
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(done[0].Time); d.Abs() > time.Hour { // a time zone or a month off, not a slow machine
		t.Errorf("the commit's clock is off by %v", d)
	}
}

// A refusal is explained whatever way the role writes bytes and times.
func TestRefusalsWhateverTheOutputStyle(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{`bytea_output = 'escape'`, `"TimeZone" = 'Asia/Shanghai'`} {
		address := database(t)
		onDB(t, connect(t, address), setting)
		s := open(t, with(address, "retry_timeout=2s"))
		lease := hold(t, s, "run")
		b := runstore.NewBatch("run", lease.Fence())
		b.Runnable = runstore.At(runstore.EndOfTime)
		commit(t, s, b)
		stale := lease
		stale.Grant = "another"
		_, err := s.Commit(t.Context(), appending(stale, "zombie"))
		if !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("%s: got %v, want ErrFenced", setting, err)
		}
	}
}

// ofAnOwner returns the URL of an empty database for a role that may create the store in it and is no superuser,
// and a superuser's connection.
func ofAnOwner(t *testing.T) (address string, admin *pgx.Conn) {
	t.Helper()
	db := emptyDatabase(t)
	r := role(t, server(t).URL())
	admin = connect(t, db)
	name := get[string](t, admin, `SELECT current_database()::text`)
	exec(t, admin, `GRANT CREATE ON DATABASE "`+name+`" TO `+r)
	t.Cleanup(func() {
		c, _ := pgx.Connect(context.Background(), db)
		if c != nil {
			_, _ = c.Exec(context.Background(), `DROP OWNED BY `+r)
			_ = c.Close(context.Background())
		}
	})
	return with(db, "user="+r), admin
}

// A role that may not see which cluster this is can migrate all the same.
func TestMigratesWithoutSeeingTheCluster(t *testing.T) {
	t.Parallel()
	address, admin := ofAnOwner(t)
	exec(t, admin, `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`)
	s, err := tryOpen(t, with(address, "retry_timeout=2s"))
	if err != nil {
		t.Errorf("open by a role that may not see the incarnation: %v", err)
		return
	}
	_ = s.Close()
}

// Behind a proxy, the server may begin to hide its incarnation from the role. Then the guard of a write fails,
// and the write is sent without it.
func TestGuardThatTheServerRefuses(t *testing.T) {
	t.Parallel()
	address, admin := ofAnOwner(t)
	s := open(t, with(address, "pooled=yes"))
	defer func() { _ = s.Close() }()
	lease := hold(t, s, "run")
	exec(t, admin, `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`)
	commit(t, s, appending(lease, "x"))
	if n := get[int](t, admin, `SELECT count(*)::int FROM tapestore.events`); n != 1 {
		t.Errorf("%d events are stored, want one", n)
	}
}

// A function of the same name in a schema that everybody may write to is not called.
func TestNoForeignFunctionIsCalled(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	exec(t, conn, `CREATE FUNCTION public.cardinality(bytea[]) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 0'`)
	s := open(t, address)
	lease := hold(t, s, "run")
	b := appending(lease, "x")
	b.Put("k", nil)
	done, err := s.Commit(t.Context(), b)
	if n := get[int](t, conn, `SELECT count(*)::int FROM tapestore.events`); n != 1 {
		t.Errorf("acknowledged %+v, %v, but %d events are stored", done, err, n)
	}
}

// Behind a proxy, where no session can be set up, another isolation is refused.
func TestOtherIsolationIsRefused(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	setup := open(t, address)
	if _, err := setup.CreateRun(t.Context(), runstore.RunSpec{ID: "run"}); err != nil {
		t.Fatal(err)
	}
	onDB(t, conn, `default_transaction_isolation = 'repeatable read'`)
	_, err := tryOpen(t, with(address, "pooled=yes", "retry_timeout=2s"))
	var limit *runstore.InputError
	if !errors.As(err, &limit) || limit.Field != "default_transaction_isolation" {
		t.Errorf("got error %v, want one that names default_transaction_isolation", err)
	}
}

// Every operation of an open handle reports the setting that its new connections refuse, instead of repeating
// its attempts and reporting that the server is unavailable.
func TestWritesReturnWhatTheirConnectionRefuses(t *testing.T) {
	t.Parallel()
	address := database(t)
	conn := connect(t, address)
	var connections atomic.Int64
	s := open(t, with(address, "pooled=yes", "retry_timeout=2s", "pool_max_conns=1"), func(c *pgxpool.Config, _ *postgres.Options) {
		c.AfterConnect = func(context.Context, *pgx.Conn) error {
			connections.Add(1)
			return nil
		}
	})
	leases := []runstore.Lease{hold(t, s, "run"), hold(t, s, "other")}
	onDB(t, conn, `default_transaction_isolation = 'repeatable read'`)
	exec(t, conn, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	ctx := t.Context()
	for _, operation := range []struct {
		name string
		do   func() error
	}{
		{"read", func() error { _, err := s.GetRun(ctx, "run"); return err }}, // finds the connection broken
		{"commit", func() error { _, err := s.Commit(ctx, appending(leases[0], "x")); return err }},
		{"commit over several runs", func() error {
			_, err := s.CommitMulti(ctx, []runstore.Batch{appending(leases[0], "x"), appending(leases[1], "x")})
			return err
		}},
		{"renewal", func() error {
			_, err := s.RenewLease(ctx, runstore.RenewRequest{Fence: leases[0].Fence(), TTL: time.Minute})
			return err
		}},
		{"raise of the epoch", func() error { _, err := s.RaiseEpoch(ctx, "test"); return err }},
	} {
		before := connections.Load()
		err := operation.do()
		var limit *runstore.InputError
		if !errors.As(err, &limit) || limit.Field != "default_transaction_isolation" {
			t.Errorf("%s: got error %v, want one that names default_transaction_isolation", operation.name, err)
		}
		if n := connections.Load() - before; n != 1 {
			t.Errorf("%s: %d connections were refused, want one", operation.name, n)
		}
	}
}

// The server looks after half a minute whether a silent client's host is still there, unless the caller's
// configuration says otherwise.
func TestSessionSettings(t *testing.T) {
	t.Parallel()
	address := database(t)
	for name, tc := range map[string]struct {
		own  map[string]string
		want map[string]string
	}{
		"the store's": {nil, map[string]string{
			"tcp_keepalives_idle": "15", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3", "tcp_user_timeout": "30000",
		}},
		"the caller's": {map[string]string{"tcp_user_timeout": "60000"}, map[string]string{"tcp_keepalives_idle": "15", "tcp_user_timeout": "60000"}},
	} {
		var shown atomic.Pointer[map[string]string]
		open(t, address, func(c *pgxpool.Config, _ *postgres.Options) {
			for setting, value := range tc.own {
				c.ConnConfig.RuntimeParams[setting] = value
			}
			c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
				got := map[string]string{}
				for setting := range tc.want {
					var value string
					if err := conn.QueryRow(ctx, "SELECT current_setting($1)", pgx.QueryExecModeExec, setting).Scan(&value); err != nil {
						return err
					}
					got[setting] = value
				}
				shown.Store(&got)
				return nil
			}
		})
		if got := *shown.Load(); !maps.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}
