package outcome

import (
	"context"
	"sync/atomic"
)

type retriesKey struct{}

// Retries counts the attempts of one operation after its first. It is safe for concurrent use.
type Retries struct{ n atomic.Int64 }

// Count returns the number of retries so far.
func (r *Retries) Count() int64 { return r.n.Load() }

// WithRetries returns a context in which every [Backoff.More] that allows another attempt counts as
// a retry. Retries inside the client library of an engine are not counted.
func WithRetries(ctx context.Context) (context.Context, *Retries) {
	r := &Retries{}
	return context.WithValue(ctx, retriesKey{}, r), r
}

// countRetry counts another attempt of the operation that ctx belongs to.
func countRetry(ctx context.Context) {
	if r, ok := ctx.Value(retriesKey{}).(*Retries); ok {
		r.n.Add(1)
	}
}
