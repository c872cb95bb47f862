package spanner

import (
	"errors"
	"sync"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter/outcome"
)

// The purger is the goroutine that deletes in the background the rows that purges have left: rows
// of a purge whose call failed, or ended with its context or its process, before all were deleted.
// Until then each scan of their queues reads these rows and omits them. The purger is started by
// the opening of the handle, by each purge, and by a scan that reads such a row. Invariants:
//
//  1. A handle has at most one purger. It deletes rows of one run at a time, and ends when no purged
//     run has rows left, or with the handle.
//  2. No call waits for the purger or fails with it.
//  3. No start is lost: if the handle starts the purger while it runs, the purger lists the purged
//     runs once more.
//  4. A run whose rows cannot be deleted delays the deletion of others, but does not prevent it.
//  5. The purger leaves a run that a call of this handle purges to that call, which starts the purger
//     when it ends.
//  6. The purger yields. If a transaction is aborted, another handle is most likely deleting rows of
//     the same run, so the purger leaves the run until its next pass.
type purger struct {
	mu      sync.Mutex
	running bool
	wanted  bool                   // started since the last pass began
	claims  map[runstore.RunID]int // number of calls that purge the run
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

// startPurger starts the purger, which waits for the pause first. It returns at once.
func (s *engine) startPurger(pause time.Duration) {
	p := &s.purger
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = true
	if !p.running {
		p.running = true
		s.background.Go(func() { s.runPurger(pause) })
	}
}

// runPurger makes passes over the purged runs until no rows are left or the handle is closed. It
// logs the first error only, and an aborted transaction only if several passes in a row fail.
func (s *engine) runPurger(pause time.Duration) {
	logged := false
	for pace.Pause(s.stopped, pace.Jitter(pause)) {
		s.purger.beginPass()
		err := s.finishPurges(s.stopped)
		if err == nil {
			if s.purger.end() {
				return
			}
			pause = minPurgerPause
			continue
		}
		pause = min(max(2*pause, minPurgerPause), maxPurgerPause)
		if !logged && (!errors.Is(err, errContended) || pause == maxPurgerPause) && s.stopped.Err() == nil {
			s.opts.Logger.Warn("spanner: rows of purged runs could not be deleted yet", "error", err)
			logged = true
		}
	}
}

// claim leaves runs to the calling operation, until endClaim.
func (p *purger) claim(ids []runstore.RunID) {
	if len(ids) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claims == nil {
		p.claims = map[runstore.RunID]int{}
	}
	for _, id := range ids {
		p.claims[id]++
	}
}

func (p *purger) endClaim(id runstore.RunID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claims[id]--; p.claims[id] == 0 {
		delete(p.claims, id)
	}
}

func (p *purger) claimed(id runstore.RunID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.claims[id] > 0
}

// want has the purger list the purged runs once more.
func (p *purger) want() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = true
}

func (p *purger) beginPass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = false
}

// end ends the purger, unless it was started since the last pass began.
func (p *purger) end() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = p.wanted
	return !p.running
}
