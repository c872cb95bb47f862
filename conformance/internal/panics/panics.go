// Package panics keeps a panic of an adapter within the case that called the adapter.
package panics

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// Caught runs f and returns its panic, if any, as an error. A case calls an adapter in goroutines
// only through Caught or Guarded, because a panic there would end the program, and the results of
// all other cases with it. A panic in a goroutine that the adapter started cannot be caught.
func Caught(f func() error) (err error) {
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

// Guarded returns f wrapped for a goroutine: a panic of f fails the case.
func Guarded(t failer, f func()) func() {
	return func() {
		if err := Caught(func() error { f(); return nil }); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// First keeps the first panic of several goroutines for the goroutine that waits for them.
type First struct {
	once sync.Once
	err  error
}

// Guarded returns f wrapped for a goroutine: a panic of f is kept in p.
func (p *First) Guarded(f func()) func() {
	return func() {
		if err := Caught(func() error { f(); return nil }); err != nil {
			p.once.Do(func() { p.err = err })
		}
	}
}

// Rethrow panics with the kept value, if any. Call it after the goroutines have ended.
func (p *First) Rethrow() {
	if p.err != nil {
		panic(p.err)
	}
}
