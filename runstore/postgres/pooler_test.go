//go:build unix

package postgres_test

import (
	"bytes"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// pooler stands in for a proxy that keeps its clients' connections while it replaces its own
// connections to the server. It has one of these for each client.
type pooler struct {
	net.Listener
	mu      sync.Mutex // held for writing to a server, and for replacing servers
	target  string
	clients []*pooled
	lose    atomic.Bool
}

type pooled struct {
	client, server net.Conn
	startup        []byte
}

func newPooler(t *testing.T, target string) *pooler {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pooler{Listener: l, target: target}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	return p
}

// serve passes on what a client sends.
func (p *pooler) serve(client net.Conn) {
	defer client.Close()
	buf := make([]byte, 64<<10)
	n, err := client.Read(buf) // the startup message arrives in one piece
	if err != nil {
		return
	}
	c := &pooled{client: client, startup: slices.Clone(buf[:n])}
	p.mu.Lock()
	if c.server, err = net.Dial("tcp", p.target); err == nil {
		_, err = c.server.Write(c.startup)
		go p.copyReplies(client, c.server)
		p.clients = append(p.clients, c)
	}
	p.mu.Unlock()
	for err == nil {
		if n, err = client.Read(buf); err == nil {
			p.mu.Lock()
			_, err = c.server.Write(buf[:n])
			p.mu.Unlock()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients = slices.DeleteFunc(p.clients, func(other *pooled) bool { return other == c })
	if c.server != nil {
		_ = c.server.Close()
	}
}

// copyReplies passes on what a server sends. If lose is set, it drops the next replies once they are whole, sends
// the error of a proxy whose server has died, and closes the client's connection.
func (p *pooler) copyReplies(client, server net.Conn) {
	buf := make([]byte, 64<<10)
	for lost := []byte(nil); ; {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		if !p.lose.Load() {
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
			continue
		}
		idle := []byte{'Z', 0, 0, 0, 5, 'I'} // ReadyForQuery
		if lost = append(lost, buf[:n]...); bytes.HasSuffix(lost, idle) {
			p.lose.Store(false)
			died := &pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08P01", Message: "server conn crashed?"}
			if message, err := died.Encode(nil); err == nil {
				_, _ = client.Write(message)
			}
			_ = client.Close()
			return
		}
	}
}

// replace connects every client, none of which has a request in flight, to another server.
func (p *pooler) replace(t *testing.T, target string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	for _, c := range p.clients {
		_ = c.server.Close()
		server, err := net.Dial("tcp", target)
		if err == nil {
			_, err = server.Write(c.startup)
		}
		for replies := pgproto3.NewFrontend(server, server); err == nil; {
			var m pgproto3.BackendMessage
			if m, err = replies.Receive(); err == nil {
				if _, ready := m.(*pgproto3.ReadyForQuery); ready {
					break
				}
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		c.server = server
		go p.copyReplies(c.client, server)
	}
}

// TestPooledHandleMeetsAPromotedCopy checks that a handle behind a proxy that keeps the handle's
// connections raises the epoch before its first write on a promoted copy.
func TestPooledHandleMeetsAPromotedCopy(t *testing.T) {
	t.Parallel()
	a, b := filepath.Join(directory(t), "a"), filepath.Join(directory(t), "b")
	original := ownServer(t, &postgresemulator.Options{Dir: a})
	db, err := original.NewDatabase(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	proxy := newPooler(t, original.Address())
	s := open(t, with(at(t, db.URL, proxy.Addr().String()), "pooled=yes"), quiet)
	lease, last := begun(t, s)
	if err := errors.Join(original.Kill(), os.Mkdir(b, 0o755)); err != nil {
		t.Fatal(err)
	}
	copyData(t, a, b)
	standby := ownServer(t, &postgresemulator.Options{Dir: b})
	if !get[bool](t, connect(t, at(t, db.URL, standby.Address())), `SELECT pg_promote()`) {
		t.Fatal("the standby was not promoted")
	}
	proxy.replace(t, standby.Address())
	raisedOnce(t, s, lease, last)
}

// TestPooledWritesAreGuarded checks that behind a proxy every kind of write finds that the server
// is another incarnation, and that the epoch is raised first.
func TestPooledWritesAreGuarded(t *testing.T) {
	t.Parallel()
	for mode, change := range map[string]string{"exec": "timeline = timeline - 1", "simple_protocol": "cluster = 'another'"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			address := database(t)
			s := open(t, with(address, "pooled=yes", "pool_max_conns=1", "default_query_exec_mode="+mode), quiet)
			conn := connect(t, address)
			other := hold(t, s, "other")
			for name, write := range map[string]func(l runstore.Lease) error{
				"commit": func(l runstore.Lease) error { _, err := s.Commit(t.Context(), appending(l, "zombie")); return err },
				"commit over several runs": func(l runstore.Lease) error {
					_, err := s.CommitMulti(t.Context(), []runstore.Batch{appending(l, "zombie"), appending(other, "zombie")})
					return err
				},
				"appends to several runs": func(l runstore.Lease) error {
					return postgres.AppendMulti(t.Context(), s, appending(l, "zombie"))
				},
				"renewal": func(l runstore.Lease) error {
					_, err := s.RenewLease(t.Context(), runstore.RenewRequest{Fence: l.Fence(), TTL: runstore.MaxTTL})
					return err
				},
			} {
				lease := hold(t, s, runstore.RunID(name))
				exec(t, conn, `UPDATE tapestore.store SET `+change)
				epoch := get[int](t, conn, `SELECT epoch FROM tapestore.store`)
				if err := write(lease); !errors.Is(err, runstore.ErrFenced) && !(name == "appends to several runs" && err != nil) {
					t.Errorf("%s: got %v, want ErrFenced", name, err)
				}
				if now := get[int](t, conn, `SELECT epoch FROM tapestore.store`); now != epoch+1 {
					t.Errorf("%s: got epoch %d, want %d", name, now, epoch+1)
				}
			}
		})
	}
}

// TestPooledWritesHaveTheServersPositions checks that behind a proxy no write uses a base of positions that
// the server does not have. Another handle may have raised the epoch to the same number in another history.
func TestPooledWritesHaveTheServersPositions(t *testing.T) {
	t.Parallel()
	address := database(t)
	s := open(t, with(address, "pooled=yes"), quiet)
	conn := connect(t, address)
	one, two := hold(t, s, "one"), hold(t, s, "two")
	before := 0
	for name, write := range map[string]func() error{
		"commit":                  func() error { _, err := s.Commit(t.Context(), appending(one, "a")); return err },
		"appends to several runs": func() error { return postgres.AppendMulti(t.Context(), s, appending(one, "a"), appending(two, "b")) },
	} {
		exec(t, conn, `UPDATE tapestore.store SET position_base = position_base + (1::bigint << 40)`)
		if err := write(); name == "commit" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// An append to several runs is sent again by its caller, which this test is not.
		above := get[int](t, conn, `SELECT count(*)::int FROM tapestore.events WHERE position > (SELECT position_base FROM tapestore.store)`)
		all := get[int](t, conn, `SELECT count(*)::int FROM tapestore.events`)
		if all-before != above || name == "commit" && above != 1 {
			t.Errorf("%s: of %d events %d are above the base", name, all-before, above)
		}
		before = all
	}
}

// TestPooledWriteWithoutAReplyIsAppliedOnce checks that the error of a proxy whose server has died after the
// commit, which comes in the place of the guard's result, does not count as the guard's.
func TestPooledWriteWithoutAReplyIsAppliedOnce(t *testing.T) {
	t.Parallel()
	address := database(t)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := newPooler(t, u.Host)
	s := open(t, with(at(t, address, proxy.Addr().String()), "pooled=yes", "pool_max_conns=1"), quiet)
	lease, other := hold(t, s, "run"), hold(t, s, "other")
	proxy.lose.Store(true)
	commit(t, s, appending(lease, "one"))
	proxy.lose.Store(true)
	if _, err := s.CommitMulti(t.Context(), []runstore.Batch{appending(lease, "two"), appending(other, "one")}); err != nil {
		t.Error(err)
	}
	if n := get[int](t, connect(t, address), `SELECT count(*)::int FROM tapestore.events`); n != 3 || proxy.lose.Load() {
		t.Errorf("%d events are stored, want 3; the replies were lost: %t", n, !proxy.lose.Load())
	}
}
