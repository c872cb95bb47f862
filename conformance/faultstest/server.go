// Package faultstest is a small networked engine for the conformance suite's own tests: the
// reference store behind a TCP server on the loopback. Its adapter keeps the contract although the
// network loses, repeats and delays requests and replies. [Flaws] breaks that adapter on purpose.
//
// It is a toy in one respect. Only the id of a request travels over the network; its content and
// its answer stay in memory that client and server share. The server performs each request at most
// once, which alone makes late copies harmless, and it remembers every request for ever.
package faultstest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/tapestore/tapestore/internal/loopback"
	"github.com/tapestore/tapestore/runstore/memory"
)

// server performs requests by their ids. It can be killed and frozen.
type server struct {
	store   *memory.Store
	address string
	forgets bool

	mu       sync.Mutex
	requests []*request
	conns    map[net.Conn]bool
	listener net.Listener
	frozen   chan struct{} // closed when the server thaws; nil unless it is frozen
	dying    chan struct{} // closed once a bare write was applied whose reply will not be sent
	running  sync.WaitGroup
}

// request is an operation of a client. do performs it and keeps its answer, and reports whether it
// was a bare write: one that the store would apply again if the server did not recognize the
// request.
type request struct {
	id   int
	do   func() (bare bool)
	once *sync.Once
	bare bool
}

func newServer(ctx context.Context) (*server, error) {
	s := &server{store: memory.New(nil), conns: map[net.Conn]bool{}}
	return s, s.Restart(ctx)
}

// Restart implements conformance.Server.
func (s *server) Restart(ctx context.Context) error {
	listener, err := loopback.ListenAgain(ctx, s.address)
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

// Kill implements conformance.Server. It kills the server between a write and its reply, which is
// the critical moment of a real kill. So it waits for a bare write, and the server replies to all
// other requests until one arrives. After 30 s without a bare write, Kill stops waiting.
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

// close ends the server and all its connections, and waits for its goroutines.
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

// register assigns an id to a request.
func (s *server) register(do func() (bare bool)) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &request{id: len(s.requests), do: do, once: new(sync.Once)}
	s.requests = append(s.requests, r)
	return r
}

// serve performs the requests of one connection, one by one.
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
		r, once, frozen := s.lookUp(id)
		if r == nil { // from a client of another server, which had this port before
			return
		}
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

// lookUp returns the request with that id, nil if there is none, its Once, and the channel to wait
// for while the server is frozen.
func (s *server) lookUp(id int) (*request, *sync.Once, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id < 0 || id >= len(s.requests) {
		return nil, nil, nil
	}
	r := s.requests[id]
	return r, r.once, s.frozen
}

// dropsReply reports whether the kill of the server prevents the reply to r.
func (s *server) dropsReply(r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dying == nil {
		return false
	}
	select {
	case <-s.dying:
	default:
		if !r.bare { // its client goes on and sends a bare write later
			return false
		}
		close(s.dying)
	}
	return true
}
