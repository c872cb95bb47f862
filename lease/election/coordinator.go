package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// State is what a replica is doing.
type State int

// The states of a replica.
const (
	// Stopped replicas do not take part: Run has not begun or has returned.
	Stopped State = iota
	// Standby replicas wait for the lease.
	Standby
	// Active is the replica that runs the work under the lease, as far as it knows. After a loss it
	// is active until its work has returned.
	Active
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case Standby:
		return "standby"
	case Active:
		return "active"
	default:
		return "stopped"
	}
}

// Status describes a replica, for health endpoints and metrics. Only the store knows which replica
// is active: a replica that is paused reports a status that is over.
type Status struct {
	Name    runstore.RunID
	Replica runstore.Owner
	State   State
	// Token is the fencing token of the current term, or of the last one that this replica had; 0
	// before its first.
	Token runstore.Token
	// Since is when the state began, on this process's clock.
	Since time.Time
	// Terms counts the terms of this replica, and Lost those that ended by a loss.
	Terms, Lost int64
	// Err is the last loss of the lease, the last error of a term that ended by StepDown or a handoff, or the
	// error with which Run returned before its context had ended; nil if there was none.
	Err error
}

// ErrSteppedDown is the cause of the work's context after [Coordinator.StepDown].
var ErrSteppedDown = errors.New("the replica has stepped down")

// Coordinator keeps one of all replicas with the same name active. It is safe for concurrent use.
type Coordinator struct {
	store  runstore.RunStore
	name   runstore.RunID
	opts   Options
	keeper *lease.Keeper
	// createTimeout bounds each attempt to create the run.
	createTimeout time.Duration

	mu       sync.Mutex
	status   Status
	running  bool
	stepDown context.CancelCauseFunc // ends the work of the current term; nil if there is none
}

// New returns a coordinator of the name, which is the id of a run: the run is created if it does
// not exist, unlisted. Nil Options mean the defaults. The error lists every invalid option and
// matches runstore.ErrInvalid.
func New(store runstore.RunStore, name runstore.RunID, opts *Options) (*Coordinator, error) {
	resolved, leases, err := opts.resolve()
	keeper, leaseErr := lease.New(store, leases)
	if err := errors.Join(runstore.CheckRunID(name), err, leaseErr); err != nil {
		return nil, err
	}
	requests, err := leases.Resolve()
	if err != nil {
		return nil, err
	}
	c := &Coordinator{store: store, name: name, opts: resolved, keeper: keeper, createTimeout: requests.RequestTimeout}
	c.status = Status{Name: name, Replica: resolved.Replica, Since: time.Now()}
	return c, nil
}

// Status returns the replica's status.
func (c *Coordinator) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Run takes part in the election until ctx ends or the work has returned while the lease was held.
// While this replica is active, work runs under the lease. Work must return soon after its context
// has ended; it gets the lease's fence from held.
//
//   - After a loss or a handoff of the lease Run continues as a standby, and work runs again in a
//     later term.
//   - If work returns although its context has not ended, Run releases the lease and returns the
//     work's error: a singleton that is done, or that failed, is not repeated.
//   - When ctx ends, Run waits for work, releases the lease and returns the context's cause.
//
// Run returns the store's error if no later request can succeed, such as runstore.ErrClosed or
// ErrInvalid. Only one call of Run may be active; another returns an error at once.
func (c *Coordinator) Run(ctx context.Context, work lease.Work) (err error) {
	if err := c.begin(); err != nil {
		return err
	}
	defer func() {
		if ctx.Err() != nil {
			c.end(nil)
		} else {
			c.end(err)
		}
	}()
	for ctx.Err() == nil {
		granted, err := c.acquire(ctx)
		switch {
		case err == nil && ctx.Err() != nil:
			return c.keeper.Hold(ctx, granted, work) // revokes the lease, and does not run the work
		case ctx.Err() != nil:
			return errors.Join(context.Cause(ctx), err)
		case err != nil:
			return err
		}
		end, err := c.term(ctx, granted, work)
		switch end {
		case termLost:
			c.enter(Standby, func(s *Status) { s.Lost++; s.Err = err })
		case termStopped:
			return context.Cause(ctx)
		case termDone:
			return err
		case termSteppedDown:
			c.enter(Standby, func(s *Status) {
				if _, handedOff := err.(*lease.HandedOffError); err != nil && !handedOff && !errors.Is(err, ErrSteppedDown) && !errors.Is(err, context.Canceled) {
					s.Err = err
				}
			})
			// Another replica comes first.
			if !pace.Pause(ctx, c.opts.AcquireInterval) {
				return context.Cause(ctx)
			}
		}
	}
	return context.Cause(ctx)
}

// StepDown ends the current term of this replica, if it has one: the work's context ends with
// [ErrSteppedDown], the lease is released once the work has returned, and the replica is a standby
// that does not request the lease for one AcquireInterval. It reports whether there was a term.
func (c *Coordinator) StepDown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stepDown == nil {
		return false
	}
	c.stepDown(ErrSteppedDown)
	return true
}

