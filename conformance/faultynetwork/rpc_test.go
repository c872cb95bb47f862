package faultynetwork_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/faultynetwork"
)

var (
	_ conformance.Faults = (*faultynetwork.RPC)(nil)
	_ conformance.Faults = (*faultynetwork.Link)(nil)
)

// marked returns a context whose RPCs carry the key.
func marked(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "test-op", "say")
}

func heldRPCs(t *testing.T, l *faultynetwork.RPC, n int) {
	t.Helper()
	await(t, "held requests", func(ctx context.Context) error { return l.AwaitHeld(ctx, n) })
}

func TestRPCPassesEverything(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	c := newClient(t, newRPC(t, s, nil))
	var header, trailer metadata.MD
	ctx := metadata.AppendToOutgoingContext(c.bounded(), "greeting", "hi", "greeting", "ho")
	got, err := c.try(ctx, "this", grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || got != "you said this" {
		t.Fatalf("got %q, %v", got, err)
	}
	if fmt.Sprint(header.Get("head")) != "[hi ho]" || fmt.Sprint(trailer.Get("tail")) != "[hi ho]" {
		t.Errorf("got the header %v and the trailer %v, want what was sent", header, trailer)
	}
	long := strings.Repeat("long ", 2<<20)
	if got, err := c.try(ctx, long, grpc.UseCompressor(gzip.Name)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("beyond the server's limit: got %d bytes, %v; want the server's own refusal", len(got), err)
	}
	if got, err := c.try(ctx, long[:2<<20], grpc.UseCompressor(gzip.Name)); err != nil || got != "you said "+long[:2<<20] {
		t.Errorf("compressed: got %d bytes, %v", len(got), err)
	}
}

func TestRPCPassesErrors(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	c := newClient(t, newRPC(t, s, nil))
	var trailer metadata.MD
	_, err := c.try(metadata.AppendToOutgoingContext(c.bounded(), "greeting", "hi"), "fail please", grpc.Trailer(&trailer))
	st := status.Convert(err)
	if st.Code() != codes.FailedPrecondition || st.Message() != "no" || len(st.Details()) != 1 {
		t.Fatalf("got %v with the details %v", st, st.Details())
	}
	if info, ok := st.Details()[0].(*errdetails.ErrorInfo); !ok || info.Reason != "fail please" {
		t.Errorf("got the details %v", st.Details())
	}
	if got := trailer.Get("tail"); len(got) != 1 || got[0] != "hi" {
		t.Errorf("got the trailer %v", trailer)
	}
	if err := c.conn.Invoke(c.bounded(), "/test.Teller/Unknown", wrapperspb.String(""), new(wrapperspb.StringValue)); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that the server does not have: got %v", err)
	}
	gone := newClient(t, newRPC(t, &teller{addr: "127.0.0.1:1"}, nil))
	gone.fails(gone.bounded(), "hello", codes.Unavailable)
}

