package matcher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/conformance/effort"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// fate is what becomes of a process at one of its calls to the store.
type fate struct {
	call  int  // which, from 1
	made  bool // the call is made first
	pause time.Duration
}

func (f fate) String() string {
	what, where := "killed", "before"
	if f.pause > 0 {
		what = "paused"
	}
	if f.made {
		where = "behind"
	}
	return fmt.Sprintf("%s %s call %d", what, where, f.call)
}

// process is the calls to the store of a replica that meets a fate: it is killed, or all of its calls stand still for a
// while, and then those under way go on, whatever has become of their contexts.
type process struct {
	fate
	mu     sync.Mutex
	calls  int
	goes   chan struct{}
	killed bool
}

var errKilled = &runstore.OpError{Op: "test", Err: runstore.ErrUnknownOutcome, Cause: errors.New("killed")}

// stand waits while the process stands still, and reports whether it did.
func (p *process) stand() (stood bool, err error) {
	p.mu.Lock()
	goes := p.goes
	p.mu.Unlock()
	if goes != nil {
		select {
		case <-goes:
		default:
			stood = true
			<-goes
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed {
		err = errKilled
	}
	return stood, err
}

func (p *process) meet() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pause == 0 {
		p.killed = true
		return
	}
	p.goes = make(chan struct{})
	time.AfterFunc(p.pause, func() { close(p.goes) })
}

func (p *process) around(ctx context.Context, _ string, do func(context.Context) error) error {
	p.mu.Lock()
	p.calls++
	mine := p.calls == p.call
	p.mu.Unlock()
	if mine && !p.made {
		p.meet()
	}
	stood, err := p.stand()
	if err != nil {
		return err
	}
	if stood {
		ctx = context.WithoutCancel(ctx)
	}
	err = do(ctx)
	if mine && p.made {
		p.meet()
	}
	if _, killed := p.stand(); killed != nil {
		return killed
	}
	return err
}

// Each entry is handled once by a TASK and by an AGENT reaction, wherever a replica is killed, or paused for longer than
// its leases, while another one works beside it.
func TestOnceWithReplicasKilledAndPaused(t *testing.T) {
	t.Parallel()
	// The first replica has handled all of its entries by its call 60. A quick run tries one of eight.
	const last = 60
	step := 8
	if effort.Full() {
		step = 1
	}
	first := 0
	for _, pause := range []time.Duration{0, 3 * ttl} {
		for _, made := range []bool{false, true} {
			first++ // so that the four meet different calls
			for call := first; call <= last && !t.Failed(); call += step {
				synctest.Test(t, func(t *testing.T) { disturbed(t, fate{call, made, pause}) })
			}
		}
	}
}

// disturbed lets a replica meet its fate and another one take over.
func disturbed(t *testing.T, f fate) {
	t.Helper()
	w := newWorld(t)
	p := &process{fate: f}
	w.enter("a", 20)
	r := w.register(reaction("task", "a", 2))
	agents := reaction("agent", "a", 2)
	agents.Handler, agents.AgentApp = tape.HandlerAgent, "agents"
	w.register(agents)
	first := w.start("first", p.around)
	time.Sleep(ttl / 20)
	second := w.start("second", nil)
	w.enter("a", 10)
	handled := func() {
		t.Helper()
		w.await("task", len(w.runs))
		w.until("an agent's run for each entry", func() bool { return len(w.agents()) >= len(w.runs) })
	}
	handled()
	time.Sleep(f.pause) // the paused one goes on
	w.enter("a", 5)
	handled()
	time.Sleep(ttl) // for what it is still about to do
	w.expectOnce("task", w.runs)
	began := w.agents()
	for _, run := range began {
		if run.LastSeq != 1 {
			t.Errorf("%v: run %s has %d entries, want 1", f, run.Invocation, run.LastSeq)
		}
	}
	if len(began) != len(w.runs) {
		t.Errorf("%v: %d runs were begun for %d entries", f, len(began), len(w.runs))
	}
	first.stop()
	second.stop()
	if t.Failed() {
		t.Logf("%v; reaction %v\nfirst:\n%s\nsecond:\n%s", f, r.ID, first.log, second.log)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls < f.call {
		t.Errorf("%v: the replica made %d calls", f, p.calls)
	}
}

// agents returns the runs that AGENT reactions began.
func (w *world) agents() (runs []tape.Run) {
	w.t.Helper()
	all, err := w.tape.ListRunsToRecover(context.Background(), time.Time{}, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, run := range all {
		if run.App == "agents" {
			runs = append(runs, run)
		}
	}
	return runs
}
