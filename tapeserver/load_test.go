//go:build unix

package tapeserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

const (
	// idleConnection bounds the memory of an idle connection, with that of the test's own end of it: twice
	// the 53 KB that were measured, of which 32 KiB are gRPC's buffer for reading.
	idleConnection = 110 << 10
	// underAttack bounds the memory of the messages of slow clients, in addition to the idle connections: the
	// 128 MiB of BytesInFlight, up to three times while messages are encoded.
	underAttack = 384 << 20
)

// memoryInUse returns the bytes of live objects and stacks.
func memoryInUse() int64 {
	runtime.GC()
	runtime.GC() // what the first one found in pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// needDescriptors makes room for n file descriptors, or skips the test.
func needDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if uint64(limit.Cur) >= n {
		return
	}
	if limit.Cur = limit.Max; uint64(limit.Max) < n || syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		t.Skipf("this test needs %d file descriptors, and the hard limit is %d (ulimit -Hn)", n, limit.Max)
	}
}

// idle opens a connection as a client that makes no calls, and returns it once the server has answered its
// settings. It keeps no buffers.
func idle(address string) (net.Conn, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	f := http2.NewFramer(c, c)
	if _, err = c.Write([]byte(http2.ClientPreface)); err == nil {
		err = f.WriteSettings()
	}
	for err == nil {
		var frame http2.Frame
		if frame, err = f.ReadFrame(); err == nil {
			if s, ok := frame.(*http2.SettingsFrame); ok && s.IsAck() {
				return c, nil
			}
		}
	}
	return nil, fmt.Errorf("an idle connection: %w", err)
}

// TestIdleConnectionsAndSlowClients holds many idle connections open, and lets slow clients take all that
// they can get: they leave handshakes and headers unfinished, begin requests that never arrive, and do not
// read replies. Meanwhile an agent lives its whole life, of which no call may be refused, and the
// server's memory stays bounded. TAPESTORE_EFFORT=full opens 5,000 connections; -v prints the figures.
func TestIdleConnectionsAndSlowClients(t *testing.T) {
	connections := effort.Choose(200, 5000)
	const slow = 64 // connections of slow clients
	needDescriptors(t, uint64(2*connections+4*slow+200))
	check, _ := checker(t, "agent operate", "slow drive")
	most := connections + 2*slow + 10
	address, _ := listen(t, memory.New(nil).Open(), &tapeserver.Options{
		Auth: check, Logger: slog.New(slog.DiscardHandler),
		Limits: tapeserver.Limits{Connections: most, ConnectionsPerAddress: most, SendTimeout: never},
	})
	agent, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(as(ctx, "agent"), method, req, reply, conn, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(as(ctx, "agent"), desc, conn, method, opts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	begin(t, tapepb.NewTapeClient(agent), "first")

	before := memoryInUse()
	for range connections {
		c, err := idle(address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	each := (memoryInUse() - before) / int64(connections)
	t.Logf("%d idle connections take %d bytes each", connections, each)
	if each > idleConnection {
		t.Errorf("an idle connection takes %d bytes, want at most %d", each, idleConnection)
	}

	ended := make(chan struct{})
	var clients sync.WaitGroup
	defer clients.Wait()
	defer close(ended)
	var refused atomic.Int64
	for i := range slow {
		c := dial(t, address)
		clients.Go(func() { drawOut(t, c, i, ended, &refused) })
	}
	for refused.Load() < slow/2 && !t.Failed() { // until they have all that they can get
		time.Sleep(time.Millisecond)
	}
	protocol.Life(t, tapepb.NewTapeClient(agent))
	total := memoryInUse() - before
	t.Logf("with %d slow clients, of whose calls %d were refused, %d MiB", slow, refused.Load(), total>>20)
	if most := int64(connections)*idleConnection + underAttack; total > most {
		t.Errorf("the server takes %d MiB, want at most %d", total>>20, most>>20)
	}
}

// drawOut is slow client number i, until ended is closed. It counts its calls that were refused.
func drawOut(t *testing.T, c *raw, i int, ended <-chan struct{}, refused *atomic.Int64) {
	go func() {
		<-ended
		_ = c.SetReadDeadline(time.Unix(1, 0)) // ends ReadFrame, and no write, which may be under way
	}()
	live := func() bool {
		select {
		case <-ended:
			return false
		default:
			return true
		}
	}
	if i%8 == 0 { // an unfinished preface
		_, _ = c.Write([]byte(http2.ClientPreface)[:i/8])
		refused.Add(1)
		<-ended
		return
	}
	c.begin(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	if i%8 == 1 { // unfinished headers
		_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("\x00\x01x\x01y")})
		refused.Add(1)
		<-ended
		return
	}
	for live() {
		stream := c.call(t, []string{"BeginRun", "SubscribeRun"}[i%2], bearer("slow"))
		switch {
		case i%8 < 6: // a request that never arrives
			c.send(t, stream, beginRequest("slow"), 7)
		default: // a reply that is never read
			c.send(t, stream, beginRequest(fmt.Sprint("slow ", i)), -1)
		}
		for c.ended[stream] == nil && live() {
			f, err := c.ReadFrame()
			if err != nil {
				if live() {
					t.Errorf("slow client %d: %v", i, err)
				}
				return
			}
			c.note(f)
			if h, ok := f.(*http2.MetaHeadersFrame); ok && h.StreamID == stream && !h.StreamEnded() {
				break // a reply that waits
			}
		}
		if status.Code(c.ended[stream]) == codes.ResourceExhausted {
			refused.Add(1)
		}
	}
}
