package tapeserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// The tests of this file run in bubbles of fake time, with the timeouts that a server has by default.

// inMemory serves a store on connections in memory, until the test ends. A connection takes buffer bytes
// that its reader has not read.
func inMemory(t *testing.T, store runstore.RunStore, opts *tapeserver.Options, buffer int) *bufconn.Listener {
	t.Helper()
	lis := bufconn.Listen(buffer)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- tapeserver.New(store, opts).Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v, want nil after a drain", err)
		}
	})
	return lis
}

func dialMemory(t *testing.T, lis *bufconn.Listener) net.Conn {
	t.Helper()
	c, err := lis.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// slowly writes one byte at a time.
type slowly struct {
	net.Conn
	pause time.Duration
}

func (s slowly) Write(data []byte) (int, error) {
	for i := range data {
		time.Sleep(s.pause)
		if _, err := s.Conn.Write(data[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(data), nil
}

// frames returns what write writes as bytes.
func frames(write func(f *http2.Framer) error) []byte {
	var all bytes.Buffer
	if err := write(http2.NewFramer(&all, nil)); err != nil {
		panic(err) // a buffer takes everything
	}
	return all.Bytes()
}

var quietly = slog.New(slog.DiscardHandler)

// TestSlowClientsAreCut checks that a client which draws out any part of the protocol loses its connection.
func TestSlowClientsAreCut(t *testing.T) {
	t.Parallel()
	opened := append([]byte(http2.ClientPreface), frames(func(f *http2.Framer) error { return f.WriteSettings() })...)
	fields := bytes.Repeat([]byte("\x00\x01x\x01y"), 1000) // of header x: y
	for _, c := range []struct {
		name   string
		within time.Duration
		// write writes until the server closes the connection, or less.
		write func(c net.Conn) error
		// answer makes the client acknowledge pings.
		answer bool
	}{
		{name: "silence", within: 5 * time.Second, write: func(net.Conn) error { return nil }},
		{name: "the preface, byte by byte", within: 5 * time.Second, write: func(c net.Conn) error {
			_, err := slowly{c, time.Second}.Write(opened)
			return err
		}},
		{name: "no settings", within: 5 * time.Second, write: func(c net.Conn) error {
			_, err := c.Write([]byte(http2.ClientPreface))
			return err
		}},
		// A ping after a minute is not acknowledged for 20 s, because frames cannot overtake each other.
		{name: "headers, byte by byte", within: 80 * time.Second, write: func(c net.Conn) error {
			_, err := c.Write(opened)
			if err == nil {
				_, err = slowly{c, time.Second}.Write(frames(func(f *http2.Framer) error {
					return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields, EndHeaders: true})
				}))
			}
			return err
		}},
		{name: "headers that go on and on", within: 80 * time.Second, write: func(c net.Conn) error {
			_, err := c.Write(append(bytes.Clone(opened), frames(func(f *http2.Framer) error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields[:5]})
			})...))
			for err == nil {
				time.Sleep(time.Second)
				_, err = c.Write(frames(func(f *http2.Framer) error { return f.WriteContinuation(1, false, nil) }))
			}
			return err
		}},
		{name: "nothing after the settings", within: 80 * time.Second, write: func(c net.Conn) error {
			_, err := c.Write(opened)
			return err
		}},
		{name: "no calls", answer: true, within: 16 * time.Minute, write: func(c net.Conn) error {
			_, err := c.Write(opened)
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				conn := dialMemory(t, inMemory(t, memory.New(nil).Open(), &tapeserver.Options{Logger: quietly}, 1<<20))
				began := time.Now()
				ended := make(chan error, 1)
				go func() { ended <- c.write(conn) }()
				f := http2.NewFramer(conn, conn)
				for {
					frame, err := f.ReadFrame()
					if err != nil {
						break
					}
					if ping, ok := frame.(*http2.PingFrame); ok && c.answer && !ping.IsAck() {
						if err := f.WritePing(true, ping.Data); err != nil {
							break
						}
					}
				}
				if d := time.Since(began); d > c.within {
					t.Errorf("the server closed the connection after %v, want at most %v", d, c.within)
				}
				<-ended
			})
		})
	}
}

func TestASlowHandshakeIsCut(t *testing.T) {
	t.Parallel()
	s, opts := secure(t)
	synctest.Test(t, func(t *testing.T) {
		conn := dialMemory(t, inMemory(t, memory.New(nil).Open(), &tapeserver.Options{TLS: opts.TLS, Logger: quietly}, 1<<20))
		began := time.Now()
		err := tls.Client(slowly{conn, 100 * time.Millisecond}, &tls.Config{RootCAs: s.ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS13}).Handshake()
		if d := time.Since(began); err == nil || d > 6*time.Second {
			t.Errorf("the handshake ended after %v with %v, want an error after 5 s", d, err)
		}
	})
}

