package clientlimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxClients is the number of clients whose rates are kept: 10,000 at about 200 bytes each. Further
// clients share one rate.
const maxClients = 10_000

// Errors of Rates.Wait.
var (
	// ErrRate: the client began too many requests.
	ErrRate = errors.New("too many requests of this client")
	// ErrStopped: the wait was stopped.
	ErrStopped = errors.New("stopped")
)

// Rates bounds the requests of each client by a token bucket.
type Rates struct {
	perSecond int
	queue     time.Duration

	mu      sync.Mutex
	clients map[string]*rate.Limiter
	others  *rate.Limiter // of the clients above maxClients
	sweeps  *rate.Limiter
}

// NewRates returns the rates of clients that begin perSecond requests, after a burst of twice as many. A
// request waits for its turn for up to queue. With perSecond 0 there is no bound.
func NewRates(perSecond int, queue time.Duration) *Rates {
	r := &Rates{perSecond: perSecond, queue: queue, clients: map[string]*rate.Limiter{}, sweeps: rate.NewLimiter(1, 1)}
	r.others = r.limiter()
	return r
}

func (r *Rates) limiter() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(r.perSecond), 2*r.perSecond)
}

// Wait waits until the client may begin a request. It returns ErrRate if that takes longer than the
// queue's time, ErrStopped once stop is closed, and the error of ctx once that ends.
func (r *Rates) Wait(ctx context.Context, client string, stop <-chan struct{}) error {
	if r.perSecond == 0 {
		return nil
	}
	turn := r.of(client).Reserve()
	delay := turn.Delay()
	if delay == 0 {
		return nil
	}
	if delay > r.queue {
		turn.Cancel()
		return ErrRate
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-stop:
		return ErrStopped
	case <-ctx.Done():
		turn.Cancel()
		return ctx.Err()
	}
}

// Charge counts a request of the client that is refused for another reason, if the client may begin one.
func (r *Rates) Charge(client string) {
	if r.perSecond != 0 {
		r.of(client).Allow()
	}
}

// Left returns how many requests the client may begin at once.
func (r *Rates) Left(client string) float64 { return r.of(client).Tokens() }

// of returns the bucket of a client. When there are too many, those that are full are forgotten: a new
// one would be full too.
func (r *Rates) of(client string) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.clients[client]; l != nil {
		return l
	}
	if len(r.clients) >= maxClients && r.sweeps.Allow() {
		for name, l := range r.clients {
			if l.Tokens() >= float64(l.Burst()) {
				delete(r.clients, name)
			}
		}
	}
	if len(r.clients) >= maxClients {
		return r.others
	}
	l := r.limiter()
	r.clients[client] = l
	return l
}
