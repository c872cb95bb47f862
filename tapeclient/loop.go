package tapeclient

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// The defaults of [Loop].
const (
	DefaultTick  = time.Second
	DefaultClaim = 16
	DefaultTTL   = time.Minute // as in Tape's other clients
	DefaultRetry = 10 * time.Second
)

// Loop configures a loop. A zero field takes its default.
type Loop struct {
	// Tick is the pause between two looks, with jitter of a tenth. Default 1 s. A loop that found
	// as much as it could handle looks again as soon as one piece is done.
	Tick time.Duration
	// Claim is the number of pieces of work that are handled at a time. Default 16.
	Claim int
	// TTL is how long a claim lasts on the server's clock. It also bounds one call of a handler,
	// whose context ends a tenth earlier. Runs are bounded by their leases instead. Default 1 min.
	TTL time.Duration
	// Retry is the pause before failed work is due again, added to the clock of this process,
	// because the protocol names an absolute time. Default 10 s.
	Retry time.Duration
	// OnError receives the errors of calls and handlers; the loop continues after each. It must be
	// safe for concurrent use. By default errors are discarded.
	OnError func(error)
}

func (l Loop) withDefaults() Loop {
	if l.Tick <= 0 {
		l.Tick = DefaultTick
	}
	if l.Claim <= 0 {
		l.Claim = DefaultClaim
	}
	if l.TTL <= 0 {
		l.TTL = DefaultTTL
	}
	if l.Retry <= 0 {
		l.Retry = DefaultRetry
	}
	if l.OnError == nil {
		l.OnError = func(error) {}
	}
	return l
}

// retryAt returns the time at which failed work is due again, in the protocol's unit.
func (l Loop) retryAt() int64 { return time.Now().Add(l.Retry).UnixMilli() }

// job is a piece of work that a look has found.
type job struct {
	key string // at most one job of a key is handled at a time
	// do handles the job. done reports that the next look will not find it again.
	do func(ctx context.Context) (done bool, err error)
}

// pool is the set of jobs that a loop is handling.
type pool struct {
	wg   sync.WaitGroup
	room chan struct{} // receives an element when a job is done since the last look

	mu   sync.Mutex
	busy map[string]bool
}

// run looks for work until ctx ends, waits for the running jobs, and returns the cause. list
// returns up to limit jobs, some of which may be running.
func (l Loop) run(ctx context.Context, list func(ctx context.Context, limit int) ([]job, error)) error {
	p := &pool{room: make(chan struct{}, 1), busy: map[string]bool{}}
	defer p.wg.Wait()
	for {
		free := l.Claim - p.inHand()
		left := free == 0
		if !left {
			jobs, err := list(ctx, free)
			if err != nil && ctx.Err() == nil {
				l.OnError(err)
			}
			// Running jobs may be found again until their claims are made.
			left = len(jobs) >= free
			for _, j := range jobs {
				if free > 0 && p.start(ctx, j, l.OnError) {
					free--
				}
			}
		}
		if !p.pause(ctx, l.Tick-l.Tick/20+rand.N(l.Tick/10+1), left) {
			return context.Cause(ctx)
		}
	}
}

func (p *pool) inHand() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.busy)
}

// start handles a job on a goroutine of its own, unless a job of its key is running.
func (p *pool) start(ctx context.Context, j job, onError func(error)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[j.key] {
		return false
	}
	p.busy[j.key] = true
	p.wg.Go(func() {
		done, err := j.do(ctx)
		if err != nil {
			onError(err)
		}
		p.mu.Lock()
		delete(p.busy, j.key)
		p.mu.Unlock()
		if done {
			select {
			case p.room <- struct{}{}:
			default:
			}
		}
	})
	return true
}

// pause waits for d or, if work was left, until a job is done. It reports false if ctx has ended.
func (p *pool) pause(ctx context.Context, d time.Duration, left bool) bool {
	room := p.room
	if !left {
		room = nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-room:
		return true
	case <-ctx.Done():
		return false
	}
}

// claims numbers the claims of this process.
var claims atomic.Int64

// claimer returns a unique name for one claim. It identifies a claim whose reply was lost and whose
// repeat is refused.
func (c *Client) claimer() string {
	return fmt.Sprintf("%s/%d-%08x", c.opts.Owner, claims.Add(1), rand.Uint32())
}

// bound returns the context of a handler under a claim of the loop's TTL that was requested at
// sent.
func (l Loop) bound(ctx context.Context, sent time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, sent.Add(l.TTL-l.TTL/10))
}

