package faultynetwork_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/tapestore/tapestore/conformance/faultynetwork"
)

// bound ends a test that would otherwise hang. It says nothing about speed.
const bound = 5 * time.Minute

// echo is a server that sends back each line that it receives, and remembers it.
type echo struct {
	addr string
	told chan string
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{addr: listener.Addr().String(), told: make(chan string, 100)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { e.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait() // hangs if the link leaves a connection open
	})
	return e
}

func (e *echo) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		e.told <- lines.Text()
		if _, err := fmt.Fprintln(conn, lines.Text()); err != nil {
			return
		}
	}
}

func newLink(t *testing.T, target string) *faultynetwork.Link {
	t.Helper()
	l, err := faultynetwork.New(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// caller is the program's side of one connection.
type caller struct {
	t    *testing.T
	conn *net.TCPConn
	in   *bufio.Reader
}

func dial(t *testing.T, l *faultynetwork.Link) caller {
	t.Helper()
	d := net.Dialer{Timeout: bound}
	conn, err := d.DialContext(t.Context(), "tcp", l.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(bound)); err != nil {
		t.Fatal(err)
	}
	return caller{t, conn.(*net.TCPConn), bufio.NewReader(conn)}
}

// refused fails the test unless a new connection is reset at once.
func refused(t *testing.T, l *faultynetwork.Link) {
	t.Helper()
	d := net.Dialer{Timeout: bound}
	conn, err := d.DialContext(t.Context(), "tcp", l.Address())
	if err != nil {
		return // the reset came early
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(bound)); err != nil {
		t.Fatal(err)
	}
	caller{t, conn.(*net.TCPConn), bufio.NewReader(conn)}.ended()
}

func (c caller) say(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.conn, line); err != nil {
		c.t.Fatalf("say %q: %v", line, err)
	}
}

func (c caller) hears(want string) {
	c.t.Helper()
	if got, err := c.in.ReadString('\n'); err != nil || got != want+"\n" {
		c.t.Fatalf("heard %q, %v; want %q", got, err, want)
	}
}

// ended fails the test unless the connection is closed without further data.
func (c caller) ended() {
	c.t.Helper()
	got, err := c.in.ReadString('\n')
	if timeout := net.Error(nil); err == nil || got != "" || errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Fatalf("heard %q, %v; want the end of the connection", got, err)
	}
}

func (c caller) close() {
	c.t.Helper()
	if err := c.conn.Close(); err != nil {
		c.t.Fatal(err)
	}
}

// hears fails the test unless want is the next line that the server received.
func (e *echo) hears(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-e.told:
		if got != want {
			t.Fatalf("the server was told %q, want %q", got, want)
		}
	case <-time.After(bound):
		t.Fatalf("the server was not told %q", want)
	}
}

func (e *echo) hearsNothing(t *testing.T) {
	t.Helper()
	select {
	case got := <-e.told:
		t.Fatalf("the server was told %q, want nothing", got)
	default:
	}
}

func await(t *testing.T, what string, wait func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if err := wait(ctx); err != nil {
		t.Fatalf("await %s: %v", what, err)
	}
}

func held(t *testing.T, l *faultynetwork.Link, n int) {
	t.Helper()
	await(t, "held requests", func(ctx context.Context) error { return l.AwaitHeld(ctx, n) })
}

func TestPassesBothWays(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	l := newLink(t, e.addr)
	c := dial(t, l)
	for n := range 3 {
		c.say(fmt.Sprint("line ", n))
		c.hears(fmt.Sprint("line ", n))
	}
	c.say("last")
	if err := c.conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.hears("last")
	if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Fatalf("got %v, want the end that the server made", err)
	}
}

func TestTheServerIsGone(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	gone := newLink(t, "127.0.0.1:1")
	refused(t, gone)
	gone.Retarget(e.addr)
	c := dial(t, gone)
	c.say("hello")
	c.hears("hello")
}

