package bench

import (
	"context"
	"slices"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// line is a first-come, first-served queue of one process's contenders for the lease of one run. At
// the end of its turn the holder hands the lease off instead of releasing it: it acquires the lease
// for the next contender, with its own fence as consent. A waiting contender sends no request to
// the store.
type line struct {
	mu      sync.Mutex
	taken   bool // a contender of this line holds the lease, or is asking the store for it
	waiting []*ticket
}

// ticket is the position of a contender in a line.
type ticket struct {
	request runstore.AcquireRequest
	// turn receives the lease, or nil if the contender must ask the store for it. It is buffered
	// for its one value, so that the sender never blocks.
	turn chan *runstore.Lease
}

// acquire waits in the line. The first contender asks the store, like any other client.
func (l *line) acquire(ctx context.Context, c *caller, req runstore.AcquireRequest) (runstore.Lease, error) {
	if t := l.join(req); t != nil {
		var lease *runstore.Lease
		select {
		case lease = <-t.turn:
		case <-ctx.Done():
			if l.withdraw(t) {
				return runstore.Lease{}, ctx.Err()
			}
			lease = <-t.turn // its turn has come, and a lease that was granted must be used
		}
		if lease != nil {
			return *lease, nil
		}
	}
	granted, err := c.AcquireLease(ctx, req)
	if err != nil {
		l.pass()
	}
	return granted.Lease, err
}

// release ends the holder's turn.
func (l *line) release(ctx context.Context, c *caller, held runstore.Lease) error {
	next := l.first()
	if next == nil {
		err := c.release(ctx, held)
		l.pass()
		return err
	}
	req := next.request
	req.Guards = []runstore.Guard{held.Fence()}
	granted, err := c.AcquireLease(ctx, req)
	if err != nil {
		next.turn <- nil
		return err
	}
	next.turn <- &granted.Lease
	return nil
}

// join returns the contender's ticket, or nil if the contender need not wait.
func (l *line) join(req runstore.AcquireRequest) *ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.taken {
		l.taken = true
		return nil
	}
	t := &ticket{request: req, turn: make(chan *runstore.Lease, 1)}
	l.waiting = append(l.waiting, t)
	return t
}

// withdraw removes a ticket from the line. It returns false if the ticket's turn has come.
func (l *line) withdraw(t *ticket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, t)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}

// first removes and returns the first ticket of the line, or nil if the line is empty. The line
// stays taken.
func (l *line) first() *ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return nil
	}
	t := l.waiting[0]
	l.waiting = l.waiting[1:]
	return t
}

// pass has the first waiting contender send its request, or frees the line if it is empty.
func (l *line) pass() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.taken = false
		return
	}
	l.waiting[0].turn <- nil
	l.waiting = l.waiting[1:]
}
