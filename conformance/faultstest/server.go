// Package faultstest is an engine behind a network for the conformance suite's own
// test: the reference store behind a TCP server on the loopback, with an adapter
// that keeps the contract although the network loses, repeats and delays what is
// sent, and the means to break that adapter on purpose.
//
// It is a toy in one respect. Only the id of a request travels; what the request
// says and what it was answered stay in the memory that client and server share.
// The server never does a request twice, which is all that makes late copies
// harmless; it remembers every request for ever.
package faultstest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/tapestore/tapestore/runstore/memory"
)

// server answers requests by their ids. It can be killed and frozen.
type server struct {
	store   *memory.Store
	address string
	forgets bool

	mu       sync.Mutex
	requests []*request
	conns    map[net.Conn]bool
	listener net.Listener
	frozen   chan struct{} // closed when it goes on; nil while it does
	dying    chan struct{} // closed when a bare write was done whose reply will not be sent
	running  sync.WaitGroup
}

// request is what a client wants done. do keeps its answer, and tells whether it
// was a write that the store would do again if the server did not know of it.
type request struct {
	id   int
	do   func() (bare bool)
	once *sync.Once
	bare bool
}

func newServer(ctx context.Context) (*server, error) {
	s := &server{store: memory.New(nil), address: "127.0.0.1:0", conns: map[net.Conn]bool{}}
	return s, s.Restart(ctx)
}

// Restart implements conformance.Server.
func (s *server) Restart(ctx context.Context) error {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", s.address)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener, s.address, s.dying = listener, listener.Addr().String(), nil
	s.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			if s.listener == listener {
				s.conns[conn] = true
				s.running.Go(func() { s.serve(conn) })
			} else {
				_ = conn.Close()
			}
			s.mu.Unlock()
		}
	})
	return nil
}

// Kill implements conformance.Server. It strikes between a write and its reply, as
// a real one does at times: the one moment that matters. So it waits
// for a bare write, and replies to all other requests until one arrives. After 30 s without
// a bare write it gives up waiting.
func (s *server) Kill() error {
	s.mu.Lock()
	dying := make(chan struct{})
	s.dying = dying
	s.mu.Unlock()
	select {
	case <-dying:
	case <-time.After(30 * time.Second):
	}
	return s.close()
}

func (s *server) close() error {
	var err error
	s.mu.Lock()
	if s.listener != nil {
		err = s.listener.Close()
	}
	s.listener = nil
	for conn := range s.conns {
		_ = conn.Close()
	}
	if s.forgets {
		for _, r := range s.requests {
			r.once = new(sync.Once)
		}
	}
	s.mu.Unlock()
	s.running.Wait()
	return err
}

// Freeze implements conformance.Server.
func (s *server) Freeze() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = make(chan struct{})
	return nil
}

// Thaw implements conformance.Server.
func (s *server) Thaw() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != nil {
		close(s.frozen)
		s.frozen = nil
	}
	return nil
}

// register gives a request an id.
func (s *server) register(do func() (bare bool)) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &request{id: len(s.requests), do: do, once: new(sync.Once)}
	s.requests = append(s.requests, r)
	return r
}

// serve does what one connection asks for, request by request.
func (s *server) serve(conn net.Conn) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, conn)
		_ = conn.Close()
	}()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		id, err := strconv.Atoi(lines.Text())
		if err != nil {
			return
		}
		s.mu.Lock()
		r, frozen := s.requests[id], s.frozen
		once := r.once
		s.mu.Unlock()
		if frozen != nil {
			<-frozen
		}
		once.Do(func() { r.bare = r.do() })
		if s.dropsReply(r) {
			return
		}
		if _, err := fmt.Fprintln(conn, id); err != nil {
			return
		}
	}
}

// dies reports whether the server is killed between the request and its reply.
func (s *server) dropsReply(r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dying == nil {
		return false
	}
	select {
	case <-s.dying:
	default:
		if !r.bare { // its client goes on, to a bare write
			return false
		}
		close(s.dying)
	}
	return true
}
