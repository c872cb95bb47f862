package faultynetwork

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/internal/grpcproxy"
)

// call is an RPC in flight, as grpcproxy.Handler sees it. It delivers the first message when the
// RPC may pass, and applies the faults to the answer.
type call struct {
	grpc.ServerStream
	link    *RPC
	conn    *rpcConn
	counted bool // DropReplies and Hold apply to it

	// ctx is the context of the RPC at the server. It outlives the program's context where a fault
	// requires that.
	ctx     context.Context
	life    context.Context // parent of ctx
	cancel  context.CancelFunc
	timeout time.Duration // from the program's deadline; 0 means none

	begun    bool // the first message was received
	answered bool // the answer has begun to pass
	keeping  bool // the answer is buffered until its end
	header   metadata.MD
	kept     []grpcproxy.Frame

	// The link's lock guards what follows.
	held bool // has not reached the server
	late bool // was held, and has no answer yet
	gone bool // the program has cancelled the RPC or lost its connection
	dead bool // ended by abort
}

var errReset = status.Error(codes.Unavailable, "the connection was reset")

// intercept forwards an RPC and applies the faults of its connection.
func (l *RPC) intercept(srv any, down grpc.ServerStream, _ *grpc.StreamServerInfo, forward grpc.StreamHandler) error {
	from, _ := peer.FromContext(down.Context())
	info, ok := from.AuthInfo.(connInfo)
	if !ok || info.conn == nil {
		return status.Error(codes.Internal, "an RPC on no connection of the link")
	}
	md, _ := metadata.FromIncomingContext(down.Context())
	c := &call{ServerStream: down, link: l, conn: info.conn, counted: l.only == "" || len(md.Get(l.only)) > 0}
	c.life, c.cancel = context.WithCancel(context.WithoutCancel(down.Context()))
	c.ctx = c.life
	if deadline, ok := down.Context().Deadline(); ok {
		c.timeout = max(time.Until(deadline), 1)
	}
	l.change(func() {
		if c.dead = c.conn.dead; !c.dead {
			c.conn.calls[c] = struct{}{}
		}
	})
	stay := context.AfterFunc(down.Context(), c.leave)
	defer stay()
	defer c.end()
	return c.finish(forward(srv, c))
}

func (c *call) end() {
	c.link.change(func() {
		c.abort()
		delete(c.conn.calls, c)
	})
}

// abort ends the call at any stage. The caller holds the lock.
func (c *call) abort() {
	c.dead, c.held, c.late = true, false, false
	delete(c.link.late, c)
	c.cancel()
}

// leave runs when the program has cancelled the RPC or its connection has ended. The server learns
// of that after it got what was sent before, and not at all if the RPC is to arrive late.
func (c *call) leave() {
	var delay time.Duration
	c.link.change(func() {
		c.gone = !c.late
		delay = c.link.delay
	})
	tell := func() {
		c.link.change(func() {
			if !c.late {
				c.cancel()
			}
		})
	}
	if delay > 0 {
		timer := time.AfterFunc(delay, tell)
		context.AfterFunc(c.life, func() { timer.Stop() })
	} else {
		tell()
	}
}

// Context returns the context of the RPC at the server.
func (c *call) Context() context.Context { return c.ctx }

// RecvMsg returns the first message once the RPC may pass.
func (c *call) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	if c.begun {
		if err != nil && c.isLate() {
			return io.EOF // the end of the program does not end a late RPC
		}
		return err
	}
	c.begun = true
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var due time.Time
	c.link.change(func() {
		due = time.Now().Add(c.link.delay)
		if !c.gone && c.counted && c.conn.hold.hit() {
			c.held, c.late = true, true
			c.link.late[c] = struct{}{}
		}
	})
	if !c.passes(due) {
		return errReset
	}
	if c.timeout > 0 { // the timeout counts from the RPC's arrival at the server
		ctx, cancel := context.WithTimeout(c.life, c.timeout)
		context.AfterFunc(c.life, cancel)
		c.ctx = ctx
	}
	return err
}

// passes waits until the RPC may go to the server, and returns false if it may not.
func (c *call) passes(due time.Time) bool {
	dead := false
	_ = c.link.await(context.Background(), func() bool { // abort ends the wait
		dead = c.dead
		return c.dead || !c.held && !c.conn.black
	})
	if dead || !c.waits(due) {
		return false
	}
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	return !c.dead
}

// waits returns true at due, or false as soon as the call has been aborted.
func (c *call) waits(due time.Time) bool {
	wait := time.Until(due)
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		if c.link.await(ctx, func() bool { return c.dead }) == nil {
			close(ended)
		}
	}()
	select {
	case <-timer.C:
		return true
	case <-ended:
		return false
	}
}

func (c *call) isLate() bool {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	return c.late
}

// keeps reports whether the answer is buffered, because DropReplies may have to drop it.
func (c *call) keeps() bool {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.keeping = c.keeping || c.counted && c.conn.drop.on
	return c.keeping
}

// SendHeader forwards the header of the answer.
func (c *call) SendHeader(md metadata.MD) error {
	if c.keeps() {
		c.header = md
		return nil
	}
	if !c.answers() {
		return errReset
	}
	return c.toProgram(c.ServerStream.SendHeader(md))
}

// SendMsg forwards a message of the answer.
func (c *call) SendMsg(m any) error {
	if f, ok := m.(*grpcproxy.Frame); ok && c.keeps() {
		c.kept = append(c.kept, *f)
		return nil
	}
	if !c.answers() {
		return errReset
	}
	return c.toProgram(c.ServerStream.SendMsg(m))
}

// answers delays the answer once, before its beginning, and returns false if the call was aborted.
func (c *call) answers() bool {
	if c.answered {
		return true
	}
	c.answered = true
	c.link.mu.Lock()
	due := time.Now().Add(c.link.delay)
	c.link.mu.Unlock()
	return c.waits(due)
}

// toProgram drops the error of a send to the program if the call is late: the server must be able
// to send an answer that no program takes.
func (c *call) toProgram(err error) error {
	if err != nil && c.isLate() {
		return nil
	}
	return err
}

// finish drops or forwards the answer, given the RPC's final status at the server.
func (c *call) finish(err error) error {
	dropped := false
	c.link.change(func() {
		if dropped = c.counted && !c.gone && !c.dead && c.conn.drop.hit(); dropped {
			c.link.dropped++
			c.link.kill(c.conn)
		}
	})
	if dropped || !c.answers() {
		return errReset
	}
	if c.header != nil {
		if err := c.ServerStream.SendHeader(c.header); err != nil {
			return err
		}
	}
	for i := range c.kept {
		if err := c.ServerStream.SendMsg(&c.kept[i]); err != nil {
			return err
		}
	}
	return err
}
