package conformance

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// caught runs f and returns its panic, if any, as an error. A case calls an adapter in goroutines
// only through caught or guarded, because a panic there would end the program, and the results of
// all other cases with it. A panic in a goroutine that the adapter started cannot be caught.
func caught(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// failer is a test that can fail.
type failer interface {
	Errorf(format string, args ...any)
}

// guarded returns f wrapped for a goroutine: a panic of f fails the case.
func guarded(t failer, f func()) func() {
	return func() {
		if err := caught(func() error { f(); return nil }); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// firstPanic keeps the first panic of several goroutines for the goroutine that waits for them.
type firstPanic struct {
	once sync.Once
	err  error
}

// guarded returns f wrapped for a goroutine: a panic of f is kept in p.
func (p *firstPanic) guarded(f func()) func() {
	return func() {
		if err := caught(func() error { f(); return nil }); err != nil {
			p.once.Do(func() { p.err = err })
		}
	}
}

// rethrow panics with the kept value, if any. Call it after the goroutines have ended.
func (p *firstPanic) rethrow() {
	if p.err != nil {
		panic(p.err)
	}
}
