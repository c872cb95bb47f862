package tapeserver

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// stuckStream is a stream whose client reads nothing.
type stuckStream struct {
	grpc.ServerStream
	gone chan struct{}
}

func (s *stuckStream) SendMsg(any) error {
	<-s.gone
	return io.EOF
}

// A page that has no room is refused without waiting, and leaves nothing of its room taken.
func TestAPageWithoutRoomIsNotAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(memory.New(nil).Open(), &Options{NoMatcher: true})
		room := semaphore.NewWeighted(s.opts.Limits.BytesInFlight)
		c := &call{s: s, ctx: t.Context(), conn: &conn{bytes: semaphore.NewWeighted(1 << 30)}, client: s.clients.enter("client"), late: make(chan struct{}, 1)}
		c.client.bytes = room
		ctx := (&admittedStream{call: c}).Context()
		if !room.TryAcquire(1) {
			t.Fatal("no room")
		}
		began, all := time.Now(), s.opts.Limits.BytesInFlight
		for range all/listReply + 1 {
			end, ok := s.tryAdmitPage(ctx)
			if !ok {
				break
			}
			defer end()
		}
		if _, ok := s.tryAdmitPage(ctx); ok || !time.Now().Equal(began) {
			t.Errorf("a page without room: %v after %v, want no page at once", ok, time.Since(began))
		}
		held := s.inFlight.used.Load()
		if left := all - held - 1; left >= listReply || !room.TryAcquire(left) || !c.conn.bytes.TryAcquire(1<<30-held) {
			t.Errorf("pages hold %d of %d bytes, and a refused page holds more", held, all)
		}
	})
}

// firstSend is a stream that ends with the first entry that it is sent.
type firstSend struct {
	grpc.ServerStream
	ctx  context.Context
	sent func()
}

func (s firstSend) Context() context.Context     { return s.ctx }
func (s firstSend) SendHeader(metadata.MD) error { return nil }
func (s firstSend) Send(*tapepb.EventEntry) error {
	s.sent()
	return io.EOF
}

// The time for which predicates of a page are evaluated does not count as time for which the client does not
// read, because no entry of the page is sent before.
func TestAPageIsSelectedBeforeItIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(memory.New(nil).Open(), &Options{NoMatcher: true})
		defer s.tail.Close(context.Background())
		begun, err := s.tape.BeginRun(t.Context(), tape.BeginRunRequest{Key: tape.RunKey{App: "a", User: "u", Session: "s", Invocation: "i"}, Owner: "o", TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		const others = 10
		b := runstore.NewBatch(begun.ID, runstore.Unguarded("a test"))
		for range others {
			b.Append("decision", []byte("{}"))
		}
		if _, err := s.store.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		c := &call{s: s, ctx: t.Context(), conn: &conn{bytes: semaphore.NewWeighted(1 << 30)}, client: s.clients.enter("client"), late: make(chan struct{}, 1)}
		evaluated := int64(0)
		stream := firstSend{ctx: (&admittedStream{call: c}).Context(), sent: func() {
			for _, n := range s.predicates.Counts() {
				evaluated += n
			}
		}}
		service := &service{tape: s.tape, tail: s.tail, opts: s.opts, predicates: &s.predicates, draining: s.drain.Done()}
		req := &tapepb.SubscribeBySubjectRequest{PredicateCel: `kind == "run" || payload.missing == 1`} // fails for the others
		if err := service.SubscribeBySubject(req, stream); err != io.EOF {
			t.Fatal(err)
		}
		if evaluated != others {
			t.Errorf("%d entries behind the first were evaluated before it was sent, want %d", evaluated, others)
		}
	})
}

// A stream is not ended for the time that its own store takes, but for that of its client.
func TestAPageIsLateFromItsFirstMessageOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(memory.New(nil).Open(), &Options{NoMatcher: true, Limits: Limits{SendTimeout: time.Minute}})
		c := &call{s: s, ctx: t.Context(), conn: &conn{bytes: semaphore.NewWeighted(1 << 30)}, client: s.clients.enter("client"), late: make(chan struct{}, 1)}
		client := &stuckStream{gone: make(chan struct{})}
		stream := &admittedStream{ServerStream: client, call: c}
		end, err := beginPage(stream.Context(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // the store reads the page
		synctest.Wait()
		if len(c.late) > 0 {
			t.Fatal("the client is late before anything was sent to it")
		}
		began := time.Now()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_ = stream.SendMsg(&tapepb.GetRunRequest{})
		}()
		<-c.late
		if took := time.Since(began); took != time.Minute {
			t.Errorf("late after %v, want a minute", took)
		}
		close(client.gone)
		<-sent
		end()
	})
}
