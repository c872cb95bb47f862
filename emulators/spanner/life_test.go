package spanner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"cloud.google.com/go/spanner/admin/instance/apiv1/instancepb"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/host"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// An instance of the emulator has room for a hundred databases.
func TestManyDatabases(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	const workers, each = 4, 30
	var mu sync.Mutex
	seen := map[DatabaseName]bool{}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				d, err := s.NewDatabase(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				seen[d] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != workers*each {
		t.Errorf("%d different databases, want %d", len(seen), workers*each)
	}
	admin := databasepb.NewDatabaseAdminClient(dialRaw(t, s))
	for d := range seen {
		for range 2 { // that it is gone is no error
			if err := s.Drop(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := admin.GetDatabase(t.Context(), &databasepb.GetDatabaseRequest{Name: d.String()}); status.Code(err) != codes.NotFound {
			t.Fatalf("%s after Drop: %v", d, err)
		}
	}
	if n := s.databases.inUse(); n != 0 {
		t.Errorf("%d databases are in use", n)
	}
}

// A database that is dropped and made again is another one, also for the proxy's
// sessions.
func TestDatabaseMadeAgain(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, nil))
	conn := dialRaw(t, o.Server)
	for range 3 {
		c := o.raw()
		_, err := c.commit(t.Context(), c.begin(), insertInto("a", "1"))
		c.is("insert", err, codes.OK)
		admin := databasepb.NewDatabaseAdminClient(conn)
		if _, err := admin.DropDatabase(t.Context(), &databasepb.DropDatabaseRequest{Database: o.db.String()}); err != nil {
			t.Fatal(err)
		}
		_, err = c.commit(t.Context(), []byte(c.session+"\x001"), insertInto("a", "1"))
		c.is("in a database that is gone", err, codes.NotFound)
		if err := createDatabase(t.Context(), conn, o.db, "CREATE TABLE T (K STRING(100), N INT64) PRIMARY KEY (K)"); err != nil {
			t.Fatal(err)
		}
	}
}

// What somebody else runs keeps what is not ours.
func TestOfSomebodyElse(t *testing.T) {
	t.Parallel()
	theirs := startServer(t, nil)
	kept := newTestDatabase(t, theirs)
	m := hosttest.Machine(map[string]string{"SPANNER_EMULATOR_HOST": strings.TrimPrefix(theirs.proxy.backend.Load().conn.Target(), "passthrough:///")})
	ours, err := startOn(t.Context(), m, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ours.Engine().Tier != emulators.TierService {
		t.Errorf("the emulator is %s", ours.Engine())
	}
	o := newTestDatabase(t, ours)
	o.put(o.client(), map[string]int64{"a": 1})
	if err := ours.Restart(t.Context()); !errors.Is(err, emulators.ErrNotOwned) {
		t.Errorf("restart: %v, want ErrNotOwned", err)
	}
	if f := hosttest.Finding(t, doctor(t.Context(), m), engineName, emulators.TierService); !f.Found || !strings.Contains(f.String(), "session shim") {
		t.Errorf("the doctor finds %v", f)
	}
	for range 2 {
		if err := ours.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ours.NewDatabase(t.Context()); err == nil {
		t.Error("a closed server makes databases")
	}
	kept.put(kept.client(), map[string]int64{"a": 1})
	list, err := instancepb.NewInstanceAdminClient(dialRaw(t, theirs)).ListInstances(t.Context(), &instancepb.ListInstancesRequest{Parent: "projects/" + project})
	if err != nil || len(list.Instances) != 1 || !strings.HasSuffix(list.Instances[0].Name, kept.db.Instance) {
		t.Errorf("left are %v, %v; want the instance %s", list.GetInstances(), err, kept.db.Instance)
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	o := newTestDatabase(t, s)
	c := o.raw()
	open := c.begin()
	address := s.Address()
	for _, crash := range []bool{false, true} {
		if crash {
			if err := s.process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s.Address() != address {
		t.Errorf("restarted at %s, was at %s", s.Address(), address)
	}
	_, err := c.commit(t.Context(), open)
	c.is("a transaction of before", err, codes.NotFound)
	_, err = c.sql(t.Context(), nil, 0, "SELECT 1")
	c.is("a session of before", err, codes.NotFound)
	again := newTestDatabase(t, s)
	again.put(again.client(), map[string]int64{"a": 1})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err == nil {
		t.Error("a closed server restarts")
	}
}

// An emulator that has died is started again for whoever wants a database, if nobody
// else loses one by it.
func TestRestartsUnused(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	d, err := s.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewDatabase(t.Context()); !hosttest.Contains(err, "1 databases of it are in use") {
		t.Errorf("with a database in use: %v", err)
	}
	s.databases.mu.Lock()
	delete(s.databases.open, d) // as if it had been dropped before
	s.databases.mu.Unlock()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := s.NewDatabase(t.Context()); err != nil {
				t.Errorf("with none in use: %v", err)
			}
		})
	}
	wg.Wait()
	if n := s.databases.restarts; n != 1 {
		t.Errorf("restarted %d times, want once", n)
	}
}

// One that hangs is not waited for.
func TestRestartsWhatHangs(t *testing.T) {
	t.Parallel()
	if !host.CanFreeze {
		t.Skip("not applicable: processes cannot be stopped here")
	}
	s := startServer(t, nil)
	if s.process == nil {
		t.Skipf("not applicable: the emulator is a %s", s.Engine().Tier)
	}
	if err := s.process.Signal(host.SignalStop); err != nil {
		t.Fatal(err)
	}
	s.answerTimeout = 200 * time.Millisecond
	if err := host.Await(hosttest.Hang, func() (bool, error) { return host.IsStopped(s.process.Cmd.Process.Pid), nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewDatabase(t.Context()); err != nil && status.Code(err) != codes.DeadlineExceeded { // that is short on a busy machine
		t.Error(err)
	}
	if n := s.databases.restarts; n != 1 {
		t.Errorf("restarted %d times, want once", n)
	}
}

// A client that is killed in a transaction blocks nobody for longer than Idle.
func TestKilledClient(t *testing.T) {
	t.Parallel()
	o := newTestDatabase(t, startServer(t, &Options{AbortProbability: percent(0), Idle: 500 * time.Millisecond}))
	client := exec.CommandContext(t.Context(), os.Args[0])
	client.Env = append(os.Environ(), hosttest.OwnerVariable+"="+clientRole+o.Address()+" "+o.db.String())
	if _, err := client.StdinPipe(); err != nil { // left open: its end would be an order to go
		t.Fatal(err)
	}
	out, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 4)
	if _, err := io.ReadFull(out, said); err != nil || string(said) != "open" {
		t.Errorf("the client said %q, %v", said, err)
	}
	_ = client.Process.Kill()
	_ = client.Wait()
	c := o.client()
	o.put(c, map[string]int64{"a": 2})
	o.has(c, "a", 2)
}

// clientRole is that of leaveOpen, which its arguments follow.
const clientRole = "spanner client "

// leaveOpen is a client that begins a transaction and waits to be killed.
func leaveOpen(address, database string) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpcproxy.DialOptions()...)
	if err != nil {
		return err
	}
	ctx := context.Background()
	c := spannerpb.NewSpannerClient(conn)
	session, err := c.CreateSession(ctx, &spannerpb.CreateSessionRequest{Database: database, Session: &spannerpb.Session{Multiplexed: true}})
	if err != nil {
		return err
	}
	_, err = c.ExecuteSql(ctx, &spannerpb.ExecuteSqlRequest{Session: session.Name, Transaction: andBegin(), Seqno: 1, Sql: "INSERT INTO T (K, N) VALUES ('a', 1)"})
	if err != nil {
		return err
	}
	fmt.Println("open")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
