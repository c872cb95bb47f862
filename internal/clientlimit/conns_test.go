package clientlimit

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func at(t *testing.T, address string) net.Addr {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := NewConns(ConnsOptions{Total: 4, PerAddress: 2, Listener: "x", Log: slog.New(slog.NewTextHandler(&log, nil))})
		admit := func(address string, want bool) func() {
			t.Helper()
			release := c.Admit(at(t, address))
			if (release != nil) != want {
				t.Fatalf("%s is admitted: %v, want %v", address, !want, want)
			}
			return release
		}
		first := admit("10.0.0.1:1", true)
		admit("10.0.0.1:2", true)
		admit("10.0.0.1:3", false)
		admit("[::ffff:10.0.0.1]:4", false) // the same address, on a listener of both families
		admit("[2001:db8::1]:1", true)
		third := admit("[2001:db8::2]:1", true)
		admit("[2001:db8::3]:1", false)
		admit("10.0.0.2:1", false)
		if open, total, address := c.Open(), c.Refused(Connections), c.Refused(ConnectionsPerAddress); open != 4 || total != 2 || address != 2 {
			t.Errorf("%d are open, %d and %d were refused, want 4, 2 and 2", open, total, address)
		}
		first()
		first() // once more has no effect
		third()
		admit("10.0.0.1:5", true)
		admit("10.0.0.1:6", false)
		admit("10.0.0.2:1", true)
		if want := `level=WARN msg="refused a connection" listener=x peer=10.0.0.1 limit=ConnectionsPerAddress value=2 not_logged=0`; !strings.Contains(log.String(), want) {
			t.Errorf("the log is %q, want %q", log.String(), want)
		}
		log.Reset()
		for range 100 {
			admit("10.0.0.2:1", false)
		}
		if n := strings.Count(log.String(), "\n"); n != 0 { // five were logged before
			t.Errorf("%d refusals are logged at once", n+5)
		}
		time.Sleep(10 * time.Second)
		admit("10.0.0.2:1", false)
		if !strings.Contains(log.String(), "limit=Connections value=4 not_logged=100") {
			t.Errorf("ten seconds later the log is %q", log.String())
		}
		if len(c.clients) != 3 {
			t.Errorf("%v are counted, want three clients", c.clients)
		}
	})
}

func TestAListenerClosesWhatIsOverTheLimit(t *testing.T) {
	t.Parallel()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lis := NewConns(ConnsOptions{Total: 1, Listener: "x", Log: slog.New(slog.DiscardHandler)}).Listen(raw)
	defer func() { _ = lis.Close() }()
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial()
	first := <-accepted
	if _, err := dial().Read(make([]byte, 1)); err == nil || !closedByPeer(err) {
		t.Errorf("the second connection: %v, want that it is closed", err)
	}
	_ = first.Close()
	dial()
	_ = (<-accepted).Close()
}

func closedByPeer(err error) bool {
	return err == io.EOF || strings.Contains(err.Error(), "reset by peer")
}

func TestShare(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int]int{1: 1, 2: 2, 7: 7, 8: 7, 100: 88, 1024: 896} {
		if got := Share(limit); got != want {
			t.Errorf("Share(%d) = %d, want %d", limit, got, want)
		}
	}
}
