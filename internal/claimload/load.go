package claimload

import (
	"context"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Load configures a load.
type Load struct {
	// Stores are handles on one store, without faults. The workers share them.
	Stores []runstore.RunStore
	// Seed determines the choices of the workers.
	Seed uint64
	// Faults is the share of calls that fail, 0 to 1.
	Faults float64
	// Workers is the number of consumers, or of callers that reserve; Rounds is what each does.
	Workers, Rounds int
	// TTL is that of claims and holds. Workers take up to twice as long, so that some expire.
	TTL time.Duration
	// Exact reports that the times which the store returns are exact, so that the lives of claims and
	// holds are checked by them, too. Otherwise only the times of the calls are used: a claim began
	// after its call did, so it lives at least a TTL longer.
	Exact bool
}

// T is what a load needs of a test.
type T interface {
	Helper()
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// maxDelay bounds the delay of a late request, in units of the TTL.
const maxDelay = 2

// worker is one caller of a load.
type worker struct {
	n      int
	random *rand.Rand
	store  runstore.RunStore
}

// bound ends a load on a store that never lets it finish: 10 minutes, of simulated time where time is
// simulated. It is no bound on speed: a load takes one or two.
const bound = 10 * time.Minute

// guarded runs f, and fails the test if it panics, as a store under test may.
func guarded(t T, f func()) {
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	f()
}

// run runs workers until all have returned and no request is in flight.
func (l Load) run(t T, work func(w worker)) {
	net := &network{t: t, random: rand.New(rand.NewPCG(l.Seed, 0)), faults: l.Faults, delay: maxDelay * l.TTL}
	var all sync.WaitGroup
	for n := range l.Workers {
		all.Go(func() {
			guarded(t, func() {
				work(worker{n, rand.New(rand.NewPCG(l.Seed, uint64(n+1))), Faulty{l.Stores[n%len(l.Stores)], net}})
			})
		})
	}
	all.Wait()
	net.late.Wait()
}

// pause sleeps for a random part of up to d.
func (w worker) pause(d time.Duration) { time.Sleep(time.Duration(w.random.Float64() * float64(d))) }

// insist repeats a call until its outcome is known, or it has failed often. applied is the outcome
// of all its attempts together, and err the last error.
func (w worker) insist(call func() error) (applied runstore.Outcome, err error) {
	unknown := false
	for range 4 {
		switch err = call(); {
		case err == nil:
			return runstore.Applied, nil
		case runstore.OutcomeOf(err) == runstore.Unknown:
			unknown = true
		case runstore.KindOf(err) != runstore.ErrUnavailable:
			if unknown {
				return runstore.Unknown, err
			}
			return runstore.NotApplied, err
		}
	}
	if unknown {
		return runstore.Unknown, err
	}
	return runstore.NotApplied, err
}
