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
// and one in each connection for its share. Waiters are served first come, first served. A call
// acquires once and afterwards only releases, so calls cannot deadlock.
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
func (b *bytesInFlight) acquire(ctx context.Context, c *conn, n int64, timeout time.Duration) (*hold, error) {
	n = min(n, b.limits.perConnection())
	h := &hold{all: b, conn: c}
	h.bytes.Store(n)
	if c.bytes.TryAcquire(n) {
		if b.total.TryAcquire(n) {
			b.used.Add(n)
			return h, nil
		}
		c.bytes.Release(n)
	}
	wait, cancel := context.WithTimeoutCause(ctx, timeout, errQueueTimeout)
	defer cancel()
	err := c.bytes.Acquire(wait, n)
	if err == nil {
		if err = b.total.Acquire(wait, n); err != nil {
			c.bytes.Release(n)
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
	all   *bytesInFlight
	conn  *conn
	bytes atomic.Int64
	late  *time.Timer // guarded by conn.mu
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
			h.all.used.Add(n - has)
			h.all.total.Release(has - n)
			return
		}
	}
}

func (h *hold) release() { h.shrink(0) }

// split moves at most n bytes of h into a new hold.
func (h *hold) split(n int64) *hold {
	part := &hold{all: h.all, conn: h.conn}
	has := h.bytes.Load()
	n = min(n, has)
	h.bytes.Store(has - n)
	part.bytes.Store(n)
	return part
}

// reply is a message with the hold that is released when the client has taken the message.
type reply struct {
	proto.Message
	hold *hold
}

// codec is gRPC's codec for protocol buffers. It releases the hold of a reply when the transport
// frees the encoded bytes: they were written, or their stream was reset.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{newTextCodec()} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*reply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	data, err := proto.Marshal(r.Message)
	if err != nil || len(data) <= smallMessage {
		r.hold.release()
		return mem.BufferSlice{mem.SliceBuffer(data)}, err
	}
	r.hold.conn.await(r.hold, r.hold.all.limits.SendTimeout)
	return mem.BufferSlice{mem.NewBuffer(&data, taken{r.hold})}, nil
}

// taken is the buffer pool to which the bytes of one reply return; it releases the reply's hold.
type taken struct{ hold *hold }

func (t taken) Get(length int) *[]byte { b := make([]byte, length); return &b }
func (t taken) Put(*[]byte)            { t.hold.conn.taken(t.hold) }
