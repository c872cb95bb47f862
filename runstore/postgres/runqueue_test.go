package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// sender stands in for the server: each group that the queues send waits for one value in proceed.
type sender struct {
	lanes   *postgres.RunQueues
	sent    chan []*postgres.Request
	ctx     chan context.Context
	proceed chan struct{}
	calls   sync.WaitGroup
}

func newSender() *sender {
	s := &sender{sent: make(chan []*postgres.Request, 100), ctx: make(chan context.Context, 100), proceed: make(chan struct{}, 100)}
	s.lanes = postgres.NewRunQueues(func(ctx context.Context, group []*postgres.Request) {
		s.sent <- group
		s.ctx <- ctx
		<-s.proceed
	})
	return s
}

// send starts a request and waits until it is sent, or waits in its queue.
func (s *sender) send(t *testing.T, r *postgres.Request) (answer chan error) {
	t.Helper()
	answer = make(chan error, 1)
	before, busy := s.lanes.Waiting("run")
	s.calls.Go(func() { answer <- s.lanes.Send(r) })
	await(t, "the request is in its queue", func() bool {
		n, now := s.lanes.Waiting("run")
		return !busy && now || n > before
	})
	return answer
}

// end lets all groups proceed.
func (s *sender) end() {
	close(s.proceed)
	s.calls.Wait()
}

func event(data string) runstore.NewEvent { return runstore.NewEvent{Kind: "test", Data: []byte(data)} }

// A request that waits is withdrawn when its context ends: it was surely not sent.
func TestWaitingRequestIsWithdrawn(t *testing.T) {
	t.Parallel()
	s := newSender()
	s.send(t, postgres.NewRequest(t.Context(), "run", postgres.OrderExtend, event("first")))
	ctx, cancel := context.WithCancel(t.Context())
	withdrawn := s.send(t, postgres.NewRequest(ctx, "run", postgres.OrderExtend, event("withdrawn")))
	s.send(t, postgres.NewRequest(t.Context(), "run", postgres.OrderExtend, event("second")))
	cancel()
	if err := <-withdrawn; !errors.Is(err, context.Canceled) || postgres.ErrClass(err) != "retryable" {
		t.Errorf("got %v with the class %s, want a cancellation before it was sent", err, postgres.ErrClass(err))
	}
	s.end()
	for want := range slices.Values([]string{"first", "second"}) {
		group := <-s.sent
		if len(group) != 1 || string(group[0].Events()[0].Data) != want {
			t.Errorf("sent %v, want only %s", group, want)
		}
	}
	await(t, "the queue is gone", func() bool {
		_, busy := s.lanes.Waiting("run")
		return !busy
	})
}

// The end of one caller's context does not end the statement that the caller shares with others.
// The caller returns at once, with an ambiguous outcome.
func TestOneCallersEndIsNotItsNeighbours(t *testing.T) {
	t.Parallel()
	s := newSender()
	s.send(t, postgres.NewRequest(t.Context(), "run", postgres.OrderExtend))
	ctxs, cancels, answers := make([]context.Context, 3), make([]context.CancelFunc, 3), make([]chan error, 3)
	for i := range 3 {
		ctxs[i], cancels[i] = context.WithCancel(t.Context())
		answers[i] = s.send(t, postgres.NewRequest(ctxs[i], "run", postgres.OrderExtend))
	}
	<-s.sent
	<-s.ctx
	s.proceed <- struct{}{}
	if group := <-s.sent; len(group) != 3 {
		t.Fatalf("a group of %d, want 3", len(group))
	}
	shared := <-s.ctx
	for i := range 2 {
		cancels[i]()
		if err := <-answers[i]; !errors.Is(err, context.Canceled) || postgres.ErrClass(err) != "ambiguous" {
			t.Errorf("caller %d: got %v with the class %s, want a cancellation of unknown outcome", i, err, postgres.ErrClass(err))
		}
		if shared.Err() != nil {
			t.Fatal("the statement ended with a caller")
		}
	}
	cancels[2]()
	<-shared.Done() // nobody waits for it any more
	s.end()
}

