package alloydb

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/alloydbconn"

	"github.com/tapestore/tapestore/emulators"
	"github.com/tapestore/tapestore/emulators/internal/hosttest"
)

func TestCutConnections(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	d := newDialer(t, s)
	idle := mustConnect(t, s, d, s.Instance())
	busy := mustConnect(t, s, d, s.ReadPool())

	ctx, cancel := context.WithTimeout(t.Context(), hosttest.Hang)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := busy.Exec(ctx, "SELECT pg_sleep(30)")
		ended <- err
	}()
	watch := mustConnect(t, s, d, s.Instance())
	hosttest.WaitFor(t, "the statement runs", func() bool {
		var n int
		err := watch.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state = 'active' AND query LIKE '%pg_sleep%'",
			busy.PgConn().PID()).Scan(&n)
		return err == nil && n == 1
	})

	s.CutConnections()
	if err := <-ended; err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("statement under way: %v, want the error of a connection that broke", err)
	}
	for _, c := range []interface{ Ping(context.Context) error }{idle, busy} {
		if err := c.Ping(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ping: %v, want the error of a connection that broke", err)
		}
	}
	// The driver may dial once more, to cancel the statement that it lost.
	hosttest.WaitFor(t, "no connection is open", func() bool { return s.Stats().Open == 0 })
	mustConnect(t, s, d, s.Instance())
}

// Connections that come while others are cut over and over are cut or served;
// none is lost and none stays.
func TestCutWhileConnecting(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	client := newRawClient(t, s)
	stop := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.CutConnections()
			}
		}
	})
	for range 50 {
		conn, err := s.dial(t.Context(), "tcp", instances[0].private+":"+proxyPort)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(hosttest.Hang))
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a connection outlived the cuts")
		}
		_ = conn.Close()
	}
	close(stop)
	cutter.Wait()
	client.enter(t)
}

// One direction may end before the other: the answer to what was said last still
// comes.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var server sync.WaitGroup
	server.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		said, _ := io.ReadAll(conn) // to the end
		_, _ = conn.Write([]byte(strings.ToUpper(string(said))))
	})
	s := startServer(t, Options{address: l.Addr().String()})
	client := newRawClient(t, s).enter(t)
	said := strings.Repeat("all of it ", 100<<10) // beyond what any buffer holds
	if _, err := client.Write([]byte(said)); err != nil {
		t.Fatal(err)
	}
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if heard, err := io.ReadAll(client); err != nil || string(heard) != strings.ToUpper(said) {
		t.Errorf("heard %d bytes, %v, want %d", len(heard), err, len(said))
	}
	server.Wait()
	hosttest.WaitFor(t, "the connection is gone", func() bool { return s.Stats().Open == 0 })
}

// A client that has said all and waits for an answer that does not come is cut
// like any other.
func TestCutHalfClosed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := startServer(t, Options{address: l.Addr().String()})
	client := newRawClient(t, s).enter(t)
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_ = server.SetReadDeadline(time.Now().Add(hosttest.Hang))
	if _, err := io.ReadAll(server); err != nil { // to the end of what the client says
		t.Fatal(err)
	}
	s.CutConnections()
	if n, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v, want the error of a connection that broke", n, err)
	}
}

// This test is not parallel: it looks at the goroutines of the process.
func TestCloseLeavesNothing(t *testing.T) {
	s, err := Start(t.Context(), nil) // with a server of its own
	emulators.Require(t, err)
	d := newDialer(t, s)
	c := mustConnect(t, s, d, s.Instance())
	mustConnect(t, s, d, s.ReadPool(), alloydbconn.WithPSC())
	silent := newRawClient(t, s).handshake(t)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats().Open; got != 0 {
		t.Errorf("open after Close: %d, want 0", got)
	}
	if err := c.Ping(t.Context()); err == nil {
		t.Error("a connection outlived Close")
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that had not said hello outlived Close")
	}
	hosttest.WaitFor(t, "no goroutine of the stand-in", func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for _, of := range []string{"emulators/alloydb.(*Server)", "emulators/alloydb.copyStream(", "net/http.(*conn).serve("} {
			if strings.Contains(string(stacks), of) {
				return false
			}
		}
		return true
	})
	s.CutConnections() // does nothing, as everything here
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if postgres, err := net.Dial("tcp", s.Postgres().Address()); err == nil {
		_ = postgres.Close()
		t.Error("the server that the stand-in started outlived it")
	}
	for _, d := range s.doors {
		if conn, err := net.Dial("tcp", d.listener.Addr().String()); err == nil {
			_ = conn.Close()
			t.Errorf("the door for %s is still open", d.address)
		}
	}
}
