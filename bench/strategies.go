package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// Back-off of a keeper that competes without hints, in place of the defaults, 1 s to 10 s, which
// are longer than a slice.
const (
	contestMinBackoff = 2 * time.Millisecond
	contestMaxBackoff = 50 * time.Millisecond
)

// contestTTL is the TTL of a contest's leases: 10 minutes, so that no lease expires during a turn.
const contestTTL = 10 * time.Minute

// arena holds the contests of one store: all use one handle, each has runs of its own.
type arena struct {
	system string
	store  Store
	handle runstore.RunStore
	runs   *atomic.Int64 // created runs
}

// strategies returns the ways of competing that the contract of a store offers.
func (a arena) strategies() []Strategy {
	all := []Strategy{
		a.strategy("optimistic loop", askAtOnce),
		a.strategy("read, then compare-and-swap", readThenSwap),
		a.strategy("keeper with back-off", keeperPolls),
	}
	if _, ok := runstore.As[runstore.RunNotifier](a.handle); ok {
		all = append(all, a.strategy("keeper with hints", keeperWaits))
	}
	return append(all, Strategy{System: a.system, Name: "line, handed off", New: a.lines})
}

func (a arena) strategy(name string, acquirer func(*caller) (acquire, error)) Strategy {
	return Strategy{System: a.system, Name: name, New: func(ctx context.Context, contenders, leases int) (Contest, error) {
		return a.contest(ctx, contenders, leases, acquirer)
	}}
}

// acquire waits for the lease of a run until it is granted or ctx ends.
type acquire func(ctx context.Context, req runstore.AcquireRequest) (runstore.Lease, error)

// askAtOnce retries without a pause when the lease is held.
func askAtOnce(c *caller) (acquire, error) {
	return func(ctx context.Context, req runstore.AcquireRequest) (runstore.Lease, error) {
		for {
			granted, err := c.AcquireLease(ctx, req)
			if !errors.Is(err, runstore.ErrLeaseHeld) {
				return granted.Lease, err
			}
		}
	}, nil
}

// readThenSwap reads the run until its lease is free, and acquires the lease under the token that
// it has read. Each such reading counts as an attempt.
func readThenSwap(c *caller) (acquire, error) {
	return func(ctx context.Context, req runstore.AcquireRequest) (runstore.Lease, error) {
		for {
			began := time.Now()
			run, err := c.GetRun(ctx, req.Run)
			if err != nil {
				return runstore.Lease{}, err
			}
			if run.Holder.Token != 0 {
				c.asked.Add(1)
				c.lose(time.Since(began))
				continue
			}
			req.Guards = []runstore.Guard{runstore.AtToken(run.Token)}
			granted, err := c.AcquireLease(ctx, req)
			if !errors.Is(err, runstore.ErrLeaseHeld) && !errors.Is(err, runstore.ErrConflict) {
				return granted.Lease, err
			}
		}
	}, nil
}

func keeperPolls(c *caller) (acquire, error) {
	return keeper(c, &lease.Options{TTL: contestTTL, MinBackoff: contestMinBackoff, MaxBackoff: contestMaxBackoff})
}

func keeperWaits(c *caller) (acquire, error) {
	return keeper(notifying{c, c.RunStore.(runstore.RunNotifier)}, &lease.Options{TTL: contestTTL})
}

func keeper(store lease.Store, opts *lease.Options) (acquire, error) {
	k, err := lease.New(store, opts)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, req runstore.AcquireRequest) (runstore.Lease, error) {
		granted, err := k.Acquire(ctx, req)
		return granted.Lease, err
	}, nil
}

// TurnBytes is the size of the event that a turn commits, in bytes: 100, for stores and peers alike.
const TurnBytes = smallBytes

// turnData is the event that a turn commits. The token that the store adds identifies the turn.
var turnData = payload(TurnBytes)

// storeContest is a contest for the leases of runs.
type storeContest struct {
	handle     runstore.RunStore
	runs       []runstore.RunID
	contenders []contender

	mu   sync.Mutex
	wins [][]runstore.Token // by run: the tokens of acknowledged events
}

type contender struct {
	caller  *caller
	acquire acquire
	release func(context.Context, runstore.Lease) error
}

