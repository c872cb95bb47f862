package loopback_test

import (
	"net"
	"testing"

	"github.com/tapestore/tapestore/internal/loopback"
)

// A server that stopped listens on its port again. No outgoing connection takes that port meanwhile: those
// of this system have higher ports.
func TestListenAgain(t *testing.T) {
	t.Parallel()
	first, err := loopback.ListenAgain(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	address := first.Addr().(*net.TCPAddr)
	if !address.IP.IsLoopback() || address.Port < 15_000 || address.Port >= 32_000 {
		t.Errorf("it listens on %v", address)
	}
	out, err := net.Dial("tcp4", address.String())
	if err != nil {
		t.Fatal(err)
	}
	if from := out.LocalAddr().(*net.TCPAddr); from.Port < 32_000 {
		t.Errorf("an outgoing connection has the port %d", from.Port)
	}
	_, _ = out.Close(), first.Close()
	again, err := loopback.ListenAgain(t.Context(), address.String())
	if err != nil || again.Addr().String() != address.String() {
		t.Fatalf("again it listens on %v, %v, want %v", again, err, address)
	}
	_ = again.Close()
}
