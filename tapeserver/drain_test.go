package tapeserver_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
	"github.com/tapestore/tapestore/tapeserver"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// never is a drain timeout that these tests do not wait for.
const never = 24 * time.Hour

// held is a store whose GetRun signals that it was called and does not return before release is closed, nor by its
// context unless polite.
type held struct {
	runstore.RunStore
	called, release chan struct{}
	polite          bool
}

func hold(t *testing.T, polite bool) held {
	h := held{memory.New(nil).Open(), make(chan struct{}, 100), make(chan struct{}), polite}
	t.Cleanup(func() {
		select {
		case <-h.release:
		default:
			close(h.release)
		}
	})
	return h
}

func (h held) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	h.called <- struct{}{}
	ended := ctx.Done()
	if !h.polite {
		ended = nil
	}
	select {
	case <-h.release:
		return h.RunStore.GetRun(ctx, id)
	case <-ended:
		return runstore.Run{}, &runstore.OpError{Op: "get run", Run: id, Err: runstore.ErrUnavailable, Cause: ctx.Err()}
	}
}

// Neither a client that says nothing nor one that is idle holds up a drain.
func TestDrainWaitsForNoSilentConnection(t *testing.T) {
	t.Parallel()
	address, stop := listen(t, memory.New(nil).Open(), &tapeserver.Options{
		DrainTimeout: never, Limits: tapeserver.Limits{HandshakeTimeout: never},
	})
	silent, idle := dial(t, address), dial(t, address).begin(t)
	idle.await(t, "the greeting's answer", func(f http2.Frame) bool { s, ok := f.(*http2.SettingsFrame); return ok && s.IsAck() })
	if err := stop(); err != nil {
		t.Errorf("Serve = %v", err)
	}
	_, _ = io.Copy(io.Discard, silent) // ends with the connection
}

// A client that goes on although it was told to go away gets no work done, and keeps what it has in flight.
func TestDrainRefusesCallsOnOpenConnections(t *testing.T) {
	t.Parallel()
	store := hold(t, false)
	address, stop := listen(t, store, &tapeserver.Options{DrainTimeout: never})
	c := dial(t, address).begin(t)
	first := c.call(t, "GetRun")
	c.send(t, first, &tapepb.GetRunRequest{RunId: "r"}, -1)
	<-store.called
	half := c.call(t, "BeginRun") // its message is still on the way
	next := c.call(t, "GetEffect")
	c.send(t, next, &tapepb.GetEffectRequest{RunId: "r", IdempotencyKey: "K"}, -1)
	if err := c.status(t, next); err != errOK { // and its headers have arrived
		t.Errorf("GetEffect = %v", err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	c.await(t, "GOAWAY", func(f http2.Frame) bool { _, ok := f.(*http2.GoAwayFrame); return ok })
	late := c.call(t, "BeginRun") // before the server learns that the client has received GOAWAY
	wantStatus(t, "the call that was arriving", c.status(t, half), codes.Unavailable, "shutting down")
	wantStatus(t, "the late call", c.status(t, late), codes.Unavailable, "shutting down")
	close(store.release)
	wantStatus(t, "the call in flight", c.status(t, first), codes.NotFound, "no such run")
	_ = c.Close()
	if err := <-stopped; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

// A store that ends its calls by their context lets every client learn what became of its call.
func TestDrainCancelsCallsThatTakeTooLong(t *testing.T) {
	t.Parallel()
	store := hold(t, true)
	server := tapeserver.New(store, patient(&tapeserver.Options{DrainTimeout: never}))
	c, stop := startServer(t, server)
	ended := make(chan error, 1)
	go func() {
		_, err := c.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
		ended <- err
	}()
	<-store.called
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	server.Cut()
	wantStatus(t, "GetRun", <-ended, codes.Unavailable, "shutting down")
	if err := <-stopped; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

// A frozen store, which does not even end by its context, does not hold up Serve.
func TestDrainLeavesAFrozenStoreBehind(t *testing.T) {
	t.Parallel()
	store := hold(t, false)
	c, stop := start(t, store, &tapeserver.Options{DrainTimeout: 50 * time.Millisecond})
	ended := make(chan error, 1)
	go func() {
		_, err := c.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
		ended <- err
	}()
	<-store.called
	if err := stop(); err != nil {
		t.Errorf("Serve = %v", err)
	}
	wantStatus(t, "GetRun", <-ended, codes.Unavailable, "")
}

// TestDrainEndsCallsThatWaitForMemory checks that a call which waits for its share of the bytes in flight is
// refused when a drain begins, and not after its wait.
func TestDrainEndsCallsThatWaitForMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := hold(t, false)
		c, stop := start(t, store, &tapeserver.Options{DrainTimeout: never, Logger: quietly, Limits: tapeserver.Limits{BytesInFlight: 4 << 20}})
		get := func() chan error {
			ended := make(chan error, 1)
			go func() {
				_, err := c.GetRun(t.Context(), &tapepb.GetRunRequest{RunId: "r"})
				ended <- err
			}()
			return ended
		}
		first := get()
		<-store.called
		second := get()
		synctest.Wait() // it waits: the first call has a part of the bytes, and it could need all of them
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }()
		wantStatus(t, "the call that waits", <-second, codes.Unavailable, "shutting down")
		close(store.release)
		wantStatus(t, "the call in flight", <-first, codes.NotFound, "no such run")
		if err := <-stopped; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
}
