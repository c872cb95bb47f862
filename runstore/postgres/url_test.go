package postgres_test

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

const password = "s3cret-pass"

// parse reads a URL as runstore.Open does.
func parse(address string) error {
	u, err := runstore.ParseURL(address)
	if err != nil {
		return err
	}
	_, _, err = postgres.ParseURL(u)
	return err
}

// A URL that cannot be meant is refused before anything is connected, with a
// message that names the key and never shows the password.
func TestBadURLs(t *testing.T) {
	t.Parallel()
	const good = "postgres://user:" + password + "@127.0.0.1:1/db"
	for _, tc := range []struct{ address, says string }{
		{good + "?nope=1", `unknown key "nope"; postgres knows`},
		{good + "?Schema=x", `unknown key "Schema"`},
		{good + "?search_path=x", `unknown key "search_path"`},
		{good + "?retry_timeout=1s&retry_timeout=2s", `"retry_timeout"`},
		{good + "?retry_timeout=fast", `invalid retry_timeout: "fast" is no duration such as 10s`},
		{good + "?retry_timeout=0", `invalid retry_timeout: "0" is no duration`},
		{good + "?lock_timeout=10", `invalid lock_timeout: "10" is no duration`},
		{good + "?migrate=maybe", `invalid migrate: "maybe" is neither yes nor no`},
		{good + "?pooled=1", `invalid pooled: "1" is neither yes nor no`},
		{good + "?pool_max_conns=0", "pool_max_conns"},
		{good + "?pool_max_conns=-1", "pool_max_conns"},
		{good + "?pool_max_conns=many", "pool_max_conns"},
		{good + "?pool_max_conn_lifetime=long", "pool_max_conn_lifetime"},
		{good + "?sslmode=perhaps", "sslmode"},
		{good + "?connect_timeout=soon", "connect_timeout"},
		{good + "?default_query_exec_mode=fast", "default_query_exec_mode"},
		{good + "?target_session_attrs=any-old", "target_session_attrs"},
		{"postgres://user:" + password + "@127.0.0.1:99999/db", "port"},
		{"postgres://user:" + password + "@127.0.0.1:port/db", "percent-encoded"},
		{"postgres://user:" + password + "%zz@127.0.0.1/db", "percent-encoded"},
		{"postgres://user:" + password + "/x@127.0.0.1/db", "percent-encoded"},
		{"postgres://user:" + password + "@[::1/db", "percent-encoded"},
	} {
		t.Run(tc.address, func(t *testing.T) {
			t.Parallel()
			err := parse(tc.address)
			if !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got %v, want ErrInvalid that says %q", err, tc.says)
			}
			if strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one line without the password", err)
			}
		})
	}
}

// Options out of range are refused when the store is opened, all together.
func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ params, says string }{
		{"schema=Bad-Name", `invalid schema: "Bad-Name" is no plain name`},
		{"schema=a%3Bdrop%20table%20x", "is no plain name"},
		{"schema=1st", "is no plain name"},
		{"schema=" + strings.Repeat("a", 41), "is no plain name"},
		{"retry_timeout=2h", "invalid retry_timeout: 2h0m0s is out of range"},
		{"retry_timeout=-1s", "invalid retry_timeout: -1s is out of range"},
		{"statement_timeout=1us", "invalid statement_timeout: 1µs is out of range"},
		{"lock_timeout=2h&schema=X", "is no plain name"},
		{"lock_timeout=2h&schema=X", "invalid lock_timeout"},
	} {
		t.Run(tc.params, func(t *testing.T) {
			t.Parallel()
			_, err := runstore.Open(t.Context(), "postgres://user:"+password+"@127.0.0.1:1/db?"+tc.params)
			if !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), password) {
				t.Errorf("got %v, want ErrInvalid that says %q", err, tc.says)
			}
		})
	}
}

// What a URL says reaches the driver as it was meant.
func TestGoodURL(t *testing.T) {
	t.Parallel()
	u, err := runstore.ParseURL("postgresql://us%40er:p%2Fass%20word@example.org:5433/data%20base?application_name=my%20app%2B1&" +
		"pool_max_conns=7&schema=other&migrate=no&pooled=yes&retry_timeout=5s&statement_timeout=6s&lock_timeout=7s")
	if err != nil {
		t.Fatal(err)
	}
	config, opts, err := postgres.ParseURL(u)
	if err != nil {
		t.Fatal(err)
	}
	c := config.ConnConfig
	if c.User != "us@er" || c.Password != "p/ass word" || c.Host != "example.org" || c.Port != 5433 || c.Database != "data base" ||
		c.RuntimeParams["application_name"] != "my app+1" || config.MaxConns != 7 {
		t.Errorf("got user %q, host %q:%d, database %q, settings %q, %d connections", c.User, c.Host, c.Port, c.Database, c.RuntimeParams, config.MaxConns)
	}
	want := postgres.Options{
		Schema: "other", NoMigrate: true, Pooled: true, RetryTimeout: 5 * time.Second, StatementTimeout: 6 * time.Second, LockTimeout: 7 * time.Second,
	}
	if !reflect.DeepEqual(*opts, want) {
		t.Errorf("got %+v, want %+v", *opts, want)
	}
}

// A server that cannot be used is reported as unavailable: at once if a retry will not help, and
// after the retry timeout if it may.
func TestServerThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	host := server(t).Address()
	for _, tc := range []struct {
		name, address, says string
	}{
		{"no such database", "postgres://postgres:" + password + "@" + host + "/nope", `database "nope" does not exist`},
		{"no such role", "postgres://nobody_at_all:" + password + "@" + host + "/postgres", `role "nobody_at_all" does not exist`},
		{"nobody listens", "postgres://postgres:" + password + "@" + closed.Addr().String() + "/postgres?retry_timeout=100ms", "connection refused"},
		{"a server that hangs", "postgres://postgres:" + password + "@" + silent.Addr().String() + "/postgres?retry_timeout=100ms&connect_timeout=1", "timeout"},
		{"no such host", "postgres://postgres:" + password + "@host.invalid/postgres?retry_timeout=100ms", "host.invalid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := runstore.Open(t.Context(), with(tc.address, "sslmode=disable"))
			if !errors.Is(err, runstore.ErrUnavailable) || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), password) {
				t.Errorf("got %v, want ErrUnavailable that says %q", err, tc.says)
			}
		})
	}
}

// A server that acknowledges before its disk has it could give a token out twice.
func TestAsynchronousCommit(t *testing.T) {
	t.Parallel()
	address := database(t)
	admin := connect(t, address)
	exec(t, admin, "ALTER DATABASE "+get[string](t, admin, "SELECT current_database()")+" SET synchronous_commit = off")
	_, err := tryOpen(t, with(address, "pooled=yes"))
	if !errors.Is(err, runstore.ErrInvalid) || !strings.Contains(err.Error(), "ALTER ROLE … SET synchronous_commit = on") {
		t.Errorf("through a proxy: got %v, want ErrInvalid that says what to do", err)
	}
	var acknowledges atomic.Value // of each session, also of the one that notifies in the background
	acknowledges.Store("")
	s := open(t, with(address, "pool_max_conns=1"), func(config *pgxpool.Config, _ *postgres.Options) {
		config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
			var value string
			err := conn.QueryRow(ctx, "SHOW synchronous_commit").Scan(&value)
			acknowledges.Store(value)
			return true, err
		}
	})
	if hold(t, s, "run"); acknowledges.Load() != "on" {
		t.Errorf("a handle's session has synchronous_commit = %s", acknowledges.Load())
	}
}
