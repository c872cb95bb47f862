package harness

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

// T is what a case needs of a test. *testing.T implements it for go test, and plainT for the
// command, so both run the same cases.
type T interface {
	Helper()
	Name() string
	// Context ends when the case ends, before its cleanups run.
	Context() context.Context
	Cleanup(func())
	TempDir() string
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	FailNow()
	Failed() bool
}

// plainT is the T of a case that runs outside go test.
type plainT struct {
	name   string
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	failed   bool
	messages []string
	cleanups []func()
}

// RunPlain runs f as a case called name, outside go test, and returns whether it failed and its
// messages. A panic fails the case and does not end the program.
func RunPlain(ctx context.Context, name string, f func(T)) (failed bool, messages []string) {
	t := &plainT{name: name}
	t.ctx, t.cancel = context.WithCancel(ctx)
	guarded := func(f func()) {
		done := make(chan struct{})
		go func() { // a goroutine of its own, so that FailNow can end it
			defer close(done)
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("panic: %v\n%s", p, debug.Stack())
				}
			}()
			f()
		}()
		<-done
	}
	guarded(func() { f(t) })
	t.cancel()
	for len(t.cleanups) > 0 {
		last := len(t.cleanups) - 1
		cleanup := t.cleanups[last]
		t.cleanups = t.cleanups[:last]
		guarded(cleanup)
	}
	return t.failed, t.messages
}

func (t *plainT) Helper() {}

func (t *plainT) Name() string { return t.name }

func (t *plainT) Context() context.Context { return t.ctx }

func (t *plainT) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *plainT) TempDir() string {
	dir, err := os.MkdirTemp("", "tapestore-conformance-")
	if err != nil {
		t.Fatalf("temporary directory: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("temporary directory: %v", err)
		}
	})
	return dir
}

func (t *plainT) Logf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.messages = append(t.messages, fmt.Sprintf(format, args...))
}

func (t *plainT) Errorf(format string, args ...any) {
	t.Logf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = true
}

func (t *plainT) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

func (t *plainT) FailNow() {
	t.mu.Lock()
	t.failed = true
	t.mu.Unlock()
	runtime.Goexit()
}

func (t *plainT) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}
