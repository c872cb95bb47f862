package tapeserver

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

const (
	// pollInterval is how long a stream that was not woken waits before it looks
	// again. A wake-up is a hint; this is what finds the entries of processes that
	// the store's notifier does not see.
	pollInterval = 250 * time.Millisecond
	// wakeInterval keeps streams from reading once per commit of a busy store.
	wakeInterval = 5 * time.Millisecond
	// journalPage is how many entries a stream reads at once.
	journalPage = 256
)

// SubscribeRun sends what a run's journal holds from a seq on and goes on with
// what it gets, until the client goes away or the server drains: also after the
// run's end, and for a run that does not exist (yet).
func (s *service) SubscribeRun(req *tapepb.SubscribeRunRequest, stream grpc.ServerStreamingServer[tapepb.JournalEntry]) error {
	ctx, id := stream.Context(), runstore.RunID(req.GetRunId())
	if err := runstore.CheckRunID(id); err != nil {
		return statusOf(err)
	}
	// Clients wait for the headers before they act on what they subscribed for.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	poll := time.NewTimer(pollInterval)
	defer poll.Stop()
	for next := runstore.Seq(max(req.GetFromSeq(), 1)); ; {
		woken := s.wake.next() // before the read, so that no wake-up falls between
		entries, err := s.tape.ReadJournal(ctx, id, next, journalPage)
		if err != nil {
			return statusOf(err)
		}
		for _, e := range entries {
			if err := stream.Send(journalEntry(e)); err != nil {
				return err
			}
			next = e.Seq + 1
		}
		if len(entries) > 0 {
			woken = closed // there may be more
		}
		poll.Reset(pollInterval)
		select {
		case <-s.draining:
			return status.Error(codes.Unavailable, "the server is shutting down")
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-woken:
		case <-poll.C:
		}
	}
}

// closed never blocks a receive.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// waker spreads a store's wake-ups to all streams of the server, so that the
// store has one listener for any number of them.
type waker struct {
	mu sync.Mutex
	ch chan struct{}
}

// next returns a channel that is closed at the next wake-up.
func (w *waker) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch == nil {
		w.ch = make(chan struct{})
	}
	return w.ch
}

func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch != nil {
		close(w.ch)
		w.ch = nil
	}
}

// listen wakes the streams whenever the store says so, until ctx ends. A store
// that cannot say so leaves them to their polling.
func (w *waker) listen(ctx context.Context, store runstore.RunStore) error {
	notifier, ok := store.(runstore.Notifier)
	if !ok {
		return nil
	}
	wakeups, err := notifier.Wakeups(ctx)
	if err != nil {
		return err
	}
	pause := time.NewTimer(wakeInterval)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-wakeups:
			if !open {
				return nil
			}
		}
		w.wake()
		pause.Reset(wakeInterval)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}
