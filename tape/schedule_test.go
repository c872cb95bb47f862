package tape_test

import (
	"context"
	"errors"

	"github.com/tapestore/tapestore/runstore"
)

// fate is what becomes of a call to a store.
type fate struct {
	// makes says that the store makes the call, and err, if not nil, is what the caller gets
	// all the same.
	makes bool
	err   error
	// dies says that the caller gets err from each later call, too, and the store none of them.
	dies bool
	// cancels ends the caller's context first.
	cancels bool
}

var errDead = &runstore.OpError{Op: "test", Err: runstore.ErrUnknownOutcome, Cause: errors.New("no reply")}

// scripted is a store for one caller, whose calls meet the fates of a script. It commits to one run
// at a time.
type scripted struct {
	runstore.RunStore
	script func(n int) fate
	cancel context.CancelFunc
	calls  int
	dead   error
	// refused counts guards that did not hold.
	refused int
}

func call[V any](s *scripted, do func() (V, error)) (V, error) {
	var none V
	if s.dead != nil {
		return none, s.dead
	}
	f := s.script(s.calls)
	s.calls++
	if f.dies {
		s.dead = f.err
	}
	if f.cancels && !f.makes {
		s.cancel()
		return do()
	}
	if !f.makes {
		return none, f.err
	}
	v, err := do()
	if errors.Is(err, runstore.ErrConflict) {
		s.refused++
	}
	if f.cancels {
		s.cancel()
	}
	if f.err != nil {
		return none, f.err
	}
	return v, err
}

func (s *scripted) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	return call(s, func() (runstore.Created, error) { return s.RunStore.CreateRun(ctx, spec) })
}

func (s *scripted) Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error) {
	return call(s, func() (runstore.Committed, error) { return s.RunStore.Commit(ctx, b) })
}

func (s *scripted) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return call(s, func() ([]runstore.Record, error) { return s.RunStore.ReadRecords(ctx, id, q) })
}

// schedule runs actors one store call at a time, in an order that is chosen from outside.
type schedule struct {
	actors []*actor
	// choose picks one of n actors that are not over.
	choose func(n int) int
	// fate says what becomes of the next call.
	fate func() fate
}

type actor struct {
	store   *scripted
	waiting chan bool // true: before a call; false: over
	pass    chan fate
}

// add lets act run as an actor on a store of its own.
func (s *schedule) add(store runstore.RunStore, act func(runstore.RunStore)) {
	a := &actor{waiting: make(chan bool), pass: make(chan fate)}
	a.store = &scripted{RunStore: store, script: func(int) fate {
		a.waiting <- true
		return <-a.pass
	}}
	s.actors = append(s.actors, a)
	go func() {
		act(a.store)
		a.waiting <- false
	}()
}

// run lets the actors go on until all are over. It returns how many guards did not hold.
func (s *schedule) run() (refused int) {
	live := append([]*actor(nil), s.actors...)
	for _, a := range live {
		<-a.waiting // before its first call
	}
	for len(live) > 0 {
		i := s.choose(len(live))
		a := live[i]
		a.pass <- s.fate()
		if !<-a.waiting {
			refused += a.store.refused
			live = append(live[:i:i], live[i+1:]...)
		}
	}
	return refused
}
