package peers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/tapestore/tapestore/bench"
)

// The session of a contender lives for etcdTTL without a keep-alive, the default of package
// concurrency, and for etcdBriefTTL where a holder is paused: 5 s, which a busy
// machine does not exceed between two keep-alives. The takeover waits for it.
const (
	etcdTTL      = 60 * time.Second
	etcdBriefTTL = 5 * time.Second
)

// etcd is a one-member server in this process. The first contest starts it, and it is stopped after
// the last part that has contests, so that it takes nothing from other measurements.
type etcd struct {
	mu     sync.Mutex
	server *embed.Etcd
	client *clientv3.Client
	dir    string

	contests atomic.Int64
}

// start starts the server unless it runs, and returns its client.
func (s *etcd) start(ctx context.Context) (_ *clientv3.Client, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "tapestore-bench-etcd-"); err != nil {
		return nil, err
	}
	config := embed.NewConfig()
	config.Dir = filepath.Join(s.dir, "data")
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	config.EnableGRPCGateway = false // HTTP for clients without gRPC
	loopback := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{loopback}, []url.URL{loopback}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{loopback}, []url.URL{loopback}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	if s.server, err = embed.StartEtcd(config); err != nil {
		return nil, err
	}
	select {
	case <-s.server.Server.ReadyNotify():
	case err := <-s.server.Err():
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{s.server.Clients[0].Addr().String()},
		Logger:    zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	client.KV, client.Watcher = countingKV{client.KV}, countingWatcher{client.Watcher}
	s.client = client
	return client, nil
}

func (s *etcd) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop()
}

func (s *etcd) stop() (err error) {
	if s.client != nil {
		err = s.client.Close()
		s.client = nil
	}
	if s.server != nil {
		s.server.Close()
		s.server = nil
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
		s.dir = ""
	}
	return err
}

// countingKV counts the requests of a turn.
type countingKV struct{ clientv3.KV }

func (k countingKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	called(ctx)
	return k.KV.Put(ctx, key, val, opts...)
}

func (k countingKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	called(ctx)
	return k.KV.Get(ctx, key, opts...)
}

func (k countingKV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	called(ctx)
	return k.KV.Delete(ctx, key, opts...)
}

func (k countingKV) Txn(ctx context.Context) clientv3.Txn {
	called(ctx)
	return k.KV.Txn(ctx)
}

// countingWatcher counts each watch that a turn creates.
type countingWatcher struct{ clientv3.Watcher }

func (w countingWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	called(ctx)
	return w.Watcher.Watch(ctx, key, opts...)
}

// etcdLease is a lease of package concurrency while it is held.
type etcdLease struct {
	owner   clientv3.Cmp // true while the lease is held
	release func(ctx context.Context) error
}

// contest makes a contest whose contenders each have a session. lock waits for a lease. With
// fenced, a transaction stores the event on the condition that the lease is still held.
func (s *etcd) contest(fenced bool, lock func(ctx context.Context, session *concurrency.Session, prefix string) (etcdLease, error)) func(context.Context, int, int) (bench.Contest, error) {
	return func(ctx context.Context, contenders, leases int) (bench.Contest, error) {
		client, err := s.start(ctx)
		if err != nil {
			return nil, err
		}
		prefix := fmt.Sprintf("contest/%d/", s.contests.Add(1))
		events := prefix + "event/"
		var written atomic.Int64
		var mu sync.Mutex
		var sessions []*concurrency.Session
		open := func(ttl time.Duration) (*concurrency.Session, error) {
			session, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
			if err == nil {
				mu.Lock()
				sessions = append(sessions, session)
				mu.Unlock()
			}
			return session, err
		}
		c := &contest{leases: leases, ttl: etcdBriefTTL}
		c.close = func() (err error) {
			mu.Lock()
			defer mu.Unlock()
			for _, session := range sessions {
				session.Orphan()
				// In the scenario the session of a paused holder has expired.
				_, e := client.Revoke(context.Background(), session.Lease())
				if e != nil && !errors.Is(e, rpctypes.ErrLeaseNotFound) {
					err = errors.Join(err, e)
				}
			}
			return err
		}
		for range max(2, contenders) { // PauseAndWake has two
			if _, err := open(etcdTTL); err != nil {
				return nil, errors.Join(err, c.close())
			}
		}
		regular := sessions
		c.committed = func(ctx context.Context) (int, error) {
			found, err := client.Get(ctx, events, clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				return 0, err
			}
			return int(found.Count), nil
		}
		c.acquire = func(ctx context.Context, contender, lease int, brief bool) (*holding, error) {
			session := regular[contender]
			if brief {
				own, err := open(etcdBriefTTL)
				if err != nil {
					return nil, err
				}
				session = own
			}
			name := fmt.Sprintf("%slease/%d", prefix, lease)
			held, err := lock(ctx, session, name)
			if err != nil {
				// A cancelled request may have put the key with which the session waits.
				_, e := client.Delete(context.WithoutCancel(ctx), fmt.Sprintf("%s/%x", name, session.Lease()))
				return &holding{attempts: 1}, errors.Join(err, e)
			}
			return &holding{
				attempts: 1,
				write: func(ctx context.Context) error {
					key, event := fmt.Sprintf("%s%d/%d", events, lease, written.Add(1)), string(payload)
					if !fenced {
						_, err := client.Put(ctx, key, event)
						return err
					}
					done, err := client.Txn(ctx).If(held.owner).Then(clientv3.OpPut(key, event)).Commit()
					if err == nil && !done.Succeeded {
						err = errors.New("the condition IsOwner does not hold")
					}
					return err
				},
				release: held.release,
				pause: func(context.Context) error {
					session.Orphan() // its keep-alive stops
					return nil
				},
			}, nil
		}
		return c, nil
	}
}

func etcdMutex(ctx context.Context, session *concurrency.Session, prefix string) (etcdLease, error) {
	m := concurrency.NewMutex(session, prefix)
	if err := m.Lock(ctx); err != nil {
		return etcdLease{}, err
	}
	return etcdLease{owner: m.IsOwner(), release: m.Unlock}, nil
}

func etcdElection(ctx context.Context, session *concurrency.Session, prefix string) (etcdLease, error) {
	e := concurrency.NewElection(session, prefix)
	if err := e.Campaign(ctx, "leader"); err != nil {
		return etcdLease{}, err
	}
	return etcdLease{release: e.Resign}, nil
}
