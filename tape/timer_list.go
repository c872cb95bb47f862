package tape

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// DueTimersQuery selects unfired timers that are due.
type DueTimersQuery struct {
	// Now is the time by which timers are due; zero means the store clock.
	Now time.Time
	// Limit is the maximal number of timers; 0 or less means 200.
	Limit int
	// Claim fires each returned timer.
	Claim bool
}

// ListDueTimers returns unfired timers of all runs that are due, earliest first. It returns fewer
// than the limit if they would not fit into one answer. A timer that cannot be read is logged and
// left out. One read per page.
//
// With Claim each timer is fired by one commit of its own, guarded by the version of its record:
// exactly one caller fires it. A timer that another caller fires, cancels or sets again in between
// is left out. One round trip more per timer, up to 16 at a time.
//
// A claim delivers at most once. A caller that does not receive the answer has lost the timers that
// the call fired: no call lists a fired timer again. A caller that must act at least once lists
// without Claim, acts, and then cancels the timer. That is safe only for an id under which no timer is
// set again: CancelTimer also deletes a timer that was set after the list. A claim does not have this
// problem.
//
// A commit whose reply was lost is repeated under its batch id. If the outcome stays unknown, the
// timer may be fired and is not returned. ListDueTimers then fails if it fired nothing else;
// otherwise it logs the timer and returns the others.
//
// Listing takes no fence: a timer belongs to whichever reactor claims it first, not to the driver
// of its run.
func (t *Tape) ListDueTimers(ctx context.Context, q DueTimersQuery) ([]Timer, error) {
	return t.listDueTimers(ctx, nil, q)
}

func (t *Tape) listDueTimers(ctx context.Context, part *partScan, q DueTimersQuery) ([]Timer, error) {
	if q.Limit <= 0 {
		q.Limit = 200
	}
	if !q.Now.IsZero() && !q.Now.After(time.Unix(0, 0)) {
		return nil, nil // before all times of a store
	}
	next, stop := iter.Pull2(t.dueTimers(ctx, part, q))
	defer stop()
	scan := timerScan{next: next}
	var listed []Timer
	size := 0
	for {
		due, err := scan.take(q.Limit-len(listed), part.room()-size)
		if err != nil {
			part.again()
			return t.partial(ctx, listed, "", "", err)
		}
		if len(due) == 0 {
			if len(listed) == q.Limit {
				part.took()
			}
			break
		}
		var failed *claimError
		if q.Claim {
			due, failed = t.claimTimers(ctx, due)
		}
		for _, d := range due {
			listed, size = append(listed, d.Timer), size+d.size()
		}
		if failed != nil {
			part.again()
			return t.partial(ctx, listed, failed.run, failed.timer, failed.err)
		}
	}
	return inFireOrder(listed), nil
}

// inFireOrder sorts timers by their time. The index holds them in that order, except those with a
// FireAtMS of 0 or less, which have equal index times.
func inFireOrder(listed []Timer) []Timer {
	slices.SortStableFunc(listed, func(a, b Timer) int { return cmp.Compare(a.FireAtMS, b.FireAtMS) })
	return listed
}

// partial ends a list at an error. Timers that were fired must be returned: no later call would
// return them.
func (t *Tape) partial(ctx context.Context, listed []Timer, run runstore.RunID, timer string, err error) ([]Timer, error) {
	if len(listed) == 0 || !listed[0].Fired {
		return nil, err
	}
	t.log.WarnContext(ctx, "a claim of timers ends early", "fired", len(listed), "run", run, "timer", timer, "error", err)
	return inFireOrder(listed), nil
}

// dueTimer is a timer with the version at which it was read.
type dueTimer struct {
	Timer
	version runstore.Version
}

// dueTimers iterates over the timers that are due. It logs and skips timers that cannot be read or
// answered.
func (t *Tape) dueTimers(ctx context.Context, part *partScan, q DueTimersQuery) iter.Seq2[dueTimer, error] {
	return func(yield func(dueTimer, error) bool) {
		scan := runstore.IndexQuery{Index: IndexTimers, Until: clampTime(q.Now), Limit: min(q.Limit, runstore.MaxPage)}
		for entry, err := range part.entries(ctx, t.store, []runstore.IndexQuery{scan}) {
			if err != nil {
				yield(dueTimer{}, err)
				return
			}
			m, ok := listed(ctx, t, part, "timers", timerOf, entry.Run, entry.Record)
			if !ok {
				continue
			}
			if !yield(dueTimer{m, entry.Record.Version}, nil) {
				return
			}
		}
	}
}

// timerScan takes timers from an iterator. It keeps a timer that does not fit for the next take.
type timerScan struct {
	next func() (dueTimer, error, bool)
	kept *dueTimer
}

// take returns up to limit timers that fit into room bytes of an answer; none at the end.
func (s *timerScan) take(limit, room int) ([]dueTimer, error) {
	var taken []dueTimer
	for len(taken) < limit {
		if s.kept == nil {
			d, err, ok := s.next()
			if err != nil {
				if len(taken) == 0 {
					return nil, err
				}
				failed := err
				s.next = func() (dueTimer, error, bool) { return dueTimer{}, failed, true }
				return taken, nil
			}
			if !ok {
				break
			}
			s.kept = &d
		}
		if room -= s.kept.size(); room < 0 {
			break
		}
		taken, s.kept = append(taken, *s.kept), nil
	}
	return taken, nil
}

// claimError reports which timer could not be fired.
type claimError struct {
	run   runstore.RunID
	timer string
	err   error
}

// claimTimers fires timers and returns the fired ones, in the order given. It starts no further
// claim after a failure. The error is preferably one of unknown outcome.
func (t *Tape) claimTimers(ctx context.Context, due []dueTimer) ([]dueTimer, *claimError) {
	var failed *claimError
	order := rand.Perm(len(due)) // so that callers of the same list rarely collide
	optimistic.Each(order, func(i int, mu sync.Locker) {
		mu.Lock()
		stop := failed != nil
		mu.Unlock()
		if stop {
			return
		}
		d := &due[i]
		err := t.fire(ctx, d)
		if err == nil || errors.Is(err, runstore.ErrConflict) || errors.Is(err, ErrNoSuchRun) {
			return // fired by another caller, or no longer the timer that was listed
		}
		mu.Lock()
		defer mu.Unlock()
		other := &claimError{d.Run, d.ID, err}
		if failed == nil || runstore.OutcomeOf(failed.err) != runstore.Unknown && runstore.OutcomeOf(err) == runstore.Unknown {
			failed, other = other, failed
		}
		if other != nil {
			t.log.WarnContext(ctx, "a claim of a timer failed", "run", other.run, "timer", clip(other.timer, 64), "error", other.err)
		}
	})
	return slices.DeleteFunc(due, func(d dueTimer) bool { return !d.Fired }), failed
}

// fire fires a timer if its record is unchanged since it was read.
func (t *Tape) fire(ctx context.Context, d *dueTimer) error {
	fired := d.Timer
	fired.Fired = true
	value, places := fired.encode()
	b := runstore.NewBatch(d.Run, runstore.AtVersion(timerKey(d.ID), d.version))
	b.Put(timerKey(d.ID), value, places...)
	if _, err := t.commit(ctx, b); err != nil {
		return err
	}
	d.Timer = fired
	return nil
}
