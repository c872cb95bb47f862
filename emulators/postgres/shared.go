package postgres

import "context"

// shared is the server of this process; turn is a mutex that a context can interrupt.
var shared = struct {
	turn   chan struct{}
	server *Server
}{turn: make(chan struct{}, 1)}

// Shared returns the one server of this process, with default options, and starts it at first use.
// It ends with the process, or by CloseShared. After a failed start the next caller tries again.
func Shared(ctx context.Context) (*Server, error) {
	select {
	case shared.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-shared.turn }()
	if shared.server != nil {
		return shared.server, nil
	}
	s, err := Start(ctx, nil)
	if err == nil {
		shared.server = s
	}
	return s, err
}

// CloseShared ends the server of this process, if there is one. TestMain calls it after the tests,
// a command at its end. A process that ends without it leaves a temporary directory, which the next
// start removes.
func CloseShared() error {
	shared.turn <- struct{}{}
	defer func() { <-shared.turn }()
	s := shared.server
	shared.server = nil
	if s == nil {
		return nil
	}
	return s.Close()
}