// RecoverRuns looks for runs without a driver, acquires the lease of each and runs work under it,
// until ctx ends; it then returns the cause. If another process has acquired the lease since, the
// run is left to that process. If work returns an error other than [ErrParked], the run's lease
// expires and the run is recovered again.
func (c *Client) RecoverRuns(ctx context.Context, l Loop, work Work) error {
	l = l.withDefaults()
	var pages pages
	return l.run(ctx, func(ctx context.Context, _ int) ([]job, error) {
		var listed *tapepb.ListRunsToRecoverResponse
		err := pages.look(func(token string) (n int, next string, err error) {
			listed, err = c.tape.ListRunsToRecover(ctx, &tapepb.ListRunsToRecoverRequest{PageToken: token})
			return len(listed.GetRuns()), listed.GetNextPageToken(), err
		})
		var jobs []job
		for _, r := range listed.GetRuns() {
			jobs = append(jobs, job{r.GetRunId(), func(ctx context.Context) (done bool, err error) {
				drives := false
				err = c.Resume(ctx, r.GetRunId(), func(ctx context.Context, run *Run) error {
					drives = true
					return work(ctx, run)
				})
				if taken := errors.Is(err, runstore.ErrLeaseHeld) || errors.Is(err, ErrEnded); taken && !drives {
					return false, nil
				}
				done = err == nil || errors.Is(err, ErrParked)
				if done {
					err = nil
				}
				return done, err
			}})
		}
		// Processes that list the same runs start with different ones.
		rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
		return jobs, err
	})
}

// Observe finds out from the counterparty what happened to an effect. It returns nil if that is not
// known yet. The fields run_id and idempotency_key of its result are filled in.
type Observe func(ctx context.Context, e *tapepb.EffectRecord) (*tapepb.RecordExternalObservationRequest, error)

// ReconcileEffects looks for effects whose outcome is UNKNOWN, and for effects that have been
// PENDING for longer than pendingFor on the clock of this process (none for 0). It calls observe
// for each and records the result, until ctx ends; it then returns the cause. The protocol has no
// claims for this work: two processes may observe the same effect, and the server keeps a CONFIRMED
// or FAILED outcome unless it was seen CONFIRMED or DUPLICATE. While a dispatcher has a claim of the effect,
// the server records no ABSENT, and STUCK only of a NON_IDEMPOTENT one, and a later look lists the effect again.
//
// The server lists the effects that have not changed for longest first, and gives no cursor to a
// client that is not limited to tenants. So each look requests 200 effects more than the number that
// observe could not resolve. The size of one reply limits this: if a full reply of unresolved effects
// comes first, later effects wait until some of those are settled.
func (c *Client) ReconcileEffects(ctx context.Context, l Loop, pendingFor time.Duration, observe Observe) error {
	l = l.withDefaults()
	const page = 200
	var mu sync.Mutex
	open := map[string]bool{} // the effects of the last list that observe could not resolve
	var pages pages
	return l.run(ctx, func(ctx context.Context, _ int) ([]job, error) {
		mu.Lock()
		req := &tapepb.ListPendingEffectsRequest{IncludeUnknown: true, Limit: int64(page + len(open))}
		mu.Unlock()
		if pendingFor > 0 {
			req.IncludePending, req.OlderThanMs = true, time.Now().Add(-pendingFor).UnixMilli()
		}
		var listed *tapepb.ListPendingEffectsResponse
		err := pages.look(func(token string) (n int, next string, err error) {
			req.PageToken = token
			listed, err = c.tape.ListPendingEffects(ctx, req)
			return len(listed.GetEffects()), listed.GetNextPageToken(), err
		})
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		var jobs []job
		before := open
		open = map[string]bool{}
		for _, e := range listed.GetEffects() {
			key := e.GetRunId() + "\x00" + e.GetIdempotencyKey()
			if before[key] {
				open[key] = true
			}
			jobs = append(jobs, job{key, func(ctx context.Context) (done bool, err error) {
				ctx, cancel := l.bound(ctx, time.Now())
				defer cancel()
				seen, err := observe(ctx, e)
				if err == nil && seen != nil {
					seen.RunId, seen.IdempotencyKey = e.GetRunId(), e.GetIdempotencyKey()
					var now *tapepb.EffectRecord
					if now, err = c.tape.RecordExternalObservation(ctx, seen); err != nil || !listedAgain(e, now) {
						return err == nil, err
					}
					if now.GetTsMs() != e.GetTsMs() { // the next list has it behind the others
						return false, nil
					}
				}
				mu.Lock()
				defer mu.Unlock()
				open[key] = true
				return false, err
			}})
		}
		// Effects that cannot be resolved yet must not block the others.
		rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
		return jobs, nil
	})
}

// listedAgain reports whether the next look of a reconciler may list an effect that was observed: it is
// UNKNOWN, or it was PENDING and stays so.
func listedAgain(listed, now *tapepb.EffectRecord) bool {
	switch now.GetStatus() {
	case tapepb.EffectStatus_EFFECT_STATUS_UNKNOWN:
		return true
	case tapepb.EffectStatus_EFFECT_STATUS_PENDING:
		return listed.GetStatus() == tapepb.EffectStatus_EFFECT_STATUS_PENDING
	default:
		return false
	}
}
