package tapeserver

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/stats"
)

// endings is a connection with calls that end.
type endings struct {
	s    *Server
	all  *bytesInFlight
	conn *conn
}

const endingTimeout = 30 * time.Second

func newEndings() *endings {
	log, _ := logged()
	limits := Limits{SendTimeout: endingTimeout}.withDefaults()
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }() // ends with near
	e := &endings{s: &Server{clients: newClients(limits)}, all: newBytesInFlight(limits)}
	e.conn = newListener(nil, "grpc", limits, log).add(near)
	return e
}

// call begins a call that was sent n messages, one of them with a hold.
func (e *endings) call(t *testing.T, n int) (*call, context.Context) {
	t.Helper()
	x := &call{s: e.s, conn: e.conn, client: e.s.clients.enter("client")}
	e.s.streams.Add(1)
	ctx := resets{}.TagRPC(t.Context(), nil)
	ctx.Value(resetKey{}).(*rpc).call.Store(x)
	h, err := e.all.acquire(t.Context(), e.conn, x.client, 10, time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		e.conn.sent(x)
	}
	e.conn.await(x, h, endingTimeout)
	return x, ctx
}

func (e *endings) closed() bool {
	e.conn.mu.Lock()
	defer e.conn.mu.Unlock()
	return e.conn.closed
}

// TestResetStreamsCountNoLonger checks that messages which gRPC drops, because their stream was reset, do
// not close the connection of a client that reads.
func TestResetStreamsCountNoLonger(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(e *endings, x *call, ctx context.Context){
		"handler ends first": func(e *endings, x *call, ctx context.Context) {
			e.conn.ended(x)
			resets{}.HandleRPC(ctx, &stats.End{})
		},
		"stream ends first": func(e *endings, x *call, ctx context.Context) {
			resets{}.HandleRPC(ctx, &stats.End{})
			e.conn.ended(x)
		},
		"a message was written meanwhile": func(e *endings, x *call, ctx context.Context) {
			e.conn.ended(x)
			resets{}.HandleRPC(ctx, &stats.End{})
			e.conn.took(x)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := newEndings()
				defer func() { _ = e.conn.Close() }()
				x, ctx := e.call(t, 2)
				end(e, x, ctx)
				time.Sleep(time.Hour)
				if n, used := e.s.streams.Load(), e.all.used.Load(); n != 0 || used != 0 || e.closed() {
					t.Errorf("an hour later %d calls and %d bytes count, connection closed: %t", n, used, e.closed())
				}
			})
		})
	}
}

// TestEndedCallsWaitForTheirClient checks how long a call that ended with a trailer waits for its client.
func TestEndedCallsWaitForTheirClient(t *testing.T) {
	t.Parallel()
	const pause = endingTimeout * 4 / 5
	for name, tc := range map[string]struct {
		messages, takes int
		closed          bool
	}{
		"takes nothing":            {messages: 2, takes: 0, closed: true},
		"takes all slowly":         {messages: 5, takes: 5},
		"takes all but one slowly": {messages: 5, takes: 4, closed: true},
		"takes more than 10 times": {messages: 100, takes: 100, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := newEndings()
				defer func() { _ = e.conn.Close() }()
				x, ctx := e.call(t, tc.messages)
				for h := range e.conn.replies {
					e.conn.taken(h)
				}
				resets{}.HandleRPC(ctx, &stats.OutTrailer{})
				resets{}.HandleRPC(ctx, &stats.End{})
				e.conn.ended(x)
				began := time.Now()
				for range tc.takes {
					time.Sleep(pause)
					if !e.closed() {
						e.conn.took(x)
					}
				}
				for !e.closed() && e.s.streams.Load() > 0 {
					time.Sleep(time.Second)
				}
				synctest.Wait()
				if n := e.s.streams.Load(); n != 0 || e.closed() != tc.closed || time.Since(began) > 110*pause {
					t.Errorf("after %v %d calls count, connection closed: %t", time.Since(began), n, e.closed())
				}
			})
		})
	}
}
