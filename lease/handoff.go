package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

// HandoffMode is how a holder passes its lease to a successor that requests it.
type HandoffMode int

const (
	// NoHandoff ignores requests: a successor waits for the release or the expiry.
	NoHandoff HandoffMode = iota
	// Gap ends the work first: its context ends with [ErrHandoffRequested] as the cause, and the
	// lease is granted to the successor once the work has returned. No two holders work at a time,
	// and none works in the gap between them.
	Gap
	// Overlap grants the lease to the successor first. The old work's context ends then, with a
	// [HandedOffError] as the cause, and the store refuses its writes from the grant on. The
	// successor need not wait for the old work to return, so both may run at a time.
	Overlap
)

// String returns the mode's name.
func (m HandoffMode) String() string {
	switch m {
	case Gap:
		return "gap"
	case Overlap:
		return "overlap"
	default:
		return "none"
	}
}

// HandoffKey is the key of the record by which a successor requests a run's lease from its holder.
// The record contains the id of the grant to make, which is as secret as a lease.
const HandoffKey runstore.RecordKey = "lease/handoff"

// handoffStore is what a handoff needs of a store besides its lease methods. Every
// runstore.RunStore has it.
type handoffStore interface {
	Commit(ctx context.Context, b runstore.Batch) (runstore.Committed, error)
	ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error)
	Now(ctx context.Context) (time.Time, error)
}

// storedHandoff is the value of the record under HandoffKey: the grant that the successor requests.
type storedHandoff struct {
	Owner    runstore.Owner   `json:"owner"`
	Reactor  runstore.Reactor `json:"reactor,omitempty"`
	Grant    runstore.GrantID `json:"grant"`
	TTL      time.Duration    `json:"ttl"`
	Strict   bool             `json:"strict,omitempty"`
	MaxStall time.Duration    `json:"max_stall,omitempty"`
}

// spec returns the requested lease.
func (s storedHandoff) spec() runstore.LeaseSpec {
	return runstore.LeaseSpec{Owner: s.Owner, Reactor: s.Reactor, Grant: s.Grant, TTL: s.TTL, Strict: s.Strict, MaxStall: s.MaxStall}
}

// RequestHandoff asks the holder of a lease to hand it off, and blocks until the lease is granted,
// ctx ends or the store refuses. The holder hands off as Options.Handoff of its keeper says; if it
// is NoHandoff, or the lease is free or expires, RequestHandoff acquires it as [Keeper.Acquire]
// does. A handed-off lease is reserved for the successor until it expires, TTL after the holder's
// grant; nobody else is granted it before.
//
// Of several successors, the one that asked last is granted the lease first; the others go on
// waiting. If ctx ends, the request is withdrawn, and a lease that was granted for it meanwhile is
// revoked. A request whose sender died is ignored after its TTL; so is one that reaches the store after its
// withdrawal, unless the holder hands off to it before.
//
// The request names no guards, writes or reason to preempt: runstore.ErrInvalid. The store must be
// a runstore.RunStore, or have its methods Commit, ReadRecords and Now: runstore.ErrUnsupported.
// Other errors are those of Acquire.
func (k *Keeper) RequestHandoff(ctx context.Context, req runstore.AcquireRequest) (Granted, error) {
	store, err := k.handoffStore()
	if err != nil {
		return Granted{}, err
	}
	if len(req.Guards) > 0 || req.Preempt != "" || !req.Writes.IsZero() {
		return Granted{}, &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: "handoff", Problem: "the request has guards, writes or a reason to preempt, which the holder cannot apply",
		}
	}
	chosen := req.Grant != ""
	if req, err = k.prepare(req); err != nil {
		return Granted{}, err
	}
	// The grant deletes the request, whether this process asks for it or the holder.
	req.Writes.Delete(HandoffKey)
	s := &successor{keeper: k, store: store, req: req}
	granted, err := s.await(ctx, chosen)
	if err != nil && (s.requested || s.unknown) {
		s.withdraw(context.WithoutCancel(ctx))
	}
	return granted, err
}

// handoffStore returns the store with the methods that a handoff needs.
func (k *Keeper) handoffStore() (handoffStore, error) {
	store, ok := runstore.As[handoffStore](k.store)
	if !ok {
		return nil, &runstore.InputError{
			Kind: runstore.ErrUnsupported, Field: "handoff", Problem: fmt.Sprintf("%T has no methods Commit, ReadRecords and Now", k.store),
		}
	}
	return store, nil
}

// successor is one call of RequestHandoff.
type successor struct {
	keeper    *Keeper
	store     handoffStore
	req       runstore.AcquireRequest
	requested bool      // a request may be stored
	stored    time.Time // when the last one that was stored was sent
	unknown   bool      // a request for the lease under the present grant id has an unknown outcome
}

