package group

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// Group is a handle on a group of one store. It is safe for concurrent use and needs no closing.
type Group struct {
	store  *boundedStore
	name   string
	opts   Options
	keeper *lease.Keeper
}

// Member is one live member of a group.
type Member struct {
	Name string
	// Attributes are those of the [MemberSpec], or of the last [Membership.SetAttributes].
	Attributes []byte
	// Token is the fencing token of the membership: a later membership of the same name has a higher
	// one.
	Token runstore.Token
	// JoinedAt is when the membership began, on the store clock.
	JoinedAt time.Time
	// Shards is the number of shards that the member shares with others ([Membership.Shards]); 0 if it
	// takes no shards.
	Shards int
}

func (m Member) equal(other Member) bool {
	return m.Name == other.Name && m.Token == other.Token && m.Shards == other.Shards &&
		m.JoinedAt.Equal(other.JoinedAt) && string(m.Attributes) == string(other.Attributes)
}

// Snapshot is the live members of a group.
type Snapshot struct {
	// At is the time on the store clock for which the leases were judged.
	At time.Time
	// Members are ordered by name.
	Members []Member
}

// New returns a handle on the group of that name, which needs no creation. Nil Options mean the
// defaults. The name is up to [MaxName] bytes without a slash. The error lists every invalid option
// and matches runstore.ErrInvalid or ErrTooLarge.
func New(store runstore.RunStore, name string, opts *Options) (*Group, error) {
	resolved, leases, err := opts.resolve()
	g := &Group{
		store: &boundedStore{RunStore: store, slots: make(chan struct{}, max(1, min(resolved.MaxInFlight, MaxInFlight)))},
		name:  name, opts: resolved,
	}
	keeper, leaseErr := lease.New(g.store, leases)
	g.keeper = keeper
	slash := invalidIf(strings.Contains(name, "/"), "group", "%.64q contains a slash", name)
	if err := errors.Join(checkName("group", name), slash, err, leaseErr); err != nil {
		return nil, err
	}
	return g, nil
}

func checkName(field, name string) error {
	return errors.Join(
		invalidIf(name == "", field, "is empty, the limits are 1 and %d bytes", MaxName),
		invalidIf(!utf8.ValidString(name), field, "%.64q is not UTF-8", name),
		tooLargeIf(len(name) > MaxName, field, "%d bytes, the limit is %d", len(name), MaxName),
	)
}

// Run returns the id of the group's run: its record says which member owns which shard, and its
// journal has an event [EventRebalanced] for each change of that.
func (g *Group) Run() runstore.RunID { return runstore.RunID("group/" + g.name) }

// MemberRun returns the id of a member's run: its journal has an event [EventJoined] and an event
// [EventEnded] for each membership of that name.
func (g *Group) MemberRun(member string) runstore.RunID {
	return runstore.RunID(string(g.Run()) + "/member/" + member) // no two: the group's name has no slash
}

// ShardRun returns the id of a shard's run, whose lease the shard's owner holds.
func (g *Group) ShardRun(shard int) runstore.RunID {
	return runstore.RunID(fmt.Sprintf("%s/shard/%d", g.Run(), shard))
}

// index is the index with the records of the members.
func (g *Group) index() runstore.IndexName { return runstore.IndexName(g.Run()) }

// Members returns the members whose leases are live on the store clock. It costs two reads, and a
// further one for each thousand members. The errors are those of the store.
func (g *Group) Members(ctx context.Context) (Snapshot, error) {
	v, err := g.read(ctx)
	return v.snapshot(), err
}

// Watch returns an iterator over the snapshots of the group: the present one, and then one after each
// change of a member. Changes that follow each other quickly may appear as one. An expiry is noticed
// within 100 ms and the time of a read; any other change at once where the store announces writes to
// a run, and otherwise within Options.Interval.
//
// While the store cannot be reached, the iterator waits; Snapshot.At says how old a snapshot is. The
// iteration ends when ctx ends, with its cause, or with an error after which no read can succeed, such
// as runstore.ErrClosed.
func (g *Group) Watch(ctx context.Context) iter.Seq2[Snapshot, error] {
	return func(yield func(Snapshot, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the subscription
		p := g.newPoller(ctx)
		for last := []Member(nil); ; {
			v, err := p.next(ctx, noBound)
			if err != nil {
				yield(Snapshot{}, err)
				return
			}
			if last != nil && slices.EqualFunc(last, v.members, Member.equal) {
				continue
			}
			last = append([]Member{}, v.members...)
			if !yield(v.snapshot(), nil) {
				return
			}
		}
	}
}

// boundedStore is a store with a bound on the grants and creations that are in flight. Once a request
// for a lease was sent, it runs to its deadline even if its context is cancelled: its caller learns
// whether the lease was granted, and releases it.
type boundedStore struct {
	runstore.RunStore
	slots chan struct{}
}

// Unwrap gives access to the store's capabilities.
func (b *boundedStore) Unwrap() runstore.RunStore { return b.RunStore }

// enter waits for a slot. Its error is that of a request that was not sent.
func (b *boundedStore) enter(ctx context.Context, op string, run runstore.RunID) (leave func(), err error) {
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, &runstore.OpError{Op: op, Run: run, Err: runstore.ErrUnavailable, Cause: ctx.Err()}
	}
	return func() { <-b.slots }, nil
}

