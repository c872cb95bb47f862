package election_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tapestore/tapestore/internal/intercept"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/lease/election"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/memory"
)

// cut is one replica's connection to the store, which a test can cut.
type cut struct {
	runstore.RunStore
	down atomic.Bool
}

// Unwrap gives access to the store's announcements of releases.
func (c *cut) Unwrap() runstore.RunStore { return c.RunStore }

func (c *cut) err(op string) error {
	if !c.down.Load() {
		return nil
	}
	return &runstore.OpError{Op: op, Err: runstore.ErrUnavailable, Cause: errors.New("cut by the test")}
}

func (c *cut) AcquireLease(ctx context.Context, r runstore.AcquireRequest) (runstore.Granted, error) {
	if err := c.err("acquire lease"); err != nil {
		return runstore.Granted{}, err
	}
	return c.RunStore.AcquireLease(ctx, r)
}

func (c *cut) RenewLease(ctx context.Context, r runstore.RenewRequest) (runstore.Renewed, error) {
	if err := c.err("renew lease"); err != nil {
		return runstore.Renewed{}, err
	}
	return c.RunStore.RenewLease(ctx, r)
}

func (c *cut) ReleaseLease(ctx context.Context, r runstore.ReleaseRequest) (runstore.Committed, error) {
	if err := c.err("release lease"); err != nil {
		return runstore.Committed{}, err
	}
	return c.RunStore.ReleaseLease(ctx, r)
}

// replica is one coordinator with its connection, its changes and its terms.
type replica struct {
	*election.Coordinator
	store *cut
	stop  context.CancelFunc
	ended chan error

	mu      sync.Mutex
	changes []election.Status
	held    []*lease.Held
	began   []time.Time
	causes  []error
}

// start runs replicas of one name. Their work ends with its context.
func start(t *testing.T, store runstore.RunStore, n int, o election.Options) []*replica {
	t.Helper()
	var all []*replica
	for i := range n {
		r := &replica{store: &cut{RunStore: store}, ended: make(chan error, 1)}
		opts := o
		opts.Replica = runstore.Owner(fmt.Sprint("replica ", i))
		opts.Logger = slog.New(slog.DiscardHandler)
		opts.OnChange = func(s election.Status) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.changes = append(r.changes, s)
		}
		c, err := election.New(r.store, "scheduler", &opts)
		if err != nil {
			t.Fatal(err)
		}
		r.Coordinator = c
		ctx, stop := context.WithCancel(t.Context())
		r.stop = stop
		go func() {
			r.ended <- c.Run(ctx, func(ctx context.Context, held *lease.Held) error {
				r.mu.Lock()
				r.held, r.began = append(r.held, held), append(r.began, time.Now())
				r.mu.Unlock()
				<-ctx.Done()
				r.mu.Lock()
				r.causes = append(r.causes, context.Cause(ctx))
				r.mu.Unlock()
				return context.Cause(ctx)
			})
		}()
		all = append(all, r)
	}
	t.Cleanup(func() {
		for _, r := range all {
			r.stop()
			<-r.ended
		}
	})
	return all
}

// active returns the index of the only active replica.
func active(t *testing.T, all []*replica) int {
	t.Helper()
	var found []int
	for i, r := range all {
		if r.Status().State == election.Active {
			found = append(found, i)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d active replicas, want 1", len(found))
	}
	return found[0]
}

// append commits an event under the lease of a replica's last term.
func (r *replica) append(ctx context.Context, store runstore.RunStore) error {
	r.mu.Lock()
	held := r.held[len(r.held)-1]
	r.mu.Unlock()
	b := runstore.NewBatch("scheduler", held.Fence())
	b.Append("tick", nil)
	_, err := store.Commit(ctx, b)
	return err
}

// An active replica that no longer reaches the store ends its work before its lease expires. A
// standby takes over within the TTL and the acquire interval; the former replica's late write is
// refused, and it is a standby again.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		all := start(t, store, 3, election.Options{})
		time.Sleep(time.Minute)
		first := all[active(t, all)]
		first.store.down.Store(true)
		at := time.Now()
		time.Sleep(lease.DefaultTTL + election.DefaultAcquireInterval)
		second := all[active(t, all)]
		if second == first {
			t.Fatal("the replica without a store is still active")
		}
		second.mu.Lock()
		d := second.began[0].Sub(at)
		second.mu.Unlock()
		if d > lease.DefaultTTL+election.DefaultAcquireInterval {
			t.Errorf("the standby took over after %v, want at most the TTL and the acquire interval", d)
		}
		if s := first.Status(); s.State != election.Standby || s.Lost != 1 || !errors.Is(s.Err, lease.ErrLost) {
			t.Errorf("status of the former replica: %+v, want a standby after a loss", s)
		}
		if err := second.append(t.Context(), store); err != nil {
			t.Errorf("write of the active replica: %v", err)
		}
		if err := first.append(t.Context(), store); !errors.Is(err, runstore.ErrFenced) {
			t.Errorf("late write of the former replica: %v, want ErrFenced", err)
		}
		first.mu.Lock()
		cause := first.causes[0]
		first.mu.Unlock()
		if !errors.Is(cause, lease.ErrLost) {
			t.Errorf("cause of the work's end: %v, want ErrLost", cause)
		}

		// The former replica takes over again when the second one stops.
		first.store.down.Store(false)
		for _, r := range all {
			if r != first && r != second {
				r.stop()
			}
		}
		second.stop()
		time.Sleep(election.DefaultAcquireInterval)
		if s := first.Status(); s.State != election.Active || s.Terms != 2 || s.Token != 3 {
			t.Errorf("status %+v, want active in its second term under token 3", s)
		}
	})
}