// await requests the handoff and waits for the grant.
func (s *successor) await(ctx context.Context, chosen bool) (Granted, error) {
	k := s.keeper
	hints := &hints{keeper: k, run: s.req.Run, on: runstore.OnWrite}
	defer hints.end()
	var outage Outage
	look := k.newLookout()
	for backoff := k.opts.MinBackoff; ; backoff = min(2*backoff, k.opts.MaxBackoff) {
		granted, err := look.acquire(ctx, s.req)
		outage.Observe(k, granted.Sent, err)
		if err == nil {
			if granted.replayed {
				granted.Sent = time.Time{} // the holder made the grant, at a time that is unknown here
			}
			return granted, nil
		}
		s.unknown = s.unknown || runstore.OutcomeOf(err) == runstore.Unknown
		answer := err
		if s.unknown {
			answer = unresolved("acquire lease", s.req.Run, err)
		}
		wait := pace.Jitter(backoff)
		var held *runstore.LeaseHeldError
		switch {
		case errors.As(err, &held):
			hints.begin(ctx)
			began := time.Now()
			stored := s.renew(ctx, held.Holder.Token)
			if !outage.hung(k, began) && stored {
				wait = 0 // the lease may have become free meanwhile
			}
			// The request is repeated in time, too.
			wait = min(wait, held.Remaining+rand.N(k.opts.MinBackoff/2+1), s.req.TTL/3)
		case !chosen && (errors.Is(err, ErrLost) || errors.Is(err, runstore.ErrFenced)):
			// The lease was handed off to this grant, and has ended since.
			s.req.Grant, s.stored, s.unknown = runstore.NewGrantID(), time.Time{}, false
		case !transient(err):
			return Granted{}, answer
		}
		// A run that is written all the time causes wake-ups all the time.
		if !pace.Pause(ctx, min(wait, k.opts.MinBackoff/20)) || !hints.pause(ctx, wait-k.opts.MinBackoff/20) || !k.awaitGrace(ctx, &outage, s.req) {
			return Granted{}, fmt.Errorf("%w: waiting for the handoff; last answer: %w", context.Cause(ctx), answer)
		}
	}
}

// renew stores the request if the last one is older than a third of its TTL, after which the holder
// ignores it, and reports whether it did. A failure is repeated by the next call. The guard at the
// holder's token keeps a request that arrives after its grant from reaching a later holder.
func (s *successor) renew(ctx context.Context, holder runstore.Token) bool {
	if !s.stored.IsZero() && time.Since(s.stored) < s.req.TTL/3 {
		return false
	}
	value, err := json.Marshal(storedHandoff{s.req.Owner, s.req.Reactor, s.req.Grant, s.req.TTL, s.req.Strict, s.req.MaxStall})
	if err != nil {
		return false // no such value exists
	}
	b := runstore.NewBatch(s.req.Run, runstore.AtToken(holder))
	b.Put(HandoffKey, value)
	ctx, cancel := context.WithTimeout(ctx, s.keeper.opts.RequestTimeout)
	defer cancel()
	s.requested = true
	sent := time.Now()
	if _, err := s.store.Commit(ctx, b); err != nil {
		return false
	}
	s.stored = sent
	return true
}

// withdraw deletes the request. If there is none, the grant may have been made, for the holder's request or
// for this process's: a repeat of the request for the lease finds it, and it is revoked.
func (s *successor) withdraw(ctx context.Context) {
	k := s.keeper
	var deleted atomic.Bool // a call that was abandoned may still return
	err := retryBounded(ctx, k.opts.ReleaseTimeout/2, s.req.Run, "withdraw the request for a handoff", func(ctx context.Context) error {
		found, err := readHandoff(ctx, s.store, s.req.Run)
		if err != nil || found == nil || found.spec.Grant != s.req.Grant {
			return err
		}
		b := runstore.NewBatch(s.req.Run, runstore.AtVersion(HandoffKey, found.version))
		b.Delete(HandoffKey)
		_, err = s.store.Commit(ctx, b)
		deleted.Store(err == nil)
		return err
	})
	if deleted.Load() || err != nil && !errors.Is(err, runstore.ErrConflict) {
		return
	}
	// A store recognizes the repeat of a request that it granted before it looks at the guards. This guard
	// never holds, so that a lease which is free or has expired is not taken from its holder, only to end.
	find := s.req
	find.Guards = []runstore.Guard{runstore.AtVersion(HandoffKey, math.MaxInt64)}
	if granted, err := k.acquireOnce(ctx, find); err == nil {
		_ = k.newHeld(granted).revoke(ctx) // the lease otherwise expires
	}
}

// handoffRequest is a stored request for a handoff.
type handoffRequest struct {
	spec    runstore.LeaseSpec
	version runstore.Version
}

// readHandoff returns the stored request for a run's lease; nil if there is none, or only one whose
// sender has not repeated it for its TTL, or one that names no owner or grant.
func readHandoff(ctx context.Context, store handoffStore, run runstore.RunID) (*handoffRequest, error) {
	found, err := store.ReadRecords(ctx, run, runstore.RecordQuery{Keys: []runstore.RecordKey{HandoffKey}})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	var stored storedHandoff
	if json.Unmarshal(found[0].Value, &stored) != nil || stored.Owner == "" || stored.Grant == "" {
		return nil, nil
	}
	now, err := store.Now(ctx)
	if err != nil || now.Sub(found[0].Updated.Time) > stored.TTL {
		return nil, err
	}
	return &handoffRequest{stored.spec(), found[0].Version}, nil
}
