package crossrun_test

import (
	"context"
	"errors"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// schedule runs actors one store operation at a time, in an order that is chosen from outside, so
// that every interleaving can be reproduced.
type schedule struct {
	actors []*actor
	// choose picks one of n actors that can continue.
	choose func(n int) int
	// fault decides what happens to the operation that an actor is about to make.
	fault func(a *actor) fault
}

// fault is what happens to an actor at an operation.
type fault int

const (
	noFault       fault = iota
	diesBefore          // the actor dies before the operation
	diesAfter           // the actor dies after the operation, without its reply
	losesRequest        // the operation is lost, and the actor continues
	losesReply          // the reply is lost, and the actor continues
	delaysRequest       // as losesRequest, but the operation is made in the end
)

type actor struct {
	name    string
	waiting chan bool // true: at an operation; false: over
	pass    chan fault
	dead    bool
	late    []func() // the operations that were delayed
}

// add lets act run as an actor on a store of its own.
func (s *schedule) add(name string, store runstore.RunStore, act func(gated)) {
	a := &actor{name: name, waiting: make(chan bool), pass: make(chan fault)}
	s.actors = append(s.actors, a)
	go func() {
		a.waiting <- true // every actor begins by waiting for its turn
		if f := <-a.pass; f != diesBefore && f != diesAfter {
			act(gated{store, a})
		}
		a.waiting <- false
	}()
	<-a.waiting
}

// run lets the actors go on until all are over.
func (s *schedule) run() {
	live := append([]*actor(nil), s.actors...)
	for len(live) > 0 {
		i := s.choose(len(live))
		a := live[i]
		f := noFault
		if s.fault != nil {
			f = s.fault(a)
		}
		a.pass <- f
		if !<-a.waiting {
			live = append(live[:i:i], live[i+1:]...)
		}
	}
}

var errDead = errors.New("the process is dead, or was not heard")

// gated is an actor's store. It is no MultiCommitter, whatever the store is.
type gated struct {
	runstore.RunStore
	a *actor
}

func turn[V any](g gated, do func() (V, error)) (V, error) {
	var none V
	lost := &runstore.OpError{Op: "test", Err: runstore.ErrUnknownOutcome, Cause: errDead}
	if g.a.dead {
		return none, lost
	}
	g.a.waiting <- true
	switch <-g.a.pass {
	case diesBefore:
		g.a.dead = true
		return none, lost
	case diesAfter:
		g.a.dead = true
		_, _ = do()
		return none, lost
	case losesRequest:
		return none, lost
	case losesReply:
		_, _ = do()
		return none, lost
	case delaysRequest:
		g.a.late = append(g.a.late, func() { _, _ = do() })
		return none, lost
	default:
		return do()
	}
}

func (g gated) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	return turn(g, func() (runstore.Granted, error) { return g.RunStore.AcquireLease(ctx, req) })
}

func (g gated) GetRun(ctx context.Context, id runstore.RunID) (runstore.Run, error) {
	return turn(g, func() (runstore.Run, error) { return g.RunStore.GetRun(ctx, id) })
}

func (g gated) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return turn(g, func() (runstore.Committed, error) { return g.RunStore.Commit(ctx, b) })
}

func (g gated) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return turn(g, func() ([]runstore.Record, error) { return g.RunStore.ReadRecords(ctx, id, q) })
}

// forgetful is a store that forgets the ids of all batches but those that the
// caller of a step chose.
type forgetful struct{ runstore.RunStore }

func (s forgetful) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	for _, role := range []string{"/open", "/propose", "/apply", "/refuse", "/clear"} {
		if strings.HasSuffix(string(b.ID), role) {
			b.ID = ""
		}
	}
	return s.RunStore.Commit(ctx, b)
}

// walk enumerates all sequences of choices, one call of next after the other.
type walk struct {
	path, width []int
	at          int
}

func (w *walk) choose(n int) int {
	if w.at == len(w.path) {
		w.path, w.width = append(w.path, 0), append(w.width, n)
	}
	w.at++
	return w.path[w.at-1]
}

// next moves to the next sequence; false after the last.
func (w *walk) next() bool {
	w.path, w.width = w.path[:w.at], w.width[:w.at]
	w.at = 0
	for i := len(w.path) - 1; i >= 0; i-- {
		if w.path[i]+1 < w.width[i] {
			w.path[i]++
			w.path, w.width = w.path[:i+1], w.width[:i+1]
			return true
		}
	}
	return false
}
