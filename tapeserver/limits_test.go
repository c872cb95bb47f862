package tapeserver_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// connect returns a client with a connection of its own.
func connect(t *testing.T, address string) tapepb.TapeClient {
	t.Helper()
	return tapepb.NewTapeClient(connection(t, address))
}

// connection returns a connection that ends with the test.
func connection(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// wantLimit checks that a call was refused because of a limit.
func wantLimit(t *testing.T, what string, err error, limit string) {
	t.Helper()
	wantStatus(t, what, err, codes.ResourceExhausted, limit)
	if info := infoOf(t, err); info.GetReason() != "LIMIT" || info.GetMetadata()["limit"] != limit {
		t.Errorf("%s: ErrorInfo %v, want the limit %s", what, info, limit)
	}
}

func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	address, _ := listen(t, memory.New(nil).Open(), nil)
	c := dial(t, address).begin(t)
	if got := c.settings[http2.SettingMaxHeaderListSize]; got != 16<<10 {
		t.Errorf("the server admits headers of %d bytes, want 16 KiB", got)
	}
	if got := c.settings[http2.SettingMaxConcurrentStreams]; got != 1024 {
		t.Errorf("the server admits %d streams, want 1024", got)
	}
	fields := make([]hpack.HeaderField, 5)
	for i := range fields {
		fields[i] = hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 3400)}
	}
	large := c.call(t, "GetRun", fields...)
	if err, ok := c.status(t, large).(http2.StreamError); !ok || err.Code != http2.ErrCodeFrameSize {
		t.Errorf("a call with large headers: %v, want a reset", c.status(t, large))
	}
	small := c.call(t, "GetRun")
	c.send(t, small, &tapepb.GetRunRequest{RunId: "r"}, -1)
	wantStatus(t, "the next call", c.status(t, small), codes.NotFound, "no such run")
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	address, _ := listen(t, memory.New(nil).Open(), &tapeserver.Options{Limits: tapeserver.Limits{Streams: 2}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 2 {
		stream, err := connect(t, address).SubscribeRun(ctx, &tapepb.SubscribeRunRequest{RunId: "r"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Header(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := connect(t, address).GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
	wantLimit(t, "the third call", err, "Streams")
	cancel()
	for status.Code(err) == codes.ResourceExhausted { // until the server has noticed that the streams ended
		_, err = connect(t, address).GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
	}
	wantStatus(t, "a call after the streams", err, codes.NotFound, "no such run")
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	address, _ := listen(t, memory.New(nil).Open(), &tapeserver.Options{Limits: tapeserver.Limits{Connections: 1, HandshakeTimeout: never}})
	first := dial(t, address)
	_, err := connect(t, address).GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
	wantStatus(t, "GetRun on a second connection", err, codes.Unavailable, "")
	_ = first.Close()
	for status.Code(err) == codes.Unavailable { // until the server has noticed
		_, err = connect(t, address).GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
	}
	wantStatus(t, "GetRun once the first is gone", err, codes.NotFound, "no such run")
}

func TestRequestsHaveToArrive(t *testing.T) {
	t.Parallel()
	address, _ := listen(t, memory.New(nil).Open(), &tapeserver.Options{Limits: tapeserver.Limits{ReceiveTimeout: 50 * time.Millisecond}})
	for _, method := range []string{"BeginRun", "SubscribeRun"} {
		c := dial(t, address).begin(t)
		half := c.call(t, method)
		c.send(t, half, beginRequest("i"), 7)
		wantStatus(t, method, c.status(t, half), codes.ResourceExhausted, "limit ReceiveTimeout is 50ms")
	}
}

// large begins a run with an effect whose request has n bytes.
func large(t *testing.T, c tapepb.TapeClient, n int) (run string, effect *tapepb.GetEffectRequest) {
	t.Helper()
	id := begin(t, c, "i").GetRunId()
	if _, err := c.BeginEffect(t.Context(), &tapepb.BeginEffectRequest{RunId: id, CustomKey: "K", RequestJson: strings.Repeat("x", n)}); err != nil {
		t.Fatal(err)
	}
	return id, &tapepb.GetEffectRequest{RunId: id, IdempotencyKey: "K"}
}

// A client that asks and does not read gets no further than its share of the bytes in flight, and others are served.
func TestRepliesThatNobodyReadsAreBounded(t *testing.T) {
	t.Parallel()
	const megabyte = 1 << 20
	address, _ := listen(t, memory.New(nil).Open(), &tapeserver.Options{
		// One connection may hold 48 MiB, and one client 56. A call needs 8 MiB to begin, and replies of 1 MB stay.
		Limits: tapeserver.Limits{BytesInFlight: 64 * megabyte, QueueTimeout: 20 * time.Second, SendTimeout: never},
	})
	other := connect(t, address)
	run, effect := large(t, other, megabyte-megabyte/8)
	c := dial(t, address).begin(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) // it takes nothing
	ask := func() (refusal error) {
		stream := c.call(t, "GetEffect")
		c.send(t, stream, effect, -1)
		c.await(t, "the headers of an answer", func(f http2.Frame) bool {
			h, ok := f.(*http2.MetaHeadersFrame)
			return ok && h.StreamID == stream
		})
		return c.ended[stream]
	}
	answered, refused := 0, error(nil)
	for ; answered < 100; answered++ {
		if refused = ask(); refused != nil {
			break
		}
	}
	if answered > 48 {
		t.Errorf("%d answers of 1 MB wait for a client that reads nothing, want at most 48", answered)
	}
	wantStatus(t, "the first refusal", refused, codes.ResourceExhausted, "limit BytesInFlight is 67108864")
	getRun(t, other, run)
	if _, err := other.GetEffect(t.Context(), effect); err != nil {
		t.Errorf("another client's GetEffect: %v", err)
	}
	// Streams that end without being read give back what they held.
	for stream := uint32(1); stream < c.next; stream += 2 {
		if err := c.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	for ask() != nil { // until the server has noticed
	}
}

func TestAClientThatDoesNotReadLosesItsConnection(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	address, _ := listen(t, store.Open(), &tapeserver.Options{
		Limits: tapeserver.Limits{SendTimeout: 50 * time.Millisecond},
	})
	other, _ := start(t, store.Open(), nil) // without that timeout, which a busy machine may exceed
	run, effect := large(t, other, 1<<20-1<<17)
	c := dial(t, address).begin(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.send(t, c.call(t, "GetEffect"), effect, -1)
	_, _ = io.Copy(io.Discard, c) // ends with the connection
	for {
		_, err := connect(t, address).GetRun(t.Context(), &tapepb.GetRunRequest{RunId: run})
		if err == nil {
			break
		}
		if status.Code(err) != codes.Unavailable { // a busy machine may exceed the timeout here too
			t.Fatalf("another client's GetRun: %v", err)
		}
	}
}

// Requests that take turns are all served: 40 of 1 MB where two fit.
func TestLargeRequestsTakeTurns(t *testing.T) {
	t.Parallel()
	address, _ := listen(t, memory.New(nil).Open(), &tapeserver.Options{
		Limits: tapeserver.Limits{BytesInFlight: 24 << 20, QueueTimeout: never},
	})
	c := connect(t, address)
	id := begin(t, c, "i").GetRunId()
	ended := make(chan error)
	for i := range int64(40) {
		go func() {
			_, err := c.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{
				RunId: id, DecisionIndex: i, ResponseJson: strings.Repeat("x", 1<<20-1<<17),
			})
			ended <- err
		}()
	}
	for range 40 {
		if err := <-ended; err != nil {
			t.Errorf("RecordDecision: %v", err)
		}
	}
}