// lines makes a contest in which each lease has a line of waiting contenders.
func (a arena) lines(ctx context.Context, contenders, leases int) (Contest, error) {
	c, err := a.contest(ctx, contenders, leases, askAtOnce)
	if err != nil {
		return nil, err
	}
	lines := make(map[runstore.RunID]*line)
	for _, id := range c.runs {
		lines[id] = new(line)
	}
	for i := range c.contenders {
		own := &c.contenders[i]
		own.acquire = func(ctx context.Context, req runstore.AcquireRequest) (runstore.Lease, error) {
			return lines[req.Run].acquire(ctx, own.caller, req)
		}
		own.release = func(ctx context.Context, held runstore.Lease) error {
			return lines[held.Run].release(ctx, own.caller, held)
		}
	}
	return c, nil
}

// contest makes a contest on new runs, in which each contender acquires leases by a strategy of its
// own from acquirer.
func (a arena) contest(ctx context.Context, contenders, leases int, acquirer func(*caller) (acquire, error)) (*storeContest, error) {
	c := &storeContest{handle: a.handle, wins: make([][]runstore.Token, leases)}
	for range leases {
		id := a.store.RunID(int(a.runs.Add(1)))
		if _, err := a.handle.CreateRun(ctx, runstore.RunSpec{ID: id}); err != nil {
			return nil, err
		}
		c.runs = append(c.runs, id)
	}
	for range contenders {
		own := &caller{RunStore: a.handle, keep: true}
		acquire, err := acquirer(own)
		if err != nil {
			return nil, err
		}
		c.contenders = append(c.contenders, contender{own, acquire, own.release})
	}
	return c, nil
}

// Turn implements Contest.
func (c *storeContest) Turn(ctx context.Context, contender, of int) (Turn, error) {
	own := c.contenders[contender]
	calls, asked := own.caller.calls.Load(), own.caller.asked.Load()
	own.caller.lost = nil
	spent := func(t Turn) Turn {
		t.Attempts = int(own.caller.asked.Load() - asked)
		t.Calls = int(own.caller.calls.Load() - calls)
		t.Lost = own.caller.lost
		return t
	}
	began := time.Now()
	held, err := own.acquire(ctx, runstore.AcquireRequest{
		Run: c.runs[of], LeaseSpec: runstore.LeaseSpec{Owner: owner(contender), TTL: contestTTL},
	})
	t := Turn{Waited: time.Since(began)}
	if err != nil {
		return spent(t), err
	}
	ctx = context.WithoutCancel(ctx) // a granted lease is used and released
	batch := runstore.NewBatch(held.Run, held.Fence())
	batch.Append("turn", turnData)
	if _, err := own.caller.Commit(ctx, batch); err != nil {
		return spent(t), err
	}
	c.won(of, held.Token)
	err = own.release(ctx, held)
	return spent(t), err
}

func (c *storeContest) won(of int, token runstore.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wins[of] = append(c.wins[of], token)
}

// Committed implements Contest. It compares the journals with the turns, event by event: each
// acknowledged token is in the journal once, in the order of the grants, and tokens grow.
func (c *storeContest) Committed(ctx context.Context) (events int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, id := range c.runs {
		var tokens []runstore.Token
		for e, err := range runstore.Journal(ctx, c.handle, id, 1) {
			if err != nil {
				return events, err
			}
			if n := len(tokens); n > 0 && e.Token <= tokens[n-1] {
				return events, fmt.Errorf("event %d of run %s carries token %v, the one before it %v", e.Seq, id, e.Token, tokens[n-1])
			}
			tokens = append(tokens, e.Token)
		}
		if err := sameTokens(tokens, c.wins[i]); err != nil {
			return events, fmt.Errorf("run %s: %w", id, err)
		}
		events += len(tokens)
	}
	return events, nil
}

// sameTokens compares the tokens of a journal with the acknowledged ones, in any order.
func sameTokens(stored, acknowledged []runstore.Token) error {
	count := make(map[runstore.Token]int)
	for _, t := range acknowledged {
		if count[t]++; count[t] > 1 {
			return fmt.Errorf("token %v was granted twice", t)
		}
	}
	for _, t := range stored {
		if count[t]--; count[t] < 0 {
			return fmt.Errorf("an event under token %v is stored, and no turn committed it", t)
		}
	}
	for t, n := range count {
		if n > 0 {
			return fmt.Errorf("the event under token %v was acknowledged and is not stored", t)
		}
	}
	return nil
}

// Close implements Contest. The arena owns the handle.
func (c *storeContest) Close() error { return nil }

func owner(i int) runstore.Owner { return runstore.Owner("contender-" + strconv.Itoa(i)) }
