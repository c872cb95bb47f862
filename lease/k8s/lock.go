package k8s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/tapestore/tapestore/runstore"
)

// RecordKey is the key of the record that holds the LeaderElectionRecord, as JSON.
const RecordKey runstore.RecordKey = "k8s/leader-election-record"

// The events that client-go's elector records before it calls OnStartedLeading, and when a leadership has
// ended, before it calls OnStoppedLeading.
const (
	becameLeader   = "became leader"
	stoppedLeading = "stopped leading"
)

// Lock is the lock of one contender: a resourcelock.Interface on the lease of a run. It is safe for
// concurrent use, and must be used by one elector at a time.
type Lock struct {
	store    runstore.RunStore
	run      runstore.RunID
	identity runstore.Owner

	requests sync.Mutex       // held by Create and Update until the store has answered
	grant    runstore.GrantID // of an acquire request of unknown outcome; guarded by requests

	// mu guards the fields below, and is not held during a request. Create and Update, which change
	// the fence, hold requests too.
	mu    sync.Mutex
	fence runstore.Fence    // of the grant that this contender has, as far as it knows
	leads bool              // the elector has a leadership
	lost  error             // the refusal that ended the leadership, until the elector has noticed
	event func(text string) // receives RecordEvent; nil means nobody
}

var _ resourcelock.Interface = (*Lock)(nil)

// New returns the lock of one contender on the lease of run, which is created when needed, unlisted.
// identity must differ between the contenders. The errors match runstore.ErrInvalid.
func New(store runstore.RunStore, run runstore.RunID, identity string) (*Lock, error) {
	err := runstore.CheckRunID(run)
	if identity == "" {
		err = errors.Join(err, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "identity", Problem: "is empty"})
	}
	if err != nil {
		return nil, err
	}
	return &Lock{store: store, run: run, identity: runstore.Owner(identity)}, nil
}

// OnEvent sets the function that receives the texts of RecordEvent, such as "became leader".
func (l *Lock) OnEvent(f func(text string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.event = f
}

// Fence returns the fence of this contender's grant, for batches (runstore.NewBatch) and for the
// user's own transactions (FenceTx of the SQL stores). ok is false if the contender has no grant,
// as far as it knows. Only the store knows whether the grant is current.
func (l *Lock) Fence() (fence runstore.Fence, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence, !l.fence.IsZero()
}

// FencingToken returns the token of this contender's grant, for services that check tokens
// themselves; see Fence.
func (l *Lock) FencingToken() (token runstore.Token, ok bool) {
	fence, ok := l.Fence()
	return fence.Token(), ok
}

// Identity implements resourcelock.Interface.
func (l *Lock) Identity() string { return string(l.identity) }

// Describe implements resourcelock.Interface.
func (l *Lock) Describe() string { return "tapestore run " + string(l.run) }

// RecordEvent implements resourcelock.Interface. The event "stopped leading", which the elector records
// when a leadership has ended, permits the contender to acquire the lease again.
func (l *Lock) RecordEvent(text string) {
	l.mu.Lock()
	f := l.event
	switch text {
	case becameLeader:
		l.leads = true
	case stoppedLeading:
		l.leads, l.lost = false, nil
	}
	l.mu.Unlock()
	if f != nil {
		f(text)
	}
}

// Get implements resourcelock.Interface. A run without a record counts as a lock that nobody has
// held yet.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	records, err := l.store.ReadRecords(ctx, l.run, runstore.RecordQuery{Keys: []runstore.RecordKey{RecordKey}})
	if errors.Is(err, runstore.ErrNotFound) {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Group: "tapestore", Resource: "runs"}, string(l.run))
	}
	if err != nil {
		return nil, nil, err
	}
	record := &resourcelock.LeaderElectionRecord{}
	if len(records) == 0 {
		return record, nil, nil
	}
	if err := json.Unmarshal(records[0].Value, record); err != nil {
		return nil, nil, fmt.Errorf("the record %q of run %q is no LeaderElectionRecord: %w", RecordKey, l.run, err)
	}
	return record, records[0].Value, nil
}

// Create implements resourcelock.Interface: it creates the run with the lease and the record. In a
// leadership whose lease was lost it returns the loss, as Update does.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	writes, err := writesOf(record)
	if err != nil {
		return err
	}
	l.requests.Lock()
	defer l.requests.Unlock()
	if err := l.loss(); err != nil {
		return err
	}
	spec := l.spec(record)
	created, err := l.store.CreateRun(ctx, runstore.RunSpec{ID: l.run, Unlisted: true, Lease: &spec, Writes: writes})
	if runstore.OutcomeOf(err) == runstore.Unknown || errors.Is(err, runstore.ErrUnavailable) {
		return err // the next attempt repeats the request under the same grant id
	}
	l.grant = ""
	if err != nil {
		return err
	}
	if !created.New {
		return apierrors.NewAlreadyExists(schema.GroupResource{Group: "tapestore", Resource: "runs"}, string(l.run))
	}
	l.setFence(created.Lease.Fence())
	return l.renewIfReplayed(ctx, created.Committed, record, writes)
}

