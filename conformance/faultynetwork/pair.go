package faultynetwork

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// pair is one connection of the program, with the link's own connection to the server. The link's
// lock guards all fields but the connections.
type pair struct {
	link           *Link
	client, server net.Conn
	up, down       stream
	dead           bool
	// late is set when a request is held, and cleared when the server has answered the held
	// requests.
	late bool
	harm
}

// stream holds the pieces that were read from one side and not yet written to the other. It is
// unbounded, so that no backpressure reveals to a sender that its bytes are held.
type stream struct {
	pieces []piece
	err    error // why no more pieces will come
}

type piece struct {
	due  time.Time
	held bool
	data []byte
}

// run forwards the connection until both sides are done or it is killed.
func (p *pair) run() {
	defer p.link.change(p.kill)
	if !p.dial() {
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { p.read(p.client, &p.up, p.request) })
	pumps.Go(func() { p.read(p.server, &p.down, p.answer) })
	pumps.Go(p.ask)
	p.reply()
	p.link.change(p.kill)
	pumps.Wait()
}

// dial connects to the server. A connection that was opened into a black hole gets no connection to
// the server; it only waits for its end.
func (p *pair) dial() bool {
	p.link.mu.Lock()
	black, target := p.black, p.link.target
	p.link.mu.Unlock()
	if black {
		_ = p.link.await(p.link.life, func() bool { return p.dead })
		return false
	}
	var d net.Dialer
	server, err := d.DialContext(p.link.life, "tcp", target)
	if err != nil {
		return false
	}
	p.link.change(func() {
		if p.server = server; p.dead {
			reset(server)
		}
	})
	return true
}

// kill resets both sides. The caller holds the lock.
func (p *pair) kill() {
	if p.dead {
		return
	}
	p.dead, p.late = true, false
	delete(p.link.pairs, p)
	reset(p.client)
	if p.server != nil {
		reset(p.server)
	}
}

// read reads everything that one side sends and adds it to s.
func (p *pair) read(from net.Conn, s *stream, arrived func(*piece)) {
	buffer := make([]byte, 64<<10)
	for err := error(nil); err == nil; {
		var n int
		n, err = from.Read(buffer)
		p.link.change(func() {
			if n > 0 && !p.dead {
				s.pieces = append(s.pieces, piece{due: time.Now().Add(p.link.delay), data: bytes.Clone(buffer[:n])})
				arrived(&s.pieces[len(s.pieces)-1])
			}
			s.err = err
		})
	}
}

// request handles a piece that the program sent. The caller holds the lock.
func (p *pair) request(got *piece) {
	if p.hold.hit() {
		got.held, p.late = true, true
	}
}

// answer handles a piece that the server sent. The caller holds the lock.
func (p *pair) answer(*piece) {
	if p.drop.hit() {
		p.link.dropped++
		p.kill()
	}
	if !p.hold.on && len(p.up.pieces) == 0 {
		p.late = false
	}
}

// ask forwards requests to the server.
func (p *pair) ask() {
	for {
		data, err := p.next(&p.up)
		if err != nil {
			break
		}
		if _, err := p.server.Write(data); err != nil {
			return // reply forwards what the server still sent
		}
	}
	// A server may take the end of its client for a cancellation, so the held requests are answered
	// before the write side is closed.
	_ = p.link.await(p.link.life, func() bool { return p.dead || !p.late })
	if tcp, ok := p.server.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

// reply forwards answers to the program. Once the program has left it discards them, because the
// server must be able to send them.
func (p *pair) reply() {
	for {
		data, err := p.next(&p.down)
		if errors.Is(err, io.EOF) {
			_ = p.client.Close() // closes without a reset: kill has nothing left to reset
		}
		if err != nil {
			return
		}
		_, _ = p.client.Write(data)
	}
}

// next waits for the next piece that may pass and returns it. After the last piece it returns the
// stream's error.
func (p *pair) next(s *stream) (data []byte, err error) {
	for {
		var due <-chan time.Time
		ready := false
		p.link.mu.Lock()
		changed := p.link.changed
		switch {
		case p.dead:
			ready, err = true, context.Canceled
		case p.black:
		case len(s.pieces) > 0 && s.pieces[0].held && p.hold.on:
		case len(s.pieces) == 0:
			ready, err = s.err != nil, s.err
		default:
			if wait := time.Until(s.pieces[0].due); wait > 0 {
				due = time.After(wait)
				break
			}
			ready, data, s.pieces = true, s.pieces[0].data, s.pieces[1:]
		}
		p.link.mu.Unlock()
		if ready {
			return data, err
		}
		select {
		case <-changed:
		case <-due:
		}
	}
}
