package spanner

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// The purger is the goroutine that deletes in the background the rows that purges have left: rows
// of a purge whose call failed, or ended with its context or its process, before all were deleted.
// Until then each scan of their queues reads these rows and omits them. The purger makes a pass when
// the handle is opened, and after each purge, each scan that reads such a row, and each creation that
// could not delete such rows. Invariants:
//
//  1. A handle has one purger. It deletes rows of one run at a time.
//  2. No call waits for the purger or fails with it.
//  3. No start is lost: if the handle starts the purger during a pass, the purger makes another.
//  4. A run whose rows cannot be deleted delays the deletion of others, but does not prevent it.
//  5. The purger leaves a run that a call of this handle purges to that call, which starts the purger
//     when it ends.
//  6. The purger yields. If a transaction is aborted, another handle is most likely deleting rows of
//     the same run, so the purger leaves the run until its next pass.
type purger struct {
	started chan struct{} // holds a value if the purger was started since its last pass began
	passes  atomic.Int64  // the number of passes that have ended

	mu     sync.Mutex
	claims map[runstore.RunID]int // number of calls that purge the run
}

func newPurger() *purger {
	return &purger{started: make(chan struct{}, 1), claims: map[runstore.RunID]int{}}
}

const (
	// minPurgerPause (1 s, of which up to half is left out at random) is how long a started purger
	// waits. Most purges end earlier, so the purger does not interfere with the calls that purge.
	minPurgerPause = time.Second
	// maxPurgerPause (1 min) is the longest pause between two passes. An account that may not delete
	// adds no load.
	maxPurgerPause = time.Minute
)

// errContended ends a transaction of the purger that was aborted.
var errContended = outcome.Unavailable(errors.New("spanner: rows of the purged run are being deleted elsewhere"))

// runPurger makes a pass over the purged runs, and another whenever the purger was started, until
// the handle is closed. A pass that failed is repeated. It logs the first error of failed passes
// only, and an aborted transaction only if several passes in a row fail.
func (s *engine) runPurger() {
	pause, logged := time.Duration(0), false
	for pace.Pause(s.stopped, pace.Jitter(pause)) {
		select {
		case <-s.purger.started: // before this pass
		default:
		}
		err := s.finishPurges(s.stopped)
		s.purger.passes.Add(1)
		if err != nil {
			pause = min(max(2*pause, minPurgerPause), maxPurgerPause)
			if !logged && (!errors.Is(err, errContended) || pause == maxPurgerPause) && s.stopped.Err() == nil {
				s.opts.Logger.Warn("spanner: rows of purged runs could not be deleted yet", "error", err)
				logged = true
			}
			continue
		}
		select {
		case <-s.purger.started:
			pause, logged = minPurgerPause, false
		case <-s.stopped.Done():
		}
	}
}

// start starts the purger. It returns at once.
func (p *purger) start() {
	select {
	case p.started <- struct{}{}:
	default:
	}
}

// claim adds to the number of calls that purge each of the runs.
func (p *purger) claim(ids []runstore.RunID, calls int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if p.claims[id] += calls; p.claims[id] == 0 {
			delete(p.claims, id)
		}
	}
}

func (p *purger) claimed(id runstore.RunID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.claims[id] > 0
}
