package sqlite

import (
	"context"
	"sync"
)

// background runs work of a handle that no caller waits for. Close stops it.
type background struct {
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	running int
	ended   *sync.Cond // broadcast when work ends
}

func newBackground() *background {
	ctx, stop := context.WithCancel(context.Background())
	b := &background{ctx: ctx, stop: stop}
	b.ended = sync.NewCond(&b.mu)
	return b
}

// start runs work on its own goroutine, unless the handle is closed. Close cancels the work's
// context.
func (b *background) start(work func(context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.running++
	go func() {
		defer func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.running--
			b.ended.Broadcast()
		}()
		work(b.ctx)
	}()
}

// close cancels the work and waits until it ends.
func (b *background) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.stop()
	b.waitIdle()
}

// waitIdle waits until no work is running. The caller holds the lock.
func (b *background) waitIdle() {
	for b.running > 0 {
		b.ended.Wait()
	}
}
