// Package fault selects the faults that a test applies to the RPCs of an emulator.
package fault

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Gate counts the RPCs to an emulator and selects the faults that apply to each. C describes an
// RPC, A what a fault does to one.
type Gate[C, A any] struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced when the counts change
	closed  bool
	counts  map[string]int
	faults  []*Fault[C, A]
}

// Fault is a fault that is applied to some RPCs, from Add to Stop. It implements emulators.Fault.
type Fault[C, A any] struct {
	Action A
	// Stopped is closed by Stop.
	Stopped <-chan struct{}

	gate      *Gate[C, A]
	match     func(C) bool // nil matches all
	remaining int          // number of further RPCs that it applies to; negative: no limit
	count     int
	stop      func()
}

// NewGate returns a gate without faults.
func NewGate[C, A any]() *Gate[C, A] {
	return &Gate[C, A]{changed: make(chan struct{}), counts: map[string]int{}}
}

// Add adds a fault that applies to the RPCs that match: the first so many, or all if times is 0. A
// nil match matches all. Calls of match are serialized. After Close the fault is stopped already.
func (g *Gate[C, A]) Add(action A, times int, match func(C) bool) *Fault[C, A] {
	stopped := make(chan struct{})
	f := &Fault[C, A]{Action: action, Stopped: stopped, gate: g, match: match, remaining: times}
	f.stop = sync.OnceFunc(func() {
		g.remove(f)
		close(stopped)
	})
	if times == 0 {
		f.remaining = -1
	}
	if !g.insert(f) {
		f.Stop()
	}
	return f
}

// insert reports false, and inserts nothing, after Close.
func (g *Gate[C, A]) insert(f *Fault[C, A]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.faults = append(g.faults, f)
	}
	return !g.closed
}

func (g *Gate[C, A]) remove(f *Fault[C, A]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = slices.DeleteFunc(slices.Clone(g.faults), func(other *Fault[C, A]) bool { return other == f })
}

// Match counts an RPC and returns the faults that apply to it.
func (g *Gate[C, A]) Match(method string, call C) (met []*Fault[C, A]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts[method]++
	for _, f := range g.faults {
		if f.remaining == 0 || f.match != nil && !f.match(call) {
			continue
		}
		f.remaining--
		f.count++
		met = append(met, f)
	}
	close(g.changed)
	g.changed = make(chan struct{})
	return met
}

// Counts returns the number of RPCs so far by method.
func (g *Gate[C, A]) Counts() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.counts)
}

// Close ends all faults.
func (g *Gate[C, A]) Close() {
	g.mu.Lock()
	g.closed = true
	faults := g.faults
	g.mu.Unlock()
	for _, f := range faults {
		f.Stop()
	}
}

// Count returns the number of RPCs to which the fault was applied so far.
func (f *Fault[C, A]) Count() int {
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	return f.count
}

// Await blocks until the fault was applied to n RPCs.
func (f *Fault[C, A]) Await(ctx context.Context, n int) error {
	for {
		f.gate.mu.Lock()
		met, changed := f.count, f.gate.changed
		f.gate.mu.Unlock()
		if met >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Stop ends the fault and delivers the RPCs that it holds. A second Stop does nothing.
func (f *Fault[C, A]) Stop() { f.stop() }
