package tapeserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// logged is a log without its times.
func logged() (*slog.Logger, func() string) {
	out := &strings.Builder{}
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return log, func() string {
		defer out.Reset()
		return out.String()
	}
}

func TestTheLogSaysWhenAStoreFailsAndRecovers(t *testing.T) {
	t.Parallel()
	log, lines := logged()
	now := time.Unix(0, 0)
	w := newWatch(log)
	w.now = func() time.Time { return now }
	full := statusOf(&runstore.OpError{Op: "commit", Err: runstore.ErrUnavailable, Cause: syscall.ENOSPC})
	want := func(step, text string) {
		t.Helper()
		if got := lines(); got != text {
			t.Errorf("%s: %q, want %q", step, got, text)
		}
	}
	ctx := t.Context()
	w.call(ctx, "CompleteEffect", nil)
	w.call(ctx, "CompleteEffect", statusOf(tape.ErrNoSuchRun))
	want("a store that works", "")
	w.call(ctx, "CompleteEffect", full)
	want("the first failure", `level=ERROR msg="the store fails" calls=writes failed=1 error="tape store: commit: unavailable: no space left on device"`+"\n")
	w.call(ctx, "CompleteEffect", full)
	now = now.Add(time.Second)
	w.call(ctx, "BeginRun", full)
	w.call(ctx, "GetRun", nil)
	want("more failures, and reads that work", "")
	now = now.Add(time.Minute)
	w.call(ctx, "BeginRun", full)
	want("failures that last", `level=ERROR msg="the store fails" calls=writes failed=4 error="tape store: commit: unavailable: no space left on device"`+"\n")
	w.call(ctx, "BeginRun", statusOf(&runstore.FencedError{Presented: 1, Current: 2}))
	want("an answer", `level=INFO msg="the store answers again" calls=writes failed=4 after=1m1s`+"\n")
	now = now.Add(time.Second)
	w.call(ctx, "BeginRun", full)
	w.call(ctx, "BeginRun", nil)
	want("a failure right after", "")

	w.ping(errors.New("no route"))
	want("a ping that fails", `level=ERROR msg="the store fails" calls=reads failed=1 error="no route"`+"\n")
	w.ping(nil)
	want("a ping", `level=INFO msg="the store answers again" calls=reads failed=1 after=0s`+"\n")

	gone, cancel := context.WithCancel(ctx)
	cancel()
	now = now.Add(time.Hour)
	w.call(gone, "BeginRun", full)
	want("a call whose client is gone", "")
}

func TestTheLogNamesDamage(t *testing.T) {
	t.Parallel()
	log, lines := logged()
	w := newWatch(log)
	for range 3 {
		w.call(t.Context(), "GetEffect", statusOf(tape.ErrFormat))
	}
	if got := lines(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "stored data is damaged or lost") || !strings.Contains(got, "GetEffect") {
		t.Errorf("log: %q, want one line", got)
	}
	w.call(t.Context(), "BeginEffect", beginEffectStatus(runstore.ErrStoreBehind))
	if got := lines(); !strings.Contains(got, "stored data is damaged or lost") || !strings.Contains(got, "BeginEffect") {
		t.Errorf("log: %q, want a line although the client is told PERMISSION_DENIED", got)
	}
	w.call(t.Context(), "BeginEffect", beginEffectStatus(tape.ErrNoSuchRun))
	w.call(t.Context(), "EndRun", statusOf(tape.ErrRefused))
	if got := lines(); got != "" {
		t.Errorf("log: %q, want nothing of a refusal", got)
	}
}

// exhausted is a listener that is out of descriptors twice.
type exhausted struct {
	net.Listener
	fails int
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.fails--; l.fails >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	c, _ := net.Pipe()
	return c, nil
}

func TestTheLogSaysWhenDescriptorsRunOut(t *testing.T) {
	t.Parallel()
	log, lines := logged()
	l := newListener(&exhausted{fails: 2}, "grpc", Limits{}.withDefaults(), log)
	for range 2 {
		if _, err := l.Accept(); err == nil {
			t.Fatal("accepted a connection")
		}
	}
	if got, want := lines(), `level=ERROR msg="cannot accept connections" error="accept: too many open files"`+"\n"; got != want {
		t.Errorf("log: %q, want %q", got, want)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if got, want := lines(), "level=INFO msg=\"accepting connections again\"\n"; got != want {
		t.Errorf("log: %q, want %q", got, want)
	}
}

// A server has all of its limit back once its calls have ended.
func TestHoldsAreGivenBack(t *testing.T) {
	t.Parallel()
	limits := Limits{BytesInFlight: 100}.withDefaults()
	log, _ := logged()
	l := newListener(nil, "grpc", limits, log)
	raw, _ := net.Pipe()
	c := l.add(raw)
	all, cl := newBytesInFlight(limits), newClients(limits).enter("client")
	get := func(n int64) *hold {
		t.Helper()
		h, err := all.acquire(t.Context(), c, cl, n, time.Nanosecond)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	free := func(step string) {
		t.Helper()
		if !all.total.TryAcquire(100) {
			t.Fatalf("%s: not everything was given back", step)
		}
		all.total.Release(100)
	}
	h := get(70)
	if _, err := all.acquire(t.Context(), c, cl, 10, time.Nanosecond); err == nil {
		t.Error("a connection has more than its share of 75")
	}
	h.shrink(30)
	h.shrink(50) // has no effect
	part := h.split(40)
	h.release()
	part.release()
	part.release()
	free("shrunk and split")

	h = get(70)
	c.await(&call{}, h, time.Hour)
	c.taken(h)
	c.taken(h)
	free("taken")

	h = get(1000) // more than there is
	c.await(&call{}, h, time.Hour)
	_ = c.Close()
	free("closed")
	c.taken(h)
	h = get(10)
	c.await(&call{}, h, time.Hour)
	free("handed to a closed connection")
}

func TestTheLogDoesNotReportAClosedListener(t *testing.T) {
	t.Parallel()
	log, lines := logged()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(lis, "grpc", Limits{}.withDefaults(), log)
	_ = lis.Close()
	if _, err := l.Accept(); err == nil {
		t.Error("accepted a connection")
	}
	if got := lines(); got != "" {
		t.Errorf("log: %q, want nothing", got)
	}
}
