package conformance

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// caught runs f and returns its panic, if any, as an error. A case calls an adapter in
// goroutines through it or through guarded: a panic there would end the program, and the
// verdicts on all other cases with it. A panic of a goroutine that the adapter started
// itself cannot be caught.
func caught(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// guarded returns f for a goroutine: a panic of f fails the case.
func guarded(t T, f func()) func() {
	return func() {
		if err := caught(func() error { f(); return nil }); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// firstPanic keeps the first panic of several goroutines for the one that waits for them.
type firstPanic struct {
	once sync.Once
	err  error
}

// guarded returns f for a goroutine.
func (p *firstPanic) guarded(f func()) func() {
	return func() {
		if err := caught(func() error { f(); return nil }); err != nil {
			p.once.Do(func() { p.err = err })
		}
	}
}

// again panics with what was kept; it is called when the goroutines have ended.
func (p *firstPanic) rethrow() {
	if p.err != nil {
		panic(p.err)
	}
}
