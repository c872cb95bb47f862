package tapeserver

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// bytesInFlight is the weighted semaphore that bounds the memory of messages: one for the server,
// and one for the share of each client and of each connection. Waiters are served first come, first
// served. A call acquires them in the order connection, client, server, and afterwards only releases, so
// calls cannot deadlock, and those that wait for their client's share do not delay other clients.
type bytesInFlight struct {
	limits Limits
	total  *semaphore.Weighted
	used   atomic.Int64 // the bytes of total that are held
}

func newBytesInFlight(limits Limits) *bytesInFlight {
	return &bytesInFlight{limits: limits, total: semaphore.NewWeighted(limits.BytesInFlight)}
}

var errQueueTimeout = errors.New("queue timeout")

// acquire waits for n bytes, at most for timeout.
func (b *bytesInFlight) acquire(ctx context.Context, c *conn, cl *client, n int64, timeout time.Duration) (*hold, error) {
	n = min(n, b.limits.perConnection())
	h := &hold{all: b, conn: c, client: cl}
	h.bytes.Store(n)
	shares := [...]*semaphore.Weighted{c.bytes, cl.bytes, b.total}
	got := 0
	for got < len(shares) && shares[got].TryAcquire(n) {
		got++
	}
	if got == len(shares) {
		b.used.Add(n)
		return h, nil
	}
	wait, cancel := context.WithTimeoutCause(ctx, timeout, errQueueTimeout)
	defer cancel()
	var err error
	for got < len(shares) && err == nil {
		if err = shares[got].Acquire(wait, n); err == nil {
			got++
		}
	}
	if err != nil {
		for _, share := range shares[:got] {
			share.Release(n)
		}
	}
	switch {
	case err == nil:
		b.used.Add(n)
		return h, nil
	case context.Cause(wait) == errQueueTimeout:
		return nil, limitError("BytesInFlight", b.limits.BytesInFlight,
			fmt.Sprintf("no room for this call's messages within %v", timeout))
	default:
		return nil, context.Cause(wait)
	}
}

// hold is a call's part of the bytes in flight.
type hold struct {
	all    *bytesInFlight
	conn   *conn
	client *client
	bytes  atomic.Int64
	late   *time.Timer // guarded by conn.mu
	call   *call       // of the reply that has the hold; guarded by conn.mu
}

// shrink releases all but n bytes.
func (h *hold) shrink(n int64) {
	for {
		has := h.bytes.Load()
		if n >= has {
			return
		}
		if h.bytes.CompareAndSwap(has, n) {
			h.conn.bytes.Release(has - n)
			h.client.bytes.Release(has - n)
			h.all.used.Add(n - has)
			h.all.total.Release(has - n)
			return
		}
	}
}

func (h *hold) release() { h.shrink(0) }

// split moves at most n bytes of h into a new hold.
func (h *hold) split(n int64) *hold {
	part := &hold{all: h.all, conn: h.conn, client: h.client}
	has := h.bytes.Load()
	n = min(n, has)
	h.bytes.Store(has - n)
	part.bytes.Store(n)
	return part
}

// reply is a message of a call, with the hold that is released when the client has taken the message; nil
// for a message that has none. The call has counted it (conn.sent).
type reply struct {
	proto.Message
	call *call
	hold *hold
}

// codec is gRPC's codec for protocol buffers. It releases the hold of a reply, and counts the reply as
// taken, when the transport frees the encoded bytes: they were written, or their stream was reset. See
// resets for those that the transport never frees.
type codec struct{ encoding.CodecV2 }

// pooledBytes is more than 1 KiB, the capacity up to which gRPC does not return a buffer to its pool, so
// that codec would not see when a reply is taken.
const pooledBytes = 1<<10 + 1

func newCodec() codec { return codec{newTextCodec()} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*reply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	data, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 0, max(proto.Size(r.Message), pooledBytes)), r.Message)
	if r.hold != nil && (err != nil || len(data) <= smallMessage) {
		r.hold.release()
		r.hold = nil
	}
	if err != nil {
		r.call.conn.took(r.call)
		return nil, err
	}
	if r.hold != nil {
		r.hold.conn.await(r.call, r.hold, r.hold.all.limits.SendTimeout)
	}
	return mem.BufferSlice{mem.NewBuffer(&data, taken{r.call, r.hold})}, nil
}

// taken is the buffer pool to which the bytes of one reply return; it releases the reply's hold.
type taken struct {
	call *call
	hold *hold
}

// Get implements mem.BufferPool.
func (t taken) Get(length int) *[]byte { b := make([]byte, length); return &b }

// Put implements mem.BufferPool.
func (t taken) Put(*[]byte) {
	if t.hold != nil {
		t.hold.conn.taken(t.hold)
	}
	t.call.conn.took(t.call)
}
