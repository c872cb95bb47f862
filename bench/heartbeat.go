package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

func heartbeatPart() Part {
	return Part{
		Name: "heartbeat", Title: "Leases that one process keeps alive",
		Doc: `One process holds many leases, each with a keeper at its defaults: a TTL of 30 s and a renewal every 8 to 10 s, the first after 5 to 10 s. ` +
			`The leases are granted together, as fast as the store can. They are watched from half a heartbeat after the last grant on, when renewals begin. ` +
			`CPU per renewal is the time of this process, user and system, keepers and client and the garbage collector with them; a server's is not in it, an embedded engine's is. ` +
			`Leases per core are those whose renewals, every 9 s each, use up one core at that price. ` +
			`The largest share is that of the renewals in the fullest tenth of a heartbeat, of all leases: 1 if they all renew together.`,
		Run: runHeartbeat,
	}
}

// leaseHolders keeps many leases alive by keepers.
type leaseHolders struct {
	store  Store
	handle runstore.RunStore
	every  time.Duration // the heartbeat interval
	keeper *lease.Keeper
	renews *renewals

	done chan struct{} // closed to end the work
	all  sync.WaitGroup

	mu   sync.Mutex
	held map[runstore.RunID]*lease.Held
	lost []error
}

// renewals is a store that records when renewals were acknowledged. It ignores releases, because
// the store is dropped or the leases expire.
type renewals struct {
	runstore.RunStore
	mu sync.Mutex
	at []time.Time
}

func (r *renewals) RenewLease(ctx context.Context, req runstore.RenewRequest) (runstore.Renewed, error) {
	renewed, err := r.RunStore.RenewLease(ctx, req)
	if err == nil {
		r.mu.Lock()
		r.at = append(r.at, time.Now())
		r.mu.Unlock()
	}
	return renewed, err
}

func (r *renewals) ReleaseLease(context.Context, runstore.ReleaseRequest) (runstore.Committed, error) {
	return runstore.Committed{}, nil
}

func (r *renewals) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.at)
}

func runHeartbeat(ctx context.Context, s *Session) error {
	return s.WithStore(ctx, func(store Store) error {
		handle, err := store.Open(ctx)
		if err != nil {
			return err
		}
		return errors.Join(s.beat(ctx, store, handle), handle.Close())
	})
}

// beat grants leases, has keepers renew them, measures the renewals and verifies the leases.
func (s *Session) beat(ctx context.Context, store Store, handle runstore.RunStore) error {
	// The interval is the keeper's default, unless the measurement is too short for it.
	b := &leaseHolders{
		store: store, handle: handle, every: min(lease.DefaultTTL/3, 2*s.Scale.Beating), renews: &renewals{RunStore: handle},
		done: make(chan struct{}), held: make(map[runstore.RunID]*lease.Held),
	}
	var err error
	if b.keeper, err = lease.New(b.renews, &lease.Options{Heartbeat: b.every, RequestTimeout: lease.DefaultTTL / 6}); err != nil {
		return err
	}
	defer b.stop()
	from, err := handle.Now(ctx)
	if err != nil {
		return err
	}
	s.Step(0, 3, fmt.Sprintf("granting %d leases", s.Scale.Heartbeats))
	workers, budget := 64, s.Scale.Fill
	if s.Target.System.Emulated() {
		// Spanner's emulator aborts concurrent transactions, so it grants only as many leases as it
		// can renew in 1 s.
		workers, budget = 1, min(budget, time.Second)
	}
	n, err := b.grant(ctx, workers, s.Scale.Heartbeats, budget)
	if err != nil {
		return err
	}
	if n < s.Scale.Heartbeats {
		s.Note(s.Target.System.Name, "%d leases instead of %d: no more were granted in %v", n, s.Scale.Heartbeats, budget)
	}
	s.Step(1, 3, fmt.Sprintf("watching %d leases", n))
	r := Result{Group: "heartbeats", System: s.Target.System.Name, Side: "keepers", Params: map[string]string{"leases": strconv.Itoa(s.Scale.Heartbeats)}}
	if err := b.watch(ctx, s.Scale.Beating, &r); err != nil {
		return err
	}
	s.Step(2, 3, "reading back")
	if r.Verified, err = b.verify(ctx, from); err != nil {
		return err
	}
	r.Metrics = append(r.Metrics, Size{n, "leases"}.metric())
	s.Record(r)
	return nil
}

