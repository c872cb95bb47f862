package takeover

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

const (
	// pageSize is how many entries a scan reads at once: enough that 50 workers that shuffle the
	// same page seldom choose the same run first.
	pageSize = 100
	// claimSpacing is the pause before the next claim for each piece of work in flight, and
	// maxSpacing bounds it: a worker that is alone still claims 20 runs a second.
	claimSpacing = 10 * time.Millisecond
	maxSpacing   = 50 * time.Millisecond
	// maxRepeats bounds how often a claim of unknown outcome is repeated. After that the lease, if
	// it was granted, expires unused.
	maxRepeats = 3
	// requestTimeout bounds a scan, and the time from a grant to the work. If the store never answered,
	// the worker would claim nothing more, or renew the lease of a run that it does not drive.
	requestTimeout = 30 * time.Second
)

// Work drives a run under its lease. run is the run's head, read after the grant. Work must return
// soon after ctx has ended; context.Cause(ctx) is a lease.LostError if the lease was lost. Every
// write presents held.Fence().
type Work func(ctx context.Context, held *lease.Held, run runstore.Run) error

// Worker claims runs without a driver and drives them. It is safe for concurrent use.
type Worker struct {
	store  runstore.RunStore
	owner  runstore.Owner
	opts   Options
	keeper *lease.Keeper
	slots  chan struct{} // holds a value for each piece of work in flight
	outage lease.Outage  // only the goroutine of Run uses it

	mu       sync.Mutex
	status   Status
	excluded exclusions
	driven   map[runstore.RunID]bool // the runs whose work has not returned yet
}

// Status counts what a worker has done since New.
type Status struct {
	// InFlight is the number of pieces of work that run now.
	InFlight int
	// Scans is the number of pages read; Attempts the requests for a lease; Takeovers the leases
	// granted. Attempts of which another worker was faster are in neither Takeovers nor Failed.
	Scans, Attempts, Takeovers int64
	// Lost counts leases lost while the work ran; Failed the other errors of work.
	Lost, Failed int64
}

// New returns a worker on store that acquires leases as owner; nil Options mean the defaults. Its
// error lists every invalid option and matches runstore.ErrInvalid.
func New(store runstore.RunStore, owner runstore.Owner, opts *Options) (*Worker, error) {
	resolved, err := opts.Resolve()
	if owner == "" {
		err = errors.Join(err, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "owner", Problem: "is empty"})
	}
	if err != nil {
		return nil, err
	}
	keeper, err := lease.New(store, resolved.Lease)
	if err != nil {
		return nil, err
	}
	return &Worker{
		store: store, owner: owner, opts: resolved, keeper: keeper,
		slots: make(chan struct{}, resolved.MaxInFlight), excluded: exclusions{}, driven: map[runstore.RunID]bool{},
	}, nil
}

// Status returns what the worker does and has done.
func (w *Worker) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.status
	s.InFlight = len(w.driven)
	return s
}

// Run claims runs and drives them until ctx ends. It then waits until all work has returned and all
// leases are released, and returns the context's cause. It returns earlier, with the store's error,
// only if no later attempt can succeed: the store is closed or refuses the options. If ctx ends
// while a claim is in flight, the claim may have been granted; that lease expires unused.
//
// A panic of work ends the process, as in any goroutine, after the release of its lease.
func (w *Worker) Run(ctx context.Context, work Work) error {
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	backoff := w.opts.MinBackoff
	// Workers that were started together do not scan together.
	for wait := rand.N(w.opts.MinBackoff); ; {
		if !pace.Pause(ctx, wait) {
			return context.Cause(ctx)
		}
		claimed, err := w.round(ctx, &inFlight, work)
		switch {
		case errors.Is(err, runstore.ErrClosed), errors.Is(err, runstore.ErrInvalid), errors.Is(err, runstore.ErrUnsupported):
			return err
		case err != nil && ctx.Err() == nil:
			w.opts.Logger.Warn("takeover: scan or claim failed", "index", w.opts.Index, "error", err)
		}
		if claimed > 0 {
			backoff = w.opts.MinBackoff
		}
		wait = pace.Jitter(backoff)
		if claimed == 0 {
			backoff = min(2*backoff, w.opts.MaxBackoff)
		} else if err == nil && len(w.slots) == cap(w.slots) {
			wait = 0 // the round ended for want of a slot, and the next begins by waiting for one
		}
	}
}

// round scans for due runs and claims them, until the index has no more of them, the worker has no
// free slot, or another worker was faster. It returns the number of runs claimed.
func (w *Worker) round(ctx context.Context, inFlight *sync.WaitGroup, work Work) (claimed int, err error) {
	if !w.awaitSlot(ctx) {
		return 0, nil
	}
	query := runstore.IndexQuery{Index: w.opts.Index, Limit: pageSize, Heads: true}
	seen := map[runstore.RunID]bool{}
	for {
		sent := time.Now()
		page, err := w.scan(ctx, query)
		w.outage.Observe(w.keeper, sent, err)
		if err != nil || len(page) == 0 {
			return claimed, err
		}
		w.count(func(s *Status) { s.Scans++ })
		query.After = page[len(page)-1].Cursor
		for _, head := range w.candidates(page, seen) {
			if claimed > 0 && !pace.Pause(ctx, min(time.Duration(len(w.slots))*claimSpacing, maxSpacing)) {
				return claimed, nil
			}
			select {
			case w.slots <- struct{}{}:
			default:
				return claimed, nil
			}
			granted, err := w.claim(ctx, head)
			if err != nil {
				<-w.slots
				var held *runstore.LeaseHeldError
				switch {
				case errors.Is(err, runstore.ErrNotFound): // purged since the scan
				case errors.As(err, &held) && w.opts.Index != runstore.IndexRunnable:
					// An index of records also has the entries of runs that are driven.
					w.excludeFor(head.ID, min(held.Remaining, w.opts.MaxBackoff))
				case lostRace(err):
					return claimed, nil
				default:
					w.exclude(head.ID, false)
					return claimed, err
				}
				continue
			}
			claimed++
			w.setDriven(head.ID, true)
			inFlight.Go(func() {
				defer func() {
					w.setDriven(head.ID, false)
					<-w.slots
				}()
				w.drive(ctx, granted, work)
			})
		}
	}
}

