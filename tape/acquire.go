package tape

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
)

// grantKey is the key of the record with the id of the run's last grant, which is written with the
// grant. No reply contains it. A heartbeat without a fence reads it to build the fence to renew, on
// any server of the store.
const grantKey runstore.RecordKey = "grant"

// storedGrant is the stored form of the grant's record.
type storedGrant struct {
	ID string `json:"id"`
}

// Takeover selects which live leases a request for a run's lease may end.
type Takeover int

const (
	// TakeAny ends the lease of any holder.
	TakeAny Takeover = iota
	// TakeOwn ends a lease that was granted to the same owner name. Any other live lease yields
	// ErrLeaseHeld.
	TakeOwn
	// TakeNone ends no live lease. A request without a fence is not treated as a heartbeat either.
	TakeNone
)

// acquisition describes how to take a lease.
type acquisition struct {
	// why is recorded, with the owner, as the reason of a preemption.
	why      string
	takeover Takeover
	// revives makes a run of any status RUNNING. Without it, a run that is COMPENSATING stays so.
	revives bool
	// last takes the lease only while the grant that was read is the run's last one.
	last bool
}

// acquire takes the lease of a run, live or not, and makes the run RUNNING. head is the run as it
// was read; its status is a guard, so a run that ends meanwhile is not revived. The grant is also
// guarded by the record of the run's compaction, which is usually absent; acquire finishes a
// compaction in progress first.
func (t *Tape) acquire(ctx context.Context, head runstore.Run, spec runstore.LeaseSpec, how acquisition) (runstore.Granted, error) {
	req := runstore.AcquireRequest{Run: head.ID}
	switch {
	case how.takeover == TakeAny:
		req.Preempt = clip(how.why+string(spec.Owner), runstore.MaxOwner)
	case how.takeover == TakeOwn && isOwn(head, spec.Owner): // ends the owner's earlier lease, and no later one
		req.Preempt = clip(how.why+string(spec.Owner), runstore.MaxOwner)
		how.last = true
	}
	if how.last {
		req.Guards = []runstore.Guard{runstore.AtToken(head.Token)}
	}
	if how.revives || RunStatus(head.Status) != RunCompensating {
		req.Writes = RunRunning.writes()
	}
	req.Guards = append(req.Guards, runstore.InStatus(head.Status))
	compacted := runstore.Version(0)
	for {
		spec.Grant = runstore.NewGrantID()
		attempt := req
		attempt.LeaseSpec = spec
		attempt.Guards = append([]runstore.Guard{runstore.AtVersion(compactionKey, compacted)}, req.Guards...)
		attempt.Writes.Put(grantKey, encode(storedGrant{ID: string(spec.Grant)}))
		granted, err := t.acquireLease(ctx, attempt)
		if !meetsCompaction(err) || compacted > 0 { // a run is compacted only once
			return granted, noSuchRun(err)
		}
		if compacted, err = t.awaitCompaction(ctx, head.ID); err != nil {
			return runstore.Granted{}, err
		}
	}
}

// isOwn reports whether a run is held by an owner of that name. Unnamed drivers do not match each
// other.
func isOwn(head runstore.Run, owner runstore.Owner) bool {
	return head.Holder.Owner == owner && owner != unnamed
}

// heartbeatFence returns the fence of the run's lease if the owner holds it and it is live (with
// expired, also if it has expired), else the zero fence. If the owner's name matches the holder, it
// costs two round trips.
func (t *Tape) heartbeatFence(ctx context.Context, head runstore.Run, owner runstore.Owner, expired bool) (runstore.Fence, error) {
	if !isOwn(head, owner) {
		return runstore.Fence{}, nil
	}
	now, err := t.store.Now(ctx)
	if err != nil || !expired && !head.Holder.ExpiresAt.After(now) {
		return runstore.Fence{}, err
	}
	rec, found, err := t.readRecord(ctx, head.ID, grantKey)
	if err != nil || !found || rec.Updated.Token != head.Holder.Token {
		return runstore.Fence{}, err // the grant was not made by this package, or a later one exists
	}
	var stored storedGrant
	if err := decode("the grant of a run", rec.Value, &stored); err != nil {
		return runstore.Fence{}, err
	}
	return runstore.Lease{Run: head.ID, Owner: owner, Token: head.Holder.Token, Grant: runstore.GrantID(stored.ID)}.Fence(), nil
}