func TestDelay(t *testing.T) {
	t.Parallel()
	const d = 20 * time.Millisecond
	l := newLink(t, newEcho(t).addr)
	l.Delay(d)
	c := dial(t, l)
	began := time.Now()
	c.say("slow")
	c.hears("slow")
	if took := time.Since(began); took < 2*d {
		t.Errorf("a round trip took %v, want at least %v", took, 2*d)
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	l := newLink(t, newEcho(t).addr)
	before := dial(t, l)
	before.say("hello")
	before.hears("hello")
	l.Cut()
	before.ended()
	refused(t, l)
	l.Reset()
	after := dial(t, l)
	after.say("again")
	after.hears("again")
}

func TestBlackhole(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	l := newLink(t, e.addr)
	before := dial(t, l)
	before.say("hello")
	before.hears("hello")
	e.hears(t, "hello")
	l.Blackhole()
	during := dial(t, l)
	await(t, "the connection", func(ctx context.Context) error { return l.AwaitConnections(ctx, 2) })
	before.say("lost")
	during.say("lost")
	l.Reset()
	before.ended()
	during.ended()
	after := dial(t, l)
	after.say("again")
	after.hears("again")
	e.hears(t, "again")
}

func TestDropReplies(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	l := newLink(t, e.addr)
	before, idle := dial(t, l), dial(t, l)
	before.say("hello")
	before.hears("hello")
	e.hears(t, "hello")
	l.DropReplies(0)
	before.say("first")
	before.ended()
	e.hears(t, "first")
	await(t, "a dropped answer", func(ctx context.Context) error { return l.AwaitDropped(ctx, 1) })
	during := dial(t, l)
	during.say("second")
	during.ended()
	e.hears(t, "second")
	if n := l.Dropped(); n != 2 {
		t.Errorf("%d answers were dropped, want 2", n)
	}
	l.DropReplies(1)
	idle.say("one")
	idle.hears("one")
	idle.say("two")
	idle.ended()
	e.hears(t, "one")
	e.hears(t, "two")
	if n := l.Dropped(); n != 1 {
		t.Errorf("%d answers were dropped since, want 1", n)
	}
	l.Reset()
	after := dial(t, l)
	after.say("again")
	after.hears("again")
}

func TestHeldRequestsOutliveTheirSender(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	l := newLink(t, e.addr)
	one, waits := dial(t, l), dial(t, l)
	one.say("before")
	one.hears("before")
	e.hears(t, "before")
	l.Hold(0)
	one.say("late")
	held(t, l, 1)
	one.close()
	waits.say("patient")
	held(t, l, 2)
	during := dial(t, l)
	during.say("opened meanwhile")
	held(t, l, 3)
	during.close()
	e.hearsNothing(t)
	l.Reset()
	await(t, "answers", l.AwaitAnswered)
	waits.hears("patient")
	got := map[string]int{}
	for range 3 {
		select {
		case line := <-e.told:
			got[line]++
		case <-time.After(bound):
			t.Fatalf("the server was told %v only", got)
		}
	}
	if got["late"] != 1 || got["patient"] != 1 || got["opened meanwhile"] != 1 {
		t.Errorf("the server was told %v, want each once", got)
	}
	waits.say("again")
	waits.hears("again")
}

func TestHoldLetsPiecesPassFirst(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	l := newLink(t, e.addr)
	l.Hold(1)
	c := dial(t, l)
	c.say("begin")
	c.hears("begin")
	e.hears(t, "begin")
	c.say("commit")
	held(t, l, 1)
	e.hearsNothing(t)
	l.Reset()
	c.hears("commit")
}

func TestStrand(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	l := newLink(t, e.addr)
	sender, idle := dial(t, l), dial(t, l)
	await(t, "the connections", func(ctx context.Context) error { return l.AwaitConnections(ctx, 2) })
	l.Hold(0)
	sender.say("first copy")
	held(t, l, 1)
	l.DropClientSide()
	sender.ended()
	idle.ended()
	second := dial(t, l)
	second.say("second copy")
	second.hears("second copy")
	e.hears(t, "second copy")
	l.Reset()
	e.hears(t, "first copy")
	await(t, "answers", l.AwaitAnswered)
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l := newLink(t, newEcho(t).addr)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.AwaitDropped(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(l *faultynetwork.Link){
		"black hole": (*faultynetwork.Link).Blackhole,
		"held":       func(l *faultynetwork.Link) { l.Hold(0) },
		"delayed":    func(l *faultynetwork.Link) { l.Delay(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := faultynetwork.New(t.Context(), newEcho(t).addr)
			if err != nil {
				t.Fatal(err)
			}
			harm(l)
			c := dial(t, l)
			c.say("hello")
			if err := l.Close(); err != nil { // returns when no goroutine is left
				t.Fatal(err)
			}
			c.ended()
		})
	}
}