// AcquireLease implements runstore.RunStore.
func (b *boundedStore) AcquireLease(ctx context.Context, req runstore.AcquireRequest) (runstore.Granted, error) {
	leave, err := b.enter(ctx, "acquire lease", req.Run)
	if err != nil {
		return runstore.Granted{}, err
	}
	defer leave()
	sent := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		sent, cancel = context.WithDeadline(sent, deadline)
		defer cancel()
	}
	return b.RunStore.AcquireLease(sent, req)
}

// CreateRun implements runstore.RunStore.
func (b *boundedStore) CreateRun(ctx context.Context, spec runstore.RunSpec) (runstore.Created, error) {
	leave, err := b.enter(ctx, "create run", spec.ID)
	if err != nil {
		return runstore.Created{}, err
	}
	defer leave()
	return b.RunStore.CreateRun(ctx, spec)
}

// announcementTimeout bounds the write that wakes the other members. They find the change by polling
// if it fails.
const announcementTimeout = time.Second

// announce wakes the other members where the store announces writes to a run.
func (g *Group) announce(ctx context.Context) {
	if _, ok := runstore.As[runstore.RunNotifier](g.store); !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), announcementTimeout)
	defer cancel()
	b := runstore.NewBatch(g.Run(), runstore.Unguarded("announces a change of a member"))
	b.Put("change", nil)
	_, err := g.store.Commit(ctx, b)
	if errors.Is(err, runstore.ErrNotFound) {
		_, err = g.store.CreateRun(ctx, runstore.RunSpec{ID: g.Run(), Unlisted: true})
	}
	if err != nil {
		g.opts.Logger.Debug("group: a change was not announced", "group", g.name, "error", err)
	}
}

// commit commits a batch under an id, and repeats it until its outcome is known or ctx ends. If one attempt
// has an unknown outcome, no later error resolves it: the store may have forgotten the result, or apply a late copy.
func (g *Group) commit(ctx context.Context, b runstore.Batch) (done runstore.Committed, err error) {
	b.ID = runstore.NewBatchID()
	unknown := false // the outcome of an attempt
	err = g.retry(ctx, func(ctx context.Context) error {
		done, err = g.store.Commit(ctx, b)
		unknown = unknown || runstore.OutcomeOf(err) == runstore.Unknown
		return err
	})
	if err != nil && unknown && runstore.OutcomeOf(err) != runstore.Unknown {
		err = &runstore.OpError{Op: "commit", Run: b.Run(), Err: runstore.ErrUnknownOutcome, Cause: err}
	}
	return done, err
}

// create creates an unlisted run, if it does not exist.
func (g *Group) create(ctx context.Context, run runstore.RunID) error {
	return g.retry(ctx, func(ctx context.Context) error {
		_, err := g.store.CreateRun(ctx, runstore.RunSpec{ID: run, Unlisted: true})
		return err
	})
}

// attempt returns the context of one attempt at an operation, a third of the TTL: one that hangs costs
// at most one heartbeat.
func (g *Group) attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, g.opts.TTL/3)
}

// retry repeats call, with backoff, until its error is definite or ctx ends.
func (g *Group) retry(ctx context.Context, call func(context.Context) error) error {
	for backoff := g.opts.Interval / 20; ; backoff = min(2*backoff, g.opts.Interval) {
		attempt, cancel := g.attempt(ctx)
		err := call(attempt)
		cancel()
		if !transient(err) || !pace.Pause(ctx, pace.Jitter(backoff)) {
			return err
		}
	}
}

// transient reports whether the request may be repeated: either it did not reach the store or its
// answer was lost.
func transient(err error) bool {
	kind := runstore.KindOf(err)
	return kind == runstore.ErrUnavailable || kind == runstore.ErrUnknownOutcome
}

// LeaseVector describes the leases of members and shards.
func LeaseVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "the leases of one unlisted run for each member and one for each shard",
		Payload:     "the engine's; the owner is the member, whose attributes are a record",
		Enforcement: "by the store, at each write with the fence of the membership or the shard",
		Token:       "the run's: a shard's tokens rise with each owner",
		Handoff:     "drain, release and acquire by the owner that the assignment names",
	}
}
