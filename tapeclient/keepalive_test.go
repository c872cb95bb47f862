package tapeclient_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/tapestore/tapestore/tapeclient"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// heldConn is a connection whose received bytes a test can hold back, also the news of its end: as when the
// machine of the server has lost its power, or a partition has begun. Writes succeed.
type heldConn struct {
	net.Conn
	hold   chan struct{} // has an element while bytes are held back
	wrote  chan struct{} // receives an element with a write
	closed chan struct{}
	once   sync.Once
}

func (c *heldConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case c.hold <- struct{}{}:
		<-c.hold
		return n, err
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *heldConn) Write(b []byte) (int, error) {
	select {
	case c.wrote <- struct{}{}:
	default:
	}
	return c.Conn.Write(b)
}

func (c *heldConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// holdable returns a client of Dial, with the connections that it has made.
func (f *fixture) holdable() (c *tapeclient.Client, made func() []*heldConn) {
	f.Helper()
	var mu sync.Mutex
	var conns []*heldConn
	c, err := tapeclient.Dial("tape://127.0.0.1:1", &tapeclient.Options{Owner: "a"},
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := f.lis.DialContext(ctx)
			if err != nil {
				return nil, err
			}
			held := &heldConn{Conn: conn, hold: make(chan struct{}, 1), wrote: make(chan struct{}, 1), closed: make(chan struct{})}
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, held)
			return held, nil
		}))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = c.Close() })
	return c, func() []*heldConn {
		mu.Lock()
		defer mu.Unlock()
		return conns
	}
}

// subscribe subscribes to the feed, and returns a channel that receives the error that ends the subscription.
func subscribe(t *testing.T, c *tapeclient.Client) <-chan error {
	t.Helper()
	stream, err := c.Tape().SubscribeEvents(t.Context(), &tapepb.SubscribeEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		ended <- err
	}()
	return ended
}

// The server's machine is lost without a sign, and another one answers at its address: a call that meets the
// lost connection succeeds within its RetryTimeout, and the subscription ends.
func TestSilentConnectionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, made := f.holdable()
		ended := subscribe(t, c)
		made()[0].hold <- struct{}{}
		if _, err := c.Tape().ListReactions(t.Context(), &tapepb.ListReactionsRequest{}); err != nil {
			t.Errorf("a call over the silent connection: %v", err)
		}
		if n := len(made()); n != 2 {
			t.Errorf("%d connections, want 2", n)
		}
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("the subscription over the silent connection has not ended")
		}
	})
}

// A call over a connection that was idle, and so is not pinged, when the server's machine was lost succeeds within its
// RetryTimeout: the first look at the connection is during an attempt.
func TestSilentIdleConnectionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, made := f.holdable()
		list := func() error {
			_, err := c.Tape().ListReactions(t.Context(), &tapepb.ListReactionsRequest{})
			return err
		}
		if err := list(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // it is not pinged
		made()[0].hold <- struct{}{}
		if err := list(); err != nil || len(made()) != 2 {
			t.Errorf("a call over the silent connection: %v with %d connections, want 2", err, len(made()))
		}
	})
}

// A subscription without traffic stays open: the server admits the pings. So does a connection whose client does
// not read the answer to a ping before it first looks for it, because its process was stopped meanwhile.
func TestQuietConnectionIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := serve(t, required())
		c, made := f.holdable()
		ended := subscribe(t, c)
		time.Sleep(time.Hour)
		conn := made()[0]
		conn.hold <- struct{}{}
		<-conn.wrote                               // by an earlier ping
		<-conn.wrote                               // a ping: nothing else is sent
		time.Sleep(11*time.Second + time.Second/2) // the first look was after 11 s at most
		<-conn.hold
		time.Sleep(time.Minute)
		select {
		case err := <-ended:
			t.Errorf("the subscription has ended: %v", err)
		default:
		}
		if n := len(made()); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
}
