package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/internal/intercept"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tapeserver"
)

// killEvery returns the time between two kills: three TTLs, so that the shards whose leases expire
// work again for most of it.
func (s *Session) killEvery() time.Duration { return 3 * s.Scale.MatcherTTL }

// matchingServers is the number of servers that match at the same time.
const matchingServers = 2

// replica is one of several servers on a store, with a handle of its own. A killed replica no
// longer reaches the store, so its leases expire.
type replica struct {
	handle runstore.RunStore
	server *protocolServer

	kill    atomic.Int32 // when the replica is killed: neverKilled, beforeCommit or afterCommit
	applied atomic.Bool  // whether the store has applied a commit of the server
	died    chan struct{}
}

// The moments at which a replica is killed: at its next commit, either before the commit reaches
// the store, or after the store applied it and before the replica sees the reply.
const (
	neverKilled int32 = iota
	beforeCommit
	afterCommit
)

var errReplicaKilled = errors.New("the server was killed")

func (s *Session) startReplica(ctx context.Context, store Store) (*replica, error) {
	handle, err := store.Open(ctx)
	if err != nil {
		return nil, err
	}
	r := &replica{handle: handle, died: make(chan struct{})}
	r.server, err = serveWith(r.store(), store.Prefix, tapeserver.Options{MatcherTTL: s.Scale.MatcherTTL})
	if err != nil {
		return nil, errors.Join(err, handle.Close())
	}
	return r, nil
}

// store returns the store that the server uses: the handle, as long as the replica is not killed.
func (r *replica) store() runstore.RunStore {
	s := intercept.Store(r.handle, r.around)
	notifier, notifies := runstore.As[runstore.Notifier](r.handle)
	multi, commits := runstore.As[runstore.MultiCommitter](s)
	switch {
	case notifies && commits:
		return struct {
			runstore.RunStore
			runstore.MultiCommitter
			runstore.Notifier
		}{s, multi, notifier}
	case notifies:
		return struct {
			runstore.RunStore
			runstore.Notifier
		}{s, notifier}
	default:
		return s
	}
}

// around makes a call of the server to its store.
func (r *replica) around(ctx context.Context, op string, do func(context.Context) error) error {
	killed := func() error {
		return &runstore.OpError{Op: op, Err: runstore.ErrUnavailable, Cause: errReplicaKilled}
	}
	if r.dead() {
		return killed()
	}
	if op == "commit" {
		if r.kill.CompareAndSwap(beforeCommit, neverKilled) {
			close(r.died)
			return killed()
		}
		if r.kill.CompareAndSwap(afterCommit, neverKilled) {
			_ = do(ctx)
			close(r.died)
			return killed()
		}
	}
	err := do(ctx)
	if r.dead() {
		return killed()
	}
	if op == "commit" && err == nil {
		r.applied.Store(true)
	}
	return err
}

func (r *replica) committed() bool { return r.applied.Load() }

func (r *replica) dead() bool {
	select {
	case <-r.died:
		return true
	default:
		return false
	}
}

func (r *replica) stop() error { return errors.Join(r.server.stop(), r.handle.Close()) }

// matchers runs the servers that match.
type matchers struct {
	session *Session
	store   Store
	all     []*replica
	kills   int
}

// run starts servers and kills them one after the other, until ctx ends. The first server runs
// alone, and is killed at its first commit. From then on matchingServers run. Every killEvery, run
// kills the oldest server that has committed, at its next commit, and starts another. So a commit
// is applied between two kills even where a server takes longer than killEvery to start.
func (m *matchers) run(ctx context.Context) (err error) {
	var stopping sync.WaitGroup
	var mu sync.Mutex
	var stopped error // guarded by mu: a return may set err while a server stops
	stop := func(r *replica) {
		stopping.Go(func() {
			failed := r.stop()
			mu.Lock()
			defer mu.Unlock()
			stopped = errors.Join(stopped, failed)
		})
	}
	var live []*replica
	defer func() {
		for _, r := range live {
			stop(r)
		}
		stopping.Wait()
		err = errors.Join(err, stopped)
	}()
	for n := 1; ; n = matchingServers {
		for len(live) < n {
			r, failed := m.session.startReplica(ctx, m.store)
			if failed != nil {
				return failed
			}
			live, m.all = append(live, r), append(m.all, r)
		}
		victim := 0
		for wait := m.session.killEvery(); n > 1; wait = drainPause {
			if sleep(ctx, wait) != nil {
				return nil
			}
			if victim = slices.IndexFunc(live, (*replica).committed); victim >= 0 {
				break
			}
		}
		oldest := live[victim]
		oldest.kill.Store(beforeCommit + int32(m.kills%2))
		select {
		case <-oldest.died:
		case <-ctx.Done():
			return nil
		}
		m.kills++
		live = slices.Delete(live, victim, victim+1)
		stop(oldest)
	}
}

// calls returns how many calls the servers made to the store, and how many of them read the feed.
func (m *matchers) calls() (all, feeds int64) {
	for _, r := range m.all {
		all += r.server.calls.own.Load()
		feeds += r.server.calls.feeds.Load()
	}
	return all, feeds
}