// A replica that stops releases the lease, and a standby takes over at once.
func TestStopHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := start(t, memory.New(nil).Open(), 3, election.Options{})
		time.Sleep(time.Minute)
		first := all[active(t, all)]
		first.stop()
		if err := <-first.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v, want the context's cause", err)
		}
		first.ended <- nil
		synctest.Wait() // no time passes
		if s := first.Status(); s.State != election.Stopped || s.Lost != 0 {
			t.Errorf("status %+v, want stopped without a loss", s)
		}
		active(t, all)
	})
}

// A replica that steps down is a standby, and another one comes first.
func TestStepDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := start(t, memory.New(nil).Open(), 2, election.Options{})
		time.Sleep(time.Minute)
		first := all[active(t, all)]
		if !first.StepDown() {
			t.Error("the active replica has no term")
		}
		time.Sleep(time.Minute)
		second := all[active(t, all)]
		if second == first {
			t.Error("the replica that stepped down is active")
		}
		if first.StepDown() {
			t.Error("a standby stepped down")
		}
		first.mu.Lock()
		causes := slices.Clone(first.causes)
		first.mu.Unlock()
		if len(causes) != 1 || causes[0] != election.ErrSteppedDown {
			t.Errorf("causes %v, want ErrSteppedDown", causes)
		}
		// Alone, a replica that stepped down is active again after the interval.
		first.stop()
		second.StepDown()
		time.Sleep(2 * election.DefaultAcquireInterval)
		if s := second.Status(); s.State != election.Active || s.Terms != 2 {
			t.Errorf("status %+v, want active in a second term", s)
		}
	})
}

// Work that returns ends the election for its replica, with its error.
func TestWorkThatReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		wrong := errors.New("a fault of the test")
		for _, want := range []error{nil, wrong} {
			c, err := election.New(store, "scheduler", &election.Options{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Run(t.Context(), func(context.Context, *lease.Held) error { return want }); err != want {
				t.Errorf("run: %v, want %v", err, want)
			}
		}
		if head, err := store.GetRun(t.Context(), "scheduler"); err != nil || head.Holder.Token != 0 || !head.Unlisted {
			t.Errorf("run %+v, %v; want a free lease, and a run that is not listed", head, err)
		}
	})
}

// Each change of the status is reported in order.
func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := start(t, memory.New(nil).Open(), 1, election.Options{})
		time.Sleep(time.Minute)
		all[0].StepDown()
		time.Sleep(time.Minute)
		all[0].stop()
		synctest.Wait()
		all[0].mu.Lock()
		defer all[0].mu.Unlock()
		var got []string
		for _, s := range all[0].changes {
			got = append(got, fmt.Sprint(s.State, " ", int64(s.Token), " ", s.Terms))
		}
		want := "standby 0 0, active 1 1, standby 1 1, active 2 2, stopped 2 2"
		if strings.Join(got, ", ") != want {
			t.Errorf("got %v, want %s", got, want)
		}
	})
}

// A run that was purged is created again, and its tokens continue.
func TestPurgedRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil).Open()
		all := start(t, store, 2, election.Options{})
		time.Sleep(time.Minute)
		b := runstore.NewBatch("scheduler", runstore.Unguarded("test"))
		b.Purge = true
		if _, err := store.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s := all[active(t, all)].Status(); s.Token < 2 {
			t.Errorf("status %+v, want a later token", s)
		}
	})
}

// Bad options are refused with the names of their fields, and so is a second Run.
func TestRefusals(t *testing.T) {
	_, err := election.New(memory.New(nil).Open(), "", &election.Options{TTL: -1, AcquireInterval: -1, ReleaseTimeout: -1})
	for _, field := range []string{"run", "ttl", "acquire interval", "release timeout"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name the field %q", err, field)
		}
	}
	if !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	synctest.Test(t, func(t *testing.T) {
		all := start(t, memory.New(nil).Open(), 1, election.Options{})
		synctest.Wait()
		if err := all[0].Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "runs already") {
			t.Errorf("a second Run: %v, want that it is refused", err)
		}
		if s := all[0].Status(); s.State != election.Active {
			t.Errorf("status %+v after a refused Run, want active", s)
		}
	})
}

func TestResolve(t *testing.T) {
	o, err := (&election.Options{Replica: "a", TTL: time.Minute}).Resolve()
	if err != nil || o.Heartbeat != 20*time.Second || o.AcquireInterval != 5*time.Second || o.ReleaseTimeout != 5*time.Second {
		t.Errorf("got %+v, %v, want the defaults", o, err)
	}
	if _, err := (&election.Options{TTL: 3 * time.Second, Heartbeat: 3 * time.Second}).Resolve(); !errors.Is(err, runstore.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

// The active replica renews its lease in each Heartbeat.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		renewals := 0
		store := intercept.Store(memory.New(nil).Open(), func(ctx context.Context, op string, do func(context.Context) error) error {
			if op == "renew" {
				renewals++
			}
			return do(ctx)
		})
		all := start(t, store, 1, election.Options{Heartbeat: 2 * time.Second})
		time.Sleep(20 * time.Second)
		all[0].stop()
		synctest.Wait()
		if renewals < 9 {
			t.Errorf("%d renewals in 20 s, want at least 9", renewals)
		}
	})
}

// The replica's name is that of the environment, or else that of the host.
func TestReplicaID(t *testing.T) {
	t.Setenv(election.ReplicaVariable, "eu-1")
	if id := election.ReplicaID(); id != "eu-1" {
		t.Errorf("got %q, want the value of the variable", id)
	}
	t.Setenv(election.ReplicaVariable, "")
	if id := election.ReplicaID(); id == "" || id == "eu-1" {
		t.Errorf("got %q, want the host's name or a random one", id)
	}
}
