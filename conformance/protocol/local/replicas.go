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

// replicaTTL returns the TTL of the matchers' leases of replicas, for which a case waits after it
// kills a replica: 3 s, and 10 s on a costly engine, where a renewal may take seconds on a busy
// machine.
func replicaTTL(h conformance.Harness) time.Duration {
	if h.Costly {
		return 10 * time.Second
	}
	return 3 * time.Second
}

// replicas starts n servers on one empty store. Blocking the store calls of a server simulates a
// killed or suspended process.
func replicas(t conformance.T, h conformance.Harness, mode tape.FenceMode, n int) []protocol.Replica {
	t.Helper()
	instance := h.New(t)
	all := make([]protocol.Replica, n)
	for i := range all {
		halt := newHalt()
		s := &served{mode: mode, matcherTTL: replicaTTL(h), open: func(ctx context.Context) (runstore.RunStore, error) {
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

// halt blocks or cuts off the calls of a store handle.
type halt struct {
	mu     sync.Mutex
	killed bool
	goes   chan struct{} // closed while calls may proceed
}

func newHalt() *halt {
	h := &halt{goes: make(chan struct{})}
	close(h.goes)
	return h
}

// kill makes every further call fail with ErrUnknownOutcome before it reaches the store, and
// withholds the results of calls that have reached it.
func (h *halt) kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.killed = true
}

// pause stops each call at its next point: before it reaches the store, or before its result is
// returned.
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

// pass waits while calls are paused, and reports whether it waited.
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

// around makes a call, unless the process was killed. A paused call is sent late even if its
// context has ended, because a suspended process sends its request when it resumes.
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
