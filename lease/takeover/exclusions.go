package takeover

import (
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

// exclusions are the runs that a worker leaves alone for a while, because their work has failed or
// their lease was lost. Successful work deletes its entry, and set those that ended long ago.
type exclusions map[runstore.RunID]exclusion

type exclusion struct {
	until    time.Time
	failures int // consecutive failures
}

// pruneAt is how many entries make set delete those that have ended: 1,000, so that failures
// of ever new runs do not fill the memory.
const pruneAt = 1000

// exclude leaves a run alone: for the cooldown after a lost lease, or with exponential backoff
// after a failure.
func (w *Worker) exclude(id runstore.RunID, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, e := time.Now(), w.excluded[id]
	if lost {
		e.until = now.Add(w.opts.Cooldown)
	} else {
		wait := w.opts.MinBackoff
		for n := e.failures; n > 0 && wait < w.opts.MaxBackoff; n-- {
			wait = min(2*wait, w.opts.MaxBackoff)
		}
		e.until = now.Add(pace.Jitter(wait))
		e.failures++
	}
	w.excluded.set(id, e, w.opts.MaxBackoff)
}

// excludeFor leaves a run alone for d.
func (w *Worker) excludeFor(id runstore.RunID, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.excluded.set(id, exclusion{until: time.Now().Add(d)}, w.opts.MaxBackoff)
}

// isExcluded reports whether the worker leaves a run alone now. It also leaves a run alone that it
// drives: after a takeover and a release by another driver the run may be due before this worker's
// own work has noticed that its lease is lost.
func (w *Worker) isExcluded(id runstore.RunID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.driven[id] || time.Now().Before(w.excluded[id].until)
}

// setDriven records that the worker drives a run, or that the run's work has returned.
func (w *Worker) setDriven(id runstore.RunID, driven bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if driven {
		w.driven[id] = true
	} else {
		delete(w.driven, id)
	}
}

// include ends a run's exclusion and its count of failures.
func (w *Worker) include(id runstore.RunID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.excluded, id)
}

// set stores an entry. If there are many, it deletes those that ended longer than keep ago; until
// then they count the failures.
func (x exclusions) set(id runstore.RunID, e exclusion, keep time.Duration) {
	if len(x) >= pruneAt {
		now := time.Now()
		for other, e := range x {
			if now.Sub(e.until) > keep {
				delete(x, other)
			}
		}
	}
	x[id] = e
}