func (w *Worker) scan(ctx context.Context, query runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return w.store.ScanIndex(ctx, query)
}

// candidates returns the runs of a page that the worker may claim, in random order.
func (w *Worker) candidates(page []runstore.IndexEntry, seen map[runstore.RunID]bool) []runstore.Run {
	var heads []runstore.Run
	for _, e := range page {
		if seen[e.Run] || w.isExcluded(e.Run) || w.opts.Want != nil && !w.opts.Want(e.Head) {
			continue
		}
		if e.Head.Holder.Token != 0 && w.outage.InGrace() {
			continue // its holder may renew it still
		}
		seen[e.Run] = true // an index of records may have many entries of one run
		heads = append(heads, e.Head)
	}
	rand.Shuffle(len(heads), func(i, j int) { heads[i], heads[j] = heads[j], heads[i] })
	return heads
}

// claim requests a run's lease, if it is as the scan found it. A request of unknown outcome is
// repeated under the same grant id, and the trust in the lease counts from the first request.
func (w *Worker) claim(ctx context.Context, head runstore.Run) (lease.Granted, error) {
	req := runstore.AcquireRequest{
		Run: head.ID,
		LeaseSpec: runstore.LeaseSpec{
			Owner: w.owner, Reactor: w.opts.Reactor, MaxStall: w.opts.MaxStall, Grant: runstore.NewGrantID(),
		},
		Guards: []runstore.Guard{runstore.AtToken(head.Token)},
	}
	var sent time.Time
	for repeat := 0; ; repeat++ {
		w.count(func(s *Status) { s.Attempts++ })
		granted, err := w.keeper.TryAcquire(ctx, req)
		if sent.IsZero() {
			sent = granted.Sent
		}
		granted.Sent = sent
		if err == nil {
			w.count(func(s *Status) { s.Takeovers++ })
			return granted, nil
		}
		if runstore.OutcomeOf(err) != runstore.Unknown || repeat == maxRepeats || !pace.Pause(ctx, pace.Jitter(w.opts.MinBackoff/4<<repeat)) {
			return granted, err
		}
	}
}

// lostRace reports whether a claim failed because another driver has been granted the lease.
func lostRace(err error) bool {
	return errors.Is(err, runstore.ErrLeaseHeld) || errors.Is(err, runstore.ErrConflict) || errors.Is(err, runstore.ErrFenced)
}

// drive runs the work under a lease, and decides when the worker may claim the run again.
func (w *Worker) drive(ctx context.Context, granted lease.Granted, work Work) {
	id := granted.Lease.Run
	err := w.keeper.Hold(ctx, granted, func(ctx context.Context, held *lease.Held) error {
		run, err := w.prepare(ctx, held)
		if err != nil {
			held.Abandon() // the work has not run, and the former holder's may be unfinished
			return err
		}
		return work(ctx, held, run)
	})
	lost := lease.IsLossOf(err, granted.Lease)
	switch {
	case err == nil:
		w.include(id)
		return
	case errors.Is(err, lease.ErrHandedOff):
		w.exclude(id, true) // the successor drives it
		w.opts.Logger.Info("takeover: handed off a run", "run", id, "owner", w.owner, "token", granted.Lease.Token, "result", err)
		return
	case ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, ctx.Err())):
		return // the work was ended with the worker
	case lost:
		w.count(func(s *Status) { s.Lost++ })
	default:
		w.count(func(s *Status) { s.Failed++ })
	}
	w.exclude(id, lost)
	w.opts.Logger.Warn("takeover: the work on a run ended with an error", "run", id, "owner", w.owner, "token", granted.Lease.Token, "lost", lost, "error", err)
}

// prepare completes the step in progress that the run leads, if any, and returns the run's head.
func (w *Worker) prepare(ctx context.Context, held *lease.Held) (runstore.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := crossrun.Recover(ctx, w.store, held.Fence()); err != nil {
		return runstore.Run{}, err
	}
	return w.store.GetRun(ctx, held.Fence().Run())
}

func (w *Worker) count(f func(*Status)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.status)
}

// awaitSlot blocks until a further piece of work may run. It reports false if ctx ended first.
// Only the goroutine of Run takes slots, so the free one stays free.
func (w *Worker) awaitSlot(ctx context.Context) bool {
	select {
	case w.slots <- struct{}{}:
		<-w.slots
		return true
	case <-ctx.Done():
		return false
	}
}

// LeaseVector describes the lease of a worker on a run.
func LeaseVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "the lease of each run that is driven, claimed only at the token that the scan found",
		Payload:     "the engine's; the owner is the worker",
		Enforcement: "by the store, at each write with Held.Fence",
		Token:       "the run's",
		Handoff:     "takeover after the expiry, and steps over two runs are completed first",
	}
}
