package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// pair is one connection of the program and the link's own to the server. The
// link's lock guards all but the connections.
type pair struct {
	link           *Link
	client, server net.Conn
	up, down       stream
	dead           bool
	// late is set while requests are held, and on until the server answers them.
	late bool
	harm
}

// stream is what was read from one side and has not been written to the other. It
// has no bound: a sender never learns from it that its bytes are held.
type stream struct {
	pieces []piece
	err    error // why there is no more to come
}

type piece struct {
	due  time.Time
	held bool
	data []byte
}

// run passes the connection on, until both sides are done or it is killed.
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

// dial connects to the server, unless the connection was made into a black hole:
// that one only waits for its end.
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

// kill resets both sides. Its caller has the lock.
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

// read takes in all that one side sends.
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

// request is called with the lock for each piece that the program sent.
func (p *pair) request(got *piece) {
	if p.hold.hit() {
		got.held, p.late = true, true
	}
}

// answer is called with the lock for each piece that the server sent.
func (p *pair) answer(*piece) {
	if p.drop.hit() {
		p.link.dropped++
		p.kill()
	}
	if !p.hold.on && len(p.up.pieces) == 0 {
		p.late = false
	}
}

// ask passes requests on to the server.
func (p *pair) ask() {
	for {
		data, err := p.next(&p.up)
		if err != nil {
			break
		}
		if _, err := p.server.Write(data); err != nil {
			return // whatever the server still said is passed on by reply
		}
	}
	// A server may take the end of its client for a cancellation: what was held is
	// answered first.
	_ = p.link.await(p.link.life, func() bool { return p.dead || !p.late })
	if tcp, ok := p.server.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

// reply passes answers on to the program. When that has gone they are thrown
// away: the server must be able to give them.
func (p *pair) reply() {
	for {
		data, err := p.next(&p.down)
		if errors.Is(err, io.EOF) {
			_ = p.client.Close() // in peace: kill has nothing left to reset
		}
		if err != nil {
			return
		}
		_, _ = p.client.Write(data)
	}
}

// next waits for the next piece that may pass. It returns the stream's error
// behind the last one.
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
