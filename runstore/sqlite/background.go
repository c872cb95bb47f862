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
	running map[string]bool
	ended   *sync.Cond // broadcasts when work ends
}

func newBackground() *background {
	ctx, stop := context.WithCancel(context.Background())
	b := &background{ctx: ctx, stop: stop, running: map[string]bool{}}
	b.ended = sync.NewCond(&b.mu)
	return b
}

// start runs work on a goroutine of its own, unless work of that name is running or the handle
// is closed. The context of the work ends with Close.
func (b *background) start(name string, work func(context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.running[name] {
		return
	}
	b.running[name] = true
	go func() {
		defer func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.running, name)
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
	for len(b.running) > 0 {
		b.ended.Wait()
	}
}
