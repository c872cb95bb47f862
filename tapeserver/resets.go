package tapeserver

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// resets is a stats.Handler that ends the counts of calls whose streams were reset.
//
// gRPC frees a message when it was written. It does not free one that it was handed after the stream had
// been reset, by the client or at the call's deadline: the counts of the message would stay, and would close
// the connection after SendTimeout. Such a call ends without a trailer.
type resets struct{}

type resetKey struct{}

// rpc is what resets knows of one RPC.
type rpc struct {
	call    atomic.Pointer[call] // nil until the call was admitted
	trailer atomic.Bool          // the trailer was handed to the connection, after all messages
}

// TagRPC implements stats.Handler.
func (resets) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, resetKey{}, &rpc{})
}

// HandleRPC implements stats.Handler.
func (resets) HandleRPC(ctx context.Context, s stats.RPCStats) {
	r, ok := ctx.Value(resetKey{}).(*rpc)
	if !ok {
		return
	}
	switch s.(type) {
	case *stats.OutTrailer:
		r.trailer.Store(true)
	case *stats.End:
		if c := r.call.Load(); c != nil && !r.trailer.Load() {
			c.conn.reset(c)
		}
	}
}

// TagConn implements stats.Handler.
func (resets) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (resets) HandleConn(context.Context, stats.ConnStats) {}
