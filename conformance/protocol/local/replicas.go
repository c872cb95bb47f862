package local

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/conformance"
	"github.com/tapestore/tapestore/conformance/protocol"
	"github.com/tapestore/tapestore/internal/intercept"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// replicaTTL returns that of the leases of replicas' matchers, which a case waits for after it has killed one: 3 s,
// and 10 s on a costly engine, where a renewal may take seconds on a busy machine.
func replicaTTL(h conformance.Harness) time.Duration {
	if h.Costly {
		return 10 * time.Second
	}
	return 3 * time.Second
}

// replicas starts n servers on one empty store. A server whose store does not answer any more stands for a process
// that was killed or stopped.
func replicas(t conformance.T, h conformance.Harness, mode tape.FenceMode, n int) []protocol.Replica {
	t.Helper()
	instance := h.New(t)
	all := make([]protocol.Replica, n)
	for i := range all {
		halt := newHalt()
		s := &served{mode: mode, address: "127.0.0.1:0", matcherTTL: replicaTTL(h), open: func(ctx context.Context) (runstore.RunStore, error) {
			store, err := instance.Open(ctx)
			if err != nil {
				return nil, err
			}
			return intercept.Store(store, halt.around), nil
		}}
		s.start(t)
		t.Cleanup(func() {
			halt.resume()
			s.stop()
		})
		all[i] = protocol.Replica{Address: s.address, Kill: halt.kill, Pause: halt.pause, Resume: halt.resume}
	}
	return all
}

// halt is what stops the calls of a store.
type halt struct {
	mu     sync.Mutex
	killed bool
	goes   chan struct{} // closed while calls go on
}

func newHalt() *halt {
	h := &halt{goes: make(chan struct{})}
	close(h.goes)
	return h
}

// kill lets no call of the store reach it any more, and returns no result of those that did.
func (h *halt) kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.killed = true
}

// pause stops each call where it is next: before it reaches the store, or before its result is returned.
func (h *halt) pause() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.goes = make(chan struct{})
}

func (h *halt) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.goes:
	default:
		close(h.goes)
	}
}

var errKilled = errors.New("the process was killed")

// pass waits while calls are stopped, and reports whether it has waited.
func (h *halt) pass() (waited bool, err error) {
	h.mu.Lock()
	goes := h.goes
	h.mu.Unlock()
	select {
	case <-goes:
	default:
		waited = true
		<-goes
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.killed {
		err = &runstore.OpError{Op: "halted", Err: runstore.ErrUnknownOutcome, Cause: errKilled}
	}
	return waited, err
}

// around makes a call, unless the process was killed. A call that was stopped on its way is made late, whatever has
// become of its context: a process that was stopped sends what it was about to send.
func (h *halt) around(ctx context.Context, _ string, do func(context.Context) error) error {
	waited, err := h.pass()
	if err != nil {
		return err
	}
	if waited {
		ctx = context.WithoutCancel(ctx)
	}
	err = do(ctx)
	if _, killed := h.pass(); killed != nil {
		return killed
	}
	return err
}