// grant creates runs with a lease each, for at most fill, and hands the leases to keepers.
func (b *leaseHolders) grant(ctx context.Context, workers, leases int, fill time.Duration) (int, error) {
	creating, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	ids := make(chan runstore.RunID)
	go func() {
		defer close(ids)
		for began, i := time.Now(), 0; i < leases && creating.Err() == nil && (i == 0 || time.Since(began) < fill); i++ {
			ids <- b.store.RunID(i)
		}
	}()
	var granted atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for id := range ids {
				sent := time.Now()
				created, err := b.handle.CreateRun(creating, runstore.RunSpec{ID: id, Lease: &runstore.LeaseSpec{Owner: "benchmark", TTL: lease.DefaultTTL}})
				if err != nil {
					fail(err)
					continue
				}
				b.hold(ctx, lease.Granted{Lease: created.Lease, Sent: sent})
				granted.Add(1)
			}
		})
	}
	all.Wait()
	return int(granted.Load()), context.Cause(creating)
}

// hold has a keeper hold a lease until stop.
func (b *leaseHolders) hold(ctx context.Context, granted lease.Granted) {
	b.all.Go(func() {
		err := b.keeper.Hold(ctx, granted, func(ctx context.Context, held *lease.Held) error {
			b.mu.Lock()
			b.held[granted.Lease.Run] = held
			b.mu.Unlock()
			select {
			case <-b.done:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil {
			b.mu.Lock()
			b.lost = append(b.lost, err)
			b.mu.Unlock()
		}
	})
}

// stop ends the work under all leases and waits for it to end.
func (b *leaseHolders) stop() {
	select {
	case <-b.done:
	default:
		close(b.done)
	}
	b.all.Wait()
}

// watch measures the renewals for d, starting half a heartbeat from now, and longer if there are
// none yet.
func (b *leaseHolders) watch(ctx context.Context, d time.Duration, r *Result) error {
	if err := sleep(ctx, b.every/2); err != nil {
		return err
	}
	before, cpu, began := b.renews.count(), cpuTime(), time.Now()
	for time.Since(began) < d || b.renews.count() == before {
		if err := sleep(ctx, max(time.Millisecond, d-time.Since(began))); err != nil {
			return err
		}
		b.mu.Lock()
		lost := errors.Join(b.lost...)
		b.mu.Unlock()
		if lost != nil {
			return lost
		}
	}
	took, used := time.Since(began), cpuTime()-cpu
	b.renews.mu.Lock()
	at := b.renews.at[before:]
	b.renews.mu.Unlock()
	b.mu.Lock()
	leases := len(b.held)
	b.mu.Unlock()

	var m Measured
	m.Add(Rate, "renewals/s", "", float64(len(at))/took.Seconds())
	if used > 0 {
		each := used / time.Duration(len(at))
		m.Add("CPU per renewal", "µs", Less, float64(each)/float64(time.Microsecond))
		m.Add("leases per core", "", More, float64(b.every*9/10)/float64(max(each, 1)))
	}
	m.Add("largest share in a tenth of a heartbeat", "", Less, float64(fullest(at, b.every/10))/float64(leases))
	r.Metrics = m.metrics
	return nil
}

// fullest returns the largest number of the sorted times that lie within one window.
func fullest(at []time.Time, window time.Duration) (most int) {
	first := 0
	for i, t := range at {
		for t.Sub(at[first]) >= window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// verify stops the keepers and compares the store's leases with the acknowledged ones.
func (b *leaseHolders) verify(ctx context.Context, from time.Time) (string, error) {
	b.stop()
	if err := errors.Join(b.lost...); err != nil {
		return "", err
	}
	found, renewed := 0, 0
	for e, err := range runstore.Entries(ctx, b.handle, runstore.IndexQuery{Index: runstore.IndexRuns, From: from, Until: runstore.EndOfTime}) {
		if err != nil {
			return "", err
		}
		held, ok := b.held[e.Run]
		if !ok && strings.HasPrefix(string(e.Run), b.store.Prefix) {
			return "", fmt.Errorf("run %s is leased, and no keeper holds it", e.Run)
		}
		if !ok {
			continue // a store at a URL may hold runs of other programs
		}
		found++
		l := held.Lease()
		if e.Head.Holder.Token != l.Token || e.Head.ExpiresAt.Before(l.ExpiresAt) {
			return "", fmt.Errorf("run %s is leased under token %v until %v; acknowledged were token %v and %v",
				e.Run, e.Head.Holder.Token, e.Head.ExpiresAt, l.Token, l.ExpiresAt)
		}
		if e.Head.Holder.RenewedAt.After(e.Head.Holder.GrantedAt) {
			renewed++
		}
	}
	if found != len(b.held) {
		return "", fmt.Errorf("%d leases are held, %d are stored", len(b.held), found)
	}
	return fmt.Sprintf("%d leases with their tokens and expiries, %d of them renewed", found, renewed), nil
}