func TestRPCPassesStreams(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	c := newClient(t, newRPC(t, s, nil))
	spelling, err := c.conn.NewStream(c.bounded(), &grpc.StreamDesc{ServerStreams: true}, "/test.Teller/Spell")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(spelling.SendMsg(wrapperspb.String("abc")), spelling.CloseSend()); err != nil {
		t.Fatal(err)
	}
	expect(t, spelling, "a", "b", "c")
	if err := spelling.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
	talk, err := c.conn.NewStream(c.bounded(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Teller/Talk")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} { // each is answered before the next is sent
		if err := talk.SendMsg(wrapperspb.String(text)); err != nil {
			t.Fatal(err)
		}
		expect(t, talk, text)
	}
	if err := talk.CloseSend(); err != nil {
		t.Fatal(err)
	}
	expect(t, talk, "bye")
}

func expect(t *testing.T, stream grpc.ClientStream, want ...string) {
	t.Helper()
	for _, text := range want {
		var got wrapperspb.StringValue
		if err := stream.RecvMsg(&got); err != nil || got.Value != text {
			t.Fatalf("got %q, %v; want %q", got.Value, err, text)
		}
	}
}

// TestRPCPassesTheEndOfContexts checks that the server sees a deadline and a cancellation.
func TestRPCPassesTheEndOfContexts(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	s.met, s.release = make(chan context.Context, 1), make(chan struct{})
	defer close(s.release)
	c := newClient(t, newRPC(t, s, nil))
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	ended := c.saying(ctx, "never")
	there := <-s.met
	if deadline, ok := there.Deadline(); !ok || time.Until(deadline) > bound {
		t.Errorf("the deadline at the server: %v, %t", deadline, ok)
	}
	cancel()
	c.ends(ended, codes.Canceled)
	select {
	case <-there.Done():
	case <-c.bounded().Done():
		t.Error("the server did not hear of the cancellation")
	}
}

func TestRPCDelay(t *testing.T) {
	t.Parallel()
	const d = 20 * time.Millisecond
	l := newRPC(t, newTeller(t), nil)
	l.Delay(d)
	c := newClient(t, l)
	began := time.Now()
	c.says("slow")
	if took := time.Since(began); took < 2*d {
		t.Errorf("an RPC took %v, want at least %v", took, 2*d)
	}
}

func TestRPCCut(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	s.met, s.release = make(chan context.Context, 10), make(chan struct{})
	l := newRPC(t, s, nil)
	c := newClient(t, l)
	ended := c.saying(c.bounded(), "under way")
	<-s.met
	l.Cut()
	c.ends(ended, codes.Unavailable)
	c.fails(c.bounded(), "refused", codes.Unavailable)
	l.Reset()
	close(s.release)
	c.says("again")
}

func TestRPCBlackhole(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	l := newRPC(t, s, nil)
	before, during := newClient(t, l), newClient(t, l)
	before.says("hello")
	s.hears(t, "hello")
	l.Blackhole()
	lost := before.saying(before.bounded(), "lost")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := during.try(ctx, "lost", grpc.WaitForReady(true)); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a new connection: got %v, want no answer", err)
	}
	await(t, "the connections", func(ctx context.Context) error { return l.AwaitConnections(ctx, 2) })
	l.Reset()
	before.ends(lost, codes.Unavailable)
	before.says("again")
	during.says("too")
	s.hears(t, "again", "too")
}

func TestRPCDropReplies(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	l := newRPC(t, s, nil)
	c, other := newClient(t, l), newClient(t, l)
	c.says("hello")
	other.says("hello")
	s.hears(t, "hello", "hello")
	l.DropReplies(0)
	c.fails(c.bounded(), "first", codes.Unavailable)
	s.hears(t, "first") // the server performed it
	await(t, "a dropped answer", func(ctx context.Context) error { return l.AwaitDropped(ctx, 1) })
	// On the new connection, however long it takes to connect. An error is an answer too.
	c.fails(c.bounded(), "fail", codes.Unavailable, grpc.WaitForReady(true))
	s.hears(t, "fail")
	if n := l.Dropped(); n != 2 {
		t.Errorf("%d answers were dropped, want 2", n)
	}
	l.DropReplies(1)
	other.says("one")
	other.fails(other.bounded(), "two", codes.Unavailable)
	s.hears(t, "one", "two")
	if n := l.Dropped(); n != 1 {
		t.Errorf("%d answers were dropped since, want 1", n)
	}
	l.Reset()
	c.says("again")
	other.says("again")
}

