// Package loopback finds ports for servers that listen on the loopback, stop, and listen again on the same
// port.
package loopback

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// The range of the ports is below the one that systems use for outgoing connections: such a connection
// might take the port while the server is down, and a client that dials it then might even connect to
// itself.
const lowest, highest = 15_000, 32_000

// Listen listens on a free TCP port of 127.0.0.1 that stays free while its server is down, unless another
// caller of Listen takes it.
func Listen(ctx context.Context) (net.Listener, error) {
	var listen net.ListenConfig
	var err error
	for range 100 {
		var l net.Listener
		port := lowest + rand.IntN(highest-lowest)
		if l, err = listen.Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no free port on 127.0.0.1: %w", err)
}

// ListenAgain listens at an address of Listen, or as Listen does if the address is empty.
func ListenAgain(ctx context.Context, address string) (net.Listener, error) {
	if address == "" {
		return Listen(ctx)
	}
	var listen net.ListenConfig
	return listen.Listen(ctx, "tcp4", address)
}