// Releases run before acquires; otherwise the order is that of arrival.
func TestOrderWithinAGroup(t *testing.T) {
	t.Parallel()
	s := newSender()
	s.send(t, postgres.NewRequest(t.Context(), "run", postgres.OrderExtend))
	for i, place := range []int{2, 1, 0, 2, 0, 1} {
		order := []func() *postgres.Request{
			func() *postgres.Request {
				return postgres.NewRequest(t.Context(), "run", postgres.OrderExtend, event(fmt.Sprint("extends ", i)))
			},
			func() *postgres.Request {
				return postgres.NewRequest(t.Context(), "run", postgres.OrderEnd, event(fmt.Sprint("ends ", i)))
			},
			func() *postgres.Request {
				return postgres.NewRequest(t.Context(), "run", postgres.OrderAcquire, event(fmt.Sprint("takes ", i)))
			},
		}
		s.send(t, order[place]())
	}
	s.end()
	<-s.sent
	var got []string
	for _, r := range <-s.sent {
		got = append(got, string(r.Events()[0].Data))
	}
	if want := []string{"extends 2", "extends 4", "ends 1", "ends 5", "takes 0", "takes 3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A group has bounds: of requests, of events, which share one transaction's
// positions, and of bytes.
func TestBoundsOfAGroup(t *testing.T) {
	t.Parallel()
	many := make([]runstore.NewEvent, runstore.MaxEvents)
	big := event(string(make([]byte, 3<<20)))
	for name, tc := range map[string]struct {
		requests int
		events   []runstore.NewEvent
		want     []int
	}{
		"requests":        {300, nil, []int{128, 128, 44}},
		"events":          {20, many, []int{16, 4}},
		"bytes":           {3, []runstore.NewEvent{big}, []int{1, 1, 1}},
		"one that is big": {1, []runstore.NewEvent{big, big}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSender()
			s.send(t, postgres.NewRequest(t.Context(), "run", postgres.OrderExtend))
			for range tc.requests {
				s.send(t, postgres.NewRequest(t.Context(), "run", postgres.OrderExtend, tc.events...))
			}
			s.end()
			<-s.sent
			close(s.sent)
			var got []int
			for group := range s.sent {
				got = append(got, len(group))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got groups of %v, want %v", got, tc.want)
			}
		})
	}
}

// Requests of other runs do not wait, and what a caller does with its bytes after it has left
// changes nothing that is sent.
func TestRunQueuesAreIndependent(t *testing.T) {
	t.Parallel()
	s := newSender()
	s.send(t, postgres.NewRequest(t.Context(), "run", postgres.OrderExtend))
	s.calls.Go(func() { _ = s.lanes.Send(postgres.NewRequest(t.Context(), "other", postgres.OrderExtend)) })
	for range 2 {
		<-s.sent // while none is answered
	}
	data := []byte("as given")
	w := runstore.Writes{Events: []runstore.NewEvent{{Data: data}}}
	w.Put("record", data)
	s.send(t, postgres.NewWriteRequest(t.Context(), "run", postgres.OrderExtend, w))
	copy(data, "reused!!")
	s.end()
	r := (<-s.sent)[0]
	if event, value := string(r.Events()[0].Data), string(r.Values()[0]); event != "as given" || value != "as given" {
		t.Errorf("sent the event %q and the value %q, want what was given", event, value)
	}
}

// A heartbeat does not queue behind a group that waits for a connection, even if an earlier group, whose
// callers have left, gets its own meanwhile.
func TestHeartbeatPassesAGroupWithoutAConnection(t *testing.T) {
	t.Parallel()
	s := newSender()
	defer s.end()
	next := func() *postgres.Request { return (<-s.sent)[0] }
	s.send(t, postgres.NewRequest(t.Context(), "run", postgres.OrderExtend))
	next()
	ctx, leave := context.WithCancel(t.Context())
	left := s.send(t, postgres.NewRequest(ctx, "run", postgres.OrderExtend))
	s.proceed <- struct{}{}
	late := next().Copy()
	leave()
	<-left
	s.send(t, postgres.NewRequest(t.Context(), "run", postgres.OrderExtend))
	s.proceed <- struct{}{}
	next()
	late.GotConn()
	s.calls.Go(func() { _ = s.lanes.Send(postgres.NewHeartbeat(t.Context(), "run")) })
	await(t, "the heartbeat is sent or queued", func() bool {
		n, _ := s.lanes.Waiting("run")
		return n > 0 || len(s.sent) > 0
	})
	if n, _ := s.lanes.Waiting("run"); n > 0 {
		t.Error("the heartbeat waits behind a group without a connection")
	}
}
