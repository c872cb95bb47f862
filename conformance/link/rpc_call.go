package link

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

	"github.com/tapestore/tapestore/emulators/forward"
)

// call is an RPC under way, as forward.Handler sees it: its first message comes when it may
// pass, and what is said to it is harmed on its way.
type call struct {
	grpc.ServerStream
	link    *RPC
	conn    *rpcConn
	counted bool // DropReplies and Hold are for it

	// ctx is that of the RPC at the server. It outlives the program's where the
	// harm wants it to.
	ctx     context.Context
	life    context.Context // its parent
	cancel  context.CancelFunc
	timeout time.Duration // as the program gave it; 0 is none

	begun    bool // the first message was taken in
	answered bool // the answer has begun to pass
	keeping  bool // the answer is kept until its end
	header   metadata.MD
	kept     []forward.Frame

	// The link's lock guards what follows.
	held bool // not at the server yet
	late bool // was held, and is not answered yet
	gone bool // the program has given the RPC up, or lost its connection
	dead bool // it goes no further
}

var errReset = status.Error(codes.Unavailable, "the connection was reset")

// intercept passes an RPC on as the harm wants it.
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

// abort ends the call wherever it is. Its caller has the lock.
func (c *call) abort() {
	c.dead, c.held, c.late = true, false, false
	delete(c.link.late, c)
	c.cancel()
}

// leave is called when the program has given the RPC up, or its connection has gone.
// The server is told of it after what was sent before, and not at all if the RPC is
// to come late.
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

// Context is that of the RPC at the server.
func (c *call) Context() context.Context { return c.ctx }

// RecvMsg returns the first message when the RPC may pass.
func (c *call) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	if c.begun {
		if err != nil && c.isLate() {
			return io.EOF // the program's end is none of the RPC's
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
	if c.timeout > 0 { // it counts from the RPC's arrival at the server
		ctx, cancel := context.WithTimeout(c.life, c.timeout)
		context.AfterFunc(c.life, cancel)
		c.ctx = ctx
	}
	return err
}

// passes waits until the RPC may go to the server, and reports false if it may not.
func (c *call) passes(due time.Time) bool {
	dead := false
	_ = c.link.await(context.Background(), func() bool { // its end is abort
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

// waits returns at a time, or false when the call has been ended before.
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

// keeps reports whether the answer has to be kept, since it may have to be dropped.
func (c *call) keeps() bool {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.keeping = c.keeping || c.counted && c.conn.drop.on
	return c.keeping
}

// SendHeader passes the head of the answer.
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

// SendMsg passes a message of the answer.
func (c *call) SendMsg(m any) error {
	if f, ok := m.(*forward.Frame); ok && c.keeps() {
		c.kept = append(c.kept, *f)
		return nil
	}
	if !c.answers() {
		return errReset
	}
	return c.toProgram(c.ServerStream.SendMsg(m))
}

// answers holds the answer up before it begins. What follows then comes no earlier.
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

// toProgram forgets that the program does not take the answer to a call that came
// late: the server must be able to give it.
func (c *call) toProgram(err error) error {
	if err != nil && c.isLate() {
		return nil
	}
	return err
}

// finish is called with what the server answered in the end.
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