// acquire waits for the lease. It creates the run if there is none, also after a purge.
func (c *Coordinator) acquire(ctx context.Context) (lease.Granted, error) {
	acquire := c.keeper.Acquire
	if c.opts.RequestHandoff && c.Status().Terms == 0 {
		acquire = c.keeper.RequestHandoff
	}
	for backoff := c.opts.AcquireInterval / 5; ; backoff = min(2*backoff, c.opts.AcquireInterval) {
		granted, err := acquire(ctx, runstore.AcquireRequest{
			Run:       c.name,
			LeaseSpec: runstore.LeaseSpec{Owner: c.opts.Replica, Reactor: c.opts.Reactor, MaxStall: c.opts.MaxStall},
		})
		if errors.Is(err, runstore.ErrNotFound) {
			if err = c.create(ctx); err == nil {
				continue
			}
		}
		switch runstore.KindOf(err) {
		case nil:
			return granted, err
		case runstore.ErrUnavailable, runstore.ErrUnknownOutcome:
			c.opts.Logger.Warn("election: the store cannot be reached", "run", c.name, "owner", c.opts.Replica, "error", err)
		default:
			return granted, err
		}
		if !pace.Pause(ctx, backoff) {
			return granted, context.Cause(ctx)
		}
	}
}

// create creates the run, within the time that the keeper leaves to a request for the lease.
func (c *Coordinator) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.createTimeout)
	defer cancel()
	_, err := c.store.CreateRun(ctx, runstore.RunSpec{ID: c.name, Unlisted: true})
	return err
}

// termEnd is how a term has ended.
type termEnd int

const (
	termLost        termEnd = iota // the lease was lost
	termDone                       // the work returned although its context had not ended
	termStopped                    // the context of Run ended
	termSteppedDown                // StepDown was called, or the lease was handed off
)

// term runs the work of one term, and returns how the term ended.
func (c *Coordinator) term(ctx context.Context, granted lease.Granted, work lease.Work) (termEnd, error) {
	termCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.setStepDown(cancel)
	defer c.setStepDown(nil)
	c.enter(Active, func(s *Status) { s.Token = granted.Lease.Token; s.Terms++ })
	// The end is judged when the work returns: the release takes a while, in which the context may
	// end too.
	done, lost := false, false
	var result error
	err := c.keeper.Hold(termCtx, granted, func(ctx context.Context, held *lease.Held) error {
		err := work(ctx, held)
		done, lost, result = ctx.Err() == nil, lease.IsLossOf(context.Cause(ctx), granted.Lease), err
		return err
	})
	_, handedOff := err.(*lease.HandedOffError) // and work has no error but, if any, the refusal of its fence
	switch {
	case lost || lease.IsLossOf(err, granted.Lease):
		return termLost, err
	case done && handedOff && result != nil:
		return termSteppedDown, err
	case done && errors.Is(err, lease.ErrHandedOff):
		return termDone, result
	case done:
		return termDone, err
	case ctx.Err() != nil:
		return termStopped, err
	default:
		return termSteppedDown, err
	}
}

func (c *Coordinator) setStepDown(cancel context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stepDown = cancel
}

// begin marks the coordinator as running.
func (c *Coordinator) begin() error {
	c.mu.Lock()
	running := c.running
	c.running = true
	c.mu.Unlock()
	if running {
		return fmt.Errorf("election: %q runs already in this coordinator", string(c.name))
	}
	c.enter(Standby, nil)
	return nil
}

// end marks the coordinator as stopped. A nil err leaves the error of the status.
func (c *Coordinator) end(err error) {
	c.enter(Stopped, func(s *Status) {
		if err != nil {
			s.Err = err
		}
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = false
}

// enter changes the status, and reports the change.
func (c *Coordinator) enter(state State, change func(*Status)) {
	c.mu.Lock()
	c.status.State, c.status.Since = state, time.Now()
	if change != nil {
		change(&c.status)
	}
	now := c.status
	c.mu.Unlock()
	level := slog.LevelInfo
	if state == Standby && errors.Is(now.Err, lease.ErrLost) {
		level = slog.LevelWarn
	}
	c.opts.Logger.Log(context.Background(), level, "election: "+state.String(), "run", now.Name, "owner", now.Replica, "token", now.Token, "error", now.Err)
	if c.opts.OnChange != nil {
		c.opts.OnChange(now)
	}
}

// LeaseVector describes the lease of an active replica.
func LeaseVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "the lease of one unlisted run for each name",
		Payload:     "the engine's; the owner is the replica",
		Enforcement: "by the store, at each write with Held.Fence",
		Token:       "the run's: one for each term",
		Handoff:     "release and acquire; gap or overlap if Options.Handoff says so",
	}
}
