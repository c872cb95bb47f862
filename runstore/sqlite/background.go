package sqlite

import (
	"context"
	"sync"
)

// background runs a handle's work that no caller waits for. It ends with Close.
type background struct {
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	running int
	ended   *sync.Cond // broadcasts when work ends
}

func newBackground() *background {
	ctx, stop := context.WithCancel(context.Background())
	b := &background{ctx: ctx, stop: stop}
	b.ended = sync.NewCond(&b.mu)
	return b
}

// start runs work on a goroutine of its own, unless the handle is closed. The context of the work
// ends with Close.
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

// close stops the work and waits for its end.
func (b *background) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.stop()
	b.waitIdle()
}

// await waits until no work is running. The caller holds the lock.
func (b *background) waitIdle() {
	for b.running > 0 {
		b.ended.Wait()
	}
}