// TestRPCDropsWholeStreams checks that the answer of a stream is dropped as a whole, once the
// server has sent all of it.
func TestRPCDropsWholeStreams(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	l := newRPC(t, s, nil)
	c := newClient(t, l)
	l.DropReplies(0)
	spelling, err := c.conn.NewStream(c.bounded(), &grpc.StreamDesc{ServerStreams: true}, "/test.Teller/Spell")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(spelling.SendMsg(wrapperspb.String("abc")), spelling.CloseSend()); err != nil {
		t.Fatal(err)
	}
	var got wrapperspb.StringValue
	if err := spelling.RecvMsg(&got); status.Code(err) != codes.Unavailable {
		t.Errorf("got %q, %v; want nothing of the answer", got.Value, err)
	}
	s.hears(t, "abc")
	l.DropReplies(1)
	spelling, err = c.conn.NewStream(c.bounded(), &grpc.StreamDesc{ServerStreams: true}, "/test.Teller/Spell", grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(spelling.SendMsg(wrapperspb.String("abc")), spelling.CloseSend()); err != nil {
		t.Fatal(err)
	}
	expect(t, spelling, "a", "b", "c")
}

func TestRPCHeldRequestsOutliveTheirSender(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	l := newRPC(t, s, nil)
	impatient, gone, patient := newClient(t, l), newClient(t, l), newClient(t, l)
	l.Hold(0)
	ctx, cancel := context.WithCancel(t.Context())
	given := impatient.saying(ctx, "given up")
	heldRPCs(t, l, 1)
	lost := gone.saying(gone.bounded(), "of a dead sender")
	heldRPCs(t, l, 2)
	short, done := context.WithTimeout(t.Context(), bound)
	defer done()
	answered := patient.saying(short, "patient")
	heldRPCs(t, l, 3)
	cancel()
	impatient.ends(given, codes.Canceled)
	if err := gone.conn.Close(); err != nil {
		t.Fatal(err)
	}
	gone.ends(lost, codes.Canceled)
	s.silent(t)
	heldRPCs(t, l, 3)
	l.Reset()
	await(t, "answers", l.AwaitAnswered)
	patient.ends(answered, codes.OK)
	got := map[string]int{}
	for range 3 {
		got[<-s.told]++
	}
	if got["given up"] != 1 || got["of a dead sender"] != 1 || got["patient"] != 1 {
		t.Errorf("the server heard %v, want each once", got)
	}
	patient.says("again")
}

func TestRPCHoldLetsRequestsPassFirst(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	l := newRPC(t, s, nil)
	l.Hold(1)
	c := newClient(t, l)
	c.says("begin")
	s.hears(t, "begin")
	first, second := c.saying(c.bounded(), "commit"), c.saying(c.bounded(), "commit")
	heldRPCs(t, l, 1)
	s.silent(t)
	l.Reset()
	c.ends(first, codes.OK)
	c.ends(second, codes.OK)
	s.hears(t, "commit", "commit")
}

func TestRPCStrand(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	l := newRPC(t, s, nil)
	sender, idle := newClient(t, l), newClient(t, l)
	idle.says("hello")
	s.hears(t, "hello")
	l.Hold(0)
	first := sender.saying(sender.bounded(), "first copy")
	heldRPCs(t, l, 1)
	l.DropClientSide()
	sender.ends(first, codes.Unavailable)
	sender.says("second copy")
	idle.disconnected()
	idle.says("passes")
	s.hears(t, "second copy", "passes")
	l.Reset()
	s.hears(t, "first copy")
	await(t, "answers", l.AwaitAnswered)
}

// TestRPCHarmsOnlyWhatCarriesTheKey checks that RPCs without the key pass and do not count.
func TestRPCHarmsOnlyWhatCarriesTheKey(t *testing.T) {
	t.Parallel()
	s := newTeller(t)
	l := newRPC(t, s, &faultynetwork.RPCOptions{Only: "test-op"})
	c := newClient(t, l)
	l.DropReplies(1)
	for range 3 {
		c.says("background")
	}
	if _, err := c.try(marked(c.bounded()), "one"); err != nil {
		t.Fatal(err)
	}
	c.says("background")
	if _, err := c.try(marked(c.bounded()), "two"); status.Code(err) != codes.Unavailable {
		t.Fatalf("got %v, want the answer dropped", err)
	}
	l.Reset()
	l.Hold(0)
	ended := c.saying(marked(c.bounded()), "held")
	heldRPCs(t, l, 1)
	c.says("background")
	l.Reset()
	c.ends(ended, codes.OK)
}

func TestRPCCloseEndsEverything(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(l *faultynetwork.RPC){
		"black hole": (*faultynetwork.RPC).Blackhole,
		"held":       func(l *faultynetwork.RPC) { l.Hold(0) },
		"delayed":    func(l *faultynetwork.RPC) { l.Delay(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := faultynetwork.NewRPC(t.Context(), newTeller(t).addr, nil)
			if err != nil {
				t.Fatal(err)
			}
			c := newClient(t, l)
			c.says("hello")
			harm(l)
			ended := make(chan error, 1)
			go func() {
				_, err := c.try(c.bounded(), "lost")
				ended <- err
			}()
			if name == "held" {
				heldRPCs(t, l, 1)
			}
			if err := l.Close(); err != nil { // returns when no handler is left
				t.Fatal(err)
			}
			c.ends(ended, codes.Unavailable)
		})
	}
}
