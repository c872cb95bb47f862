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
	DefaultTTL   = time.Minute // that of Tape's clients
	DefaultRetry = 10 * time.Second
)

// Loop says how a loop looks for work. A zero field has its default.
type Loop struct {
	// Tick is the pause between two looks, with jitter of a tenth. 1 s by default. A loop that found as
	// much as it could take looks again as soon as a piece of it is done.
	Tick time.Duration
	// Claim is how many pieces of work are handled at a time. 16 by default.
	Claim int
	// TTL is how long a claim lasts on the server's clock, and bounds one call of a handler: its
	// context ends a tenth earlier. Runs are bounded by their leases instead. 1 min by default.
	TTL time.Duration
	// Retry is the pause before work that has failed is due again, counted on the clock of this
	// process, as the protocol names the time. 10 s by default.
	Retry time.Duration
	// OnError receives the errors of calls and handlers; a loop goes on after every one. It must be
	// safe for concurrent use. They are discarded by default.
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

// retryAt returns when work that has failed is due again, as the protocol has it.
func (l Loop) retryAt() int64 { return time.Now().Add(l.Retry).UnixMilli() }

// job is a piece of work that a look has found.
type job struct {
	key string // what the loop handles once at a time
	// do handles it, and reports whether it is done with, so that the next look finds something else.
	do func(ctx context.Context) (done bool, err error)
}

// pool is the work that a loop handles at the moment.
type pool struct {
	wg   sync.WaitGroup
	room chan struct{} // has an element when a job was done since the last look

	mu   sync.Mutex
	busy map[string]bool
}

// run looks for work until ctx ends, waits for the work in hand, and returns the cause. list returns
// up to limit pieces of work, some of which may be in hand.
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
			// What is in hand may be found again, until its claim is made.
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

// start handles a job on a goroutine of its own, unless it is in hand.
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

// pause waits for d or, if work was left, for room. It reports whether ctx goes on.
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

// claimer returns a name for one claim. A claim whose reply is lost and whose repeat is refused is
// recognised by it.
func (c *Client) claimer() string {
	return fmt.Sprintf("%s/%d-%08x", c.opts.Owner, claims.Add(1), rand.Uint32())
}

// bound returns the context of a handler under a claim of the loop's TTL that was asked for at sent.
func (l Loop) bound(ctx context.Context, sent time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, sent.Add(l.TTL-l.TTL/10))
}

// RecoverRuns looks for runs without a driver, takes the lease of each and runs work under it, until
// ctx ends; it then returns the cause. A run whose lease another process has taken since is left to
// that process. Work that returns an error, [ErrParked] apart, leaves its run to expire and be
// recovered again.
func (c *Client) RecoverRuns(ctx context.Context, l Loop, work Work) error {
	l = l.withDefaults()
	return l.run(ctx, func(ctx context.Context, _ int) ([]job, error) {
		listed, err := c.tape.ListRunsToRecover(ctx, &tapepb.ListRunsToRecoverRequest{})
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
		// Processes that list the same runs begin with different ones.
		rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
		return jobs, err
	})
}

// Observe finds out at the counterparty what became of an effect. It returns nil if that is not known
// yet. The fields run_id and idempotency_key of its result are filled in.
type Observe func(ctx context.Context, e *tapepb.EffectRecord) (*tapepb.RecordExternalObservationRequest, error)

// ReconcileEffects looks for effects whose outcome is UNKNOWN, and for effects that have been PENDING
// for longer than pendingFor on the clock of this process (none for 0). It asks observe about each and
// records what observe returns, until ctx ends; it then returns the cause. The protocol has no claims
// for this work: two processes may ask about one effect, and the server keeps what is CONFIRMED.
//
// The server lists the effects first that have not changed for longest, and the protocol has no
// cursor. So each look asks for 200 more than those about which observe has found nothing out. One
// answer of the server bounds that: effects behind as many as it holds wait until some are settled.
func (c *Client) ReconcileEffects(ctx context.Context, l Loop, pendingFor time.Duration, observe Observe) error {
	l = l.withDefaults()
	const page = 200
	var mu sync.Mutex
	open := map[string]bool{} // about which observe has found nothing out, of those that were listed last
	return l.run(ctx, func(ctx context.Context, _ int) ([]job, error) {
		mu.Lock()
		req := &tapepb.ListPendingEffectsRequest{IncludeUnknown: true, Limit: int64(page + len(open))}
		mu.Unlock()
		if pendingFor > 0 {
			req.IncludePending, req.OlderThanMs = true, time.Now().Add(-pendingFor).UnixMilli()
		}
		listed, err := c.tape.ListPendingEffects(ctx, req)
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
				if err != nil || seen == nil {
					mu.Lock()
					defer mu.Unlock()
					open[key] = true
					return false, err
				}
				seen.RunId, seen.IdempotencyKey = e.GetRunId(), e.GetIdempotencyKey()
				_, err = c.tape.RecordExternalObservation(ctx, seen)
				return err == nil, err
			}})
		}
		// Effects about which nothing is known yet must not keep the others away.
		rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
		return jobs, nil
	})
}
