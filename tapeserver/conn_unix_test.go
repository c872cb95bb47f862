//go:build unix

package tapeserver

import (
	"log/slog"
	"net"
	"syscall"
	"testing"
)

// TestConnectionsHaveKeepAlives checks that TCP finds out whether the host of a client is gone, because the server
// sends no pings with tape.FenceConnection.
func TestConnectionsHaveKeepAlives(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	client, err := net.Dial("tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	accepted, err := newListener(lis, "test", Limits{}.withDefaults(), slog.New(slog.DiscardHandler)).Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = accepted.Close() }()
	raw, err := accepted.(*conn).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var on int
	var option error
	if err := raw.Control(func(fd uintptr) {
		on, option = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)
	}); err != nil || option != nil {
		t.Fatal(err, option)
	}
	if on == 0 {
		t.Error("a connection has no keep-alives")
	}
}
