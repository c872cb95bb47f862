package postgres_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/postgres"
)

// stalls is a network that stops in the middle of a large request, once.
type stalls struct {
	armed   atomic.Bool
	stalled chan struct{} // closed when it has stopped
	goOn    chan struct{}
}

const (
	stallsFrom  = 1 << 20 // bytes of a request that is large
	stallsAfter = 1 << 19 // bytes of it that still arrive
)

func (s *stalls) through(config *pgxpool.Config, _ *postgres.Options) {
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &stalling{Conn: conn, on: s}, err
	}
}

type stalling struct {
	net.Conn
	on *stalls
}

func (c *stalling) Write(b []byte) (int, error) {
	if len(b) < stallsFrom || !c.on.armed.CompareAndSwap(true, false) {
		return c.Conn.Write(b)
	}
	n, err := c.Conn.Write(b[:stallsAfter])
	if err != nil {
		return n, err
	}
	close(c.on.stalled)
	<-c.on.goOn
	m, err := c.Conn.Write(b[n:])
	return n + m, err
}

// A strict lease ends while a commit over several runs is being sent: the server has locked the runs, and the batch
// under the lease has not arrived. It arrives after the expiry, and the commit is refused as a whole.
func TestStrictLeaseEndsWhileACommitIsSent(t *testing.T) {
	t.Parallel()
	address := database(t)
	st := &stalls{}
	s, conn := open(t, address, st.through), connect(t, address)
	first := hold(t, s, "a")
	if _, err := s.CreateRun(t.Context(), runstore.RunSpec{ID: "b"}); err != nil {
		t.Fatal(err)
	}
	for ttl := 2 * time.Second; ; ttl *= 2 {
		lease, err := s.AcquireLease(t.Context(), runstore.AcquireRequest{
			Run: "b", Preempt: "test", LeaseSpec: runstore.LeaseSpec{Owner: "holder", TTL: ttl, Strict: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		large := appending(lease.Lease, "b1")
		large.Put("large", make([]byte, 4*stallsFrom))
		answered := make(chan error, 1)
		st.stalled, st.goOn = make(chan struct{}), make(chan struct{})
		st.armed.Store(true)
		go func() {
			_, err := s.CommitMulti(t.Context(), []runstore.Batch{appending(first, "a1"), large})
			answered <- err
		}()
		<-st.stalled
		await(t, "the lock of the commit", func() bool {
			return get[int](t, conn, `SELECT count(*) FROM (SELECT FROM tapestore.runs WHERE id = 'b' FOR NO KEY UPDATE SKIP LOCKED) free`) == 0
		})
		late := false // the machine is busy: the lease may have ended before the lock
		for looks := 0; ; looks++ {
			now, err := s.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !now.Before(lease.ExpiresAt) {
				late = looks == 0
				break
			}
		}
		close(st.goOn)
		if err := <-answered; !errors.Is(err, runstore.ErrLeaseExpired) {
			t.Fatalf("got error %v, want ErrLeaseExpired", err)
		}
		wantJournal(t, s, "a")
		if !late || ttl > time.Minute {
			return
		}
	}
}