// A request that arrives byte by byte is refused once its time is over, and holds no memory any longer.
func TestASlowRequestIsCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := speak(t, dialMemory(t, inMemory(t, memory.New(nil).Open(), &tapeserver.Options{Logger: quietly}, 1<<20))).begin(t)
		for _, method := range []string{"BeginRun", "SubscribeRun"} {
			stream := c.call(t, method)
			cut := make(chan struct{})
			ended := make(chan struct{})
			began := time.Now()
			go func() {
				defer close(ended)
				for part := []byte{0, 0, 0, 1, 0}; ; part = []byte{'x'} { // a message of 256 bytes
					_ = c.WriteData(stream, false, part)
					select {
					case <-time.After(time.Second):
					case <-cut:
						return
					}
				}
			}()
			wantStatus(t, method, c.status(t, stream), codes.ResourceExhausted, "limit ReceiveTimeout is 10s")
			if d := time.Since(began); d != 10*time.Second {
				t.Errorf("%s was refused after %v, want 10 s", method, d)
			}
			close(cut)
			<-ended
		}
	})
}

// unreadable returns a connection whose streams have no window, so that it takes no messages.
func unreadable(t *testing.T, lis *bufconn.Listener) *raw {
	return speak(t, dialMemory(t, lis)).begin(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
}

// bearer returns the header with a principal's token.
func bearer(principal string) hpack.HeaderField {
	return hpack.HeaderField{Name: "authorization", Value: "Bearer " + tokenOf(principal)}
}

// answered waits for the headers of a call's reply, and returns the call's status if it was refused.
func (r *raw) answered(t *testing.T, stream uint32) error {
	t.Helper()
	r.await(t, "the headers of a reply", func(f http2.Frame) bool {
		h, ok := f.(*http2.MetaHeadersFrame)
		return ok && h.StreamID == stream
	})
	return r.ended[stream]
}

// TestSmallRepliesThatNobodyTakesAreBounded checks that a small reply occupies a stream until its client has
// taken it. A client gets no more streams than its share, another client is served, and the connection is
// closed in the end. A client that asks for compressed replies gets no more.
func TestSmallRepliesThatNobodyTakesAreBounded(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"identity", gzip.Name} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			smallRepliesAreBounded(t, hpack.HeaderField{Name: "grpc-encoding", Value: encoding})
		})
	}
}

func smallRepliesAreBounded(t *testing.T, encoding hpack.HeaderField) {
	check, _ := checker(t, "slow drive", "other drive")
	synctest.Test(t, func(t *testing.T) {
		lis := inMemory(t, memory.New(nil).Open(), &tapeserver.Options{Auth: check, Logger: quietly, Limits: tapeserver.Limits{Streams: 8}}, 1<<20)
		begun := speak(t, dialMemory(t, lis)).begin(t)
		ask := func(c *raw, method string, as string) error {
			stream := c.call(t, method, bearer(as), encoding)
			c.send(t, stream, beginRequest("i"), -1)
			return c.answered(t, stream)
		}
		slow, again := unreadable(t, lis), unreadable(t, lis)
		for i := range 7 {
			c := []*raw{slow, again}[i%2]
			if err := ask(c, "BeginRun", "slow"); err != nil {
				t.Fatalf("call %d: %v", i, err)
			}
		}
		for _, c := range []*raw{slow, again} {
			wantStatus(t, "one more call", ask(c, "BeginRun", "slow"), codes.ResourceExhausted, "limit StreamsPerClient is 7")
		}
		other := begun.call(t, "BeginRun", bearer("other"))
		begun.send(t, other, beginRequest("j"), -1)
		if err := begun.status(t, other); err != errOK {
			t.Errorf("another client's call: %v", err)
		}
		// One connection ends, the other's client takes what waits.
		_ = slow.Close()
		for stream := uint32(1); stream < again.next; stream += 2 {
			_ = again.WriteWindowUpdate(stream, 1<<20)
		}
		synctest.Wait()
		for i := range 7 {
			if err := ask(again, "BeginRun", "slow"); err != nil {
				t.Fatalf("call %d after the others were taken: %v", i, err)
			}
		}
		wantStatus(t, "one more call", ask(again, "BeginRun", "slow"), codes.ResourceExhausted, "limit StreamsPerClient is 7")
		began := time.Now()
		_, _ = io.Copy(io.Discard, again) // ends with the connection
		if d := time.Since(began); d != 30*time.Second {
			t.Errorf("the connection was closed after %v, want 30 s", d)
		}
		last := unreadable(t, lis)
		if err := ask(last, "BeginRun", "slow"); err != nil {
			t.Errorf("a call after the connection was closed: %v", err)
		}
	})
}

