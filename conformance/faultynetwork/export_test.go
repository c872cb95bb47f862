package faultynetwork

import "context"

// AwaitConnections waits until n connections are open.
func (l *Link) AwaitConnections(ctx context.Context, n int) error {
	return l.await(ctx, func() bool { return len(l.pairs) >= n })
}

// AwaitConnections waits until n connections are open.
func (l *RPC) AwaitConnections(ctx context.Context, n int) error {
	return l.await(ctx, func() bool { return len(l.conns) >= n })
}