// Update implements resourcelock.Interface. It renews the lease if this contender has it, and
// requests it otherwise. A record without a holder releases the lease (ReleaseOnCancel).
//
// Once the store has refused a renewal of the leader because its lease is lost, Update and Create return
// that refusal until the elector records the event "stopped leading", at the latest after its RenewDeadline.
// A new grant within the leadership would let work go on that began under the former one.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	writes, err := writesOf(record)
	if err != nil {
		return err
	}
	l.requests.Lock()
	defer l.requests.Unlock()
	if record.HolderIdentity == "" {
		return l.releaseLease(ctx, writes)
	}
	if err := l.loss(); err != nil {
		return err
	}
	if _, ok := l.Fence(); ok {
		return l.renewLease(ctx, record, writes)
	}
	return l.acquireLease(ctx, record, writes)
}

// loss returns the refusal that ended the leadership, if the elector has not noticed yet.
func (l *Lock) loss() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

func (l *Lock) setFence(fence runstore.Fence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fence = fence
}

func (l *Lock) acquireLease(ctx context.Context, record resourcelock.LeaderElectionRecord, writes runstore.Writes) error {
	granted, err := l.store.AcquireLease(ctx, runstore.AcquireRequest{Run: l.run, LeaseSpec: l.spec(record), Writes: writes})
	if runstore.OutcomeOf(err) == runstore.Unknown || errors.Is(err, runstore.ErrUnavailable) {
		return err // the next attempt repeats the request under the same grant id
	}
	l.grant = ""
	if err != nil {
		return err
	}
	if granted.Ended {
		return fmt.Errorf("%w: the lease was granted by an earlier attempt, and has ended", runstore.ErrFenced)
	}
	l.setFence(granted.Fence())
	return l.renewIfReplayed(ctx, granted.Committed, record, writes)
}

// renewIfReplayed renews a grant that an earlier attempt made. It is as old as that attempt, may have
// expired, and came with the record of that attempt.
func (l *Lock) renewIfReplayed(ctx context.Context, committed runstore.Committed, record resourcelock.LeaderElectionRecord, writes runstore.Writes) error {
	if !committed.Replayed {
		return nil
	}
	return l.renewLease(ctx, record, writes)
}

// renewLease renews without a request id: a repeat carries later times in its record and renews again,
// and applying the record of an earlier attempt late does no harm, because the fence holds.
func (l *Lock) renewLease(ctx context.Context, record resourcelock.LeaderElectionRecord, writes runstore.Writes) error {
	fence, _ := l.Fence()
	_, err := l.store.RenewLease(ctx, runstore.RenewRequest{Fence: fence, TTL: ttlOf(record), Writes: writes})
	switch runstore.KindOf(err) {
	case runstore.ErrFenced, runstore.ErrNotFound, runstore.ErrLeaseExpired, runstore.ErrStoreBehind:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.fence = runstore.Fence{} // the elector finds the new holder by Get
		if l.leads {
			l.lost = err
		}
	}
	return err
}

func (l *Lock) releaseLease(ctx context.Context, writes runstore.Writes) error {
	fence, ok := l.Fence()
	if !ok {
		return nil
	}
	_, err := l.store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: fence, Writes: writes})
	if err == nil || runstore.OutcomeOf(err) == runstore.NotApplied && !errors.Is(err, runstore.ErrUnavailable) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.fence = runstore.Fence{}
	}
	return err
}

// spec returns the requested lease. A request of unknown outcome is repeated under its grant id.
func (l *Lock) spec(record resourcelock.LeaderElectionRecord) runstore.LeaseSpec {
	if l.grant == "" {
		l.grant = runstore.NewGrantID()
	}
	return runstore.LeaseSpec{Owner: l.identity, Reactor: "k8s", TTL: ttlOf(record), Grant: l.grant}
}

func ttlOf(record resourcelock.LeaderElectionRecord) time.Duration {
	return time.Duration(record.LeaseDurationSeconds) * time.Second
}

// writesOf returns the writes that store a record.
func writesOf(record resourcelock.LeaderElectionRecord) (runstore.Writes, error) {
	value, err := json.Marshal(record)
	if err != nil {
		return runstore.Writes{}, err
	}
	var w runstore.Writes
	w.Put(RecordKey, value)
	return w, nil
}