// A client that takes nothing from its connection loses it, although it goes on to send.
func TestAClientThatTakesNothingIsCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := speak(t, dialMemory(t, inMemory(t, memory.New(nil).Open(), &tapeserver.Options{Logger: quietly}, 4<<10))).begin(t)
		began := time.Now()
		for err := error(nil); err == nil; { // the server takes what is sent until it closes the connection
			time.Sleep(100 * time.Millisecond)
			stream := c.next
			c.next += 2
			c.headers.Reset()
			for _, f := range []hpack.HeaderField{
				{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/tape.v1.Tape/GetRun"},
				{Name: ":authority", Value: "x"}, {Name: "content-type", Value: "application/grpc"},
			} {
				_ = c.encoder.WriteField(f)
			}
			err = errors.Join(
				c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.headers.Bytes(), EndHeaders: true}),
				c.WriteData(stream, true, make([]byte, 5)),
			)
		}
		if d := time.Since(began); d > 2*time.Minute {
			t.Errorf("the server closed the connection after %v", d)
		}
	})
}

// A subscriber that does not read loses its stream, and its connection if it does not take what waits in
// the stream either.
func TestASubscriberThatDoesNotReadLosesItsStream(t *testing.T) {
	t.Parallel()
	for _, size := range []int{3 << 10, 8 << 10} { // the server counts the bytes of an entry of more than 4 KiB
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			subscriberLosesItsStream(t, size)
		})
	}
}

// subscriberLosesItsStream checks a subscriber of entries of a size.
func subscriberLosesItsStream(t *testing.T, size int) {
	check, _ := checker(t, "slow drive", "other drive")
	synctest.Test(t, func(t *testing.T) {
		lis := inMemory(t, memory.New(nil).Open(), &tapeserver.Options{Auth: check, Logger: quietly}, 1<<20)
		other := speak(t, dialMemory(t, lis)).begin(t)
		if err := other.WriteWindowUpdate(0, 1<<30); err != nil { // it takes every reply
			t.Fatal(err)
		}
		begin := other.call(t, "BeginRun", bearer("other"))
		other.send(t, begin, beginRequest("i"), -1)
		run := &tapepb.BeginRunResponse{}
		other.message(t, begin, run)
		for i := range int64(40) { // more than the 64 KiB that wait in the stream
			record := other.call(t, "RecordDecision", bearer("other"))
			other.send(t, record, &tapepb.RecordDecisionRequest{RunId: run.GetRunId(), DecisionIndex: i, Rationale: strings.Repeat("x", size)}, -1)
			if err := other.status(t, record); err != errOK {
				t.Fatal(err)
			}
		}
		for _, takes := range []bool{true, false} {
			c := unreadable(t, lis)
			began := time.Now()
			slow := c.call(t, "SubscribeRun", bearer("slow"))
			c.send(t, slow, &tapepb.SubscribeRunRequest{RunId: run.GetRunId()}, -1)
			if err := c.answered(t, slow); err != nil {
				t.Fatal(err)
			}
			if !takes {
				_, _ = io.Copy(io.Discard, c)
				if d := time.Since(began); d != time.Minute {
					t.Errorf("the connection was closed after %v, want 30 s for the page and 30 s for what waits", d)
				}
				continue
			}
			time.Sleep(45 * time.Second)
			for _, window := range []uint32{0, slow} { // the connection's and the stream's
				if err := c.WriteWindowUpdate(window, 1<<30); err != nil {
					t.Fatal(err)
				}
			}
			wantStatus(t, "the slow stream", c.status(t, slow), codes.ResourceExhausted, "limit SendTimeout is 30s")
		}
	})
}

// Replies without a byte, and refusals, are taken at once.
func TestEmptyRepliesAreTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _ := start(t, memory.New(nil).Open(), &tapeserver.Options{Limits: tapeserver.Limits{Streams: 1}})
		for i := range 5 {
			if _, err := c.ListReactions(t.Context(), &tapepb.ListReactionsRequest{}); err != nil {
				t.Fatalf("list %d: %v", i, err)
			}
			synctest.Wait()
			_, err := c.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "no"})
			wantStatus(t, "GetRun", err, codes.NotFound, "no such run")
			synctest.Wait()
		}
	})
}
