package tape

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
)

// grantKey is the record with the id of the run's last grant, which is written with the grant.
// Nothing answers it to a client. A heartbeat that presents no fence finds in it the fence to renew,
// on every server of the store.
const grantKey runstore.RecordKey = "grant"

// storedGrant is the stored form of the grant's record.
type storedGrant struct {
	ID string `json:"id"`
}

// Takeover says which live lease a request for a run's lease may end.
type Takeover int

const (
	// TakeAny: that of any holder.
	TakeAny Takeover = iota
	// TakeOwn: one that was granted to the same owner's name. Another one is ErrLeaseHeld.
	TakeOwn
	// TakeNone: none, and a request without a fence is no heartbeat either.
	TakeNone
)

// acquisition says how a lease is taken.
type acquisition struct {
	// why goes, with the owner, into the preempted holder's run.
	why      string
	takeover Takeover
	// revives makes a run of any status RUNNING. Otherwise one that is COMPENSATING
	// stays so.
	revives bool
}

// acquire takes the lease of a run that was found as head, live or not, and makes the run RUNNING.
// The status that was looked at is a guard: a run that ends meanwhile is not revived. It finishes a
// compaction of the run first: the grant is guarded by the compaction's record, which nearly always
// is absent.
func (t *Tape) acquire(ctx context.Context, head runstore.Run, spec runstore.LeaseSpec, how acquisition) (runstore.Granted, error) {
	req := runstore.AcquireRequest{Run: head.ID}
	switch {
	case how.takeover == TakeAny:
		req.Preempt = clip(how.why+string(spec.Owner), runstore.MaxOwner)
	case how.takeover == TakeOwn && isOwn(head, spec.Owner): // its own former lease, and no later one
		req.Preempt = clip(how.why+string(spec.Owner), runstore.MaxOwner)
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
		if !meetsCompaction(err) || compacted > 0 { // a run is compacted once
			return granted, noSuchRun(err)
		}
		if compacted, err = t.awaitCompaction(ctx, head.ID); err != nil {
			return runstore.Granted{}, err
		}
	}
}

// isOwn reports whether a run is held by an owner of that name. Drivers without a name are not
// taken for one another.
func isOwn(head runstore.Run, owner runstore.Owner) bool {
	return head.Holder.Owner == owner && owner != unnamed
}

// heartbeatFence returns the fence of the run's lease if the owner holds it and it is live, or if an
// expired one will do, and else the zero fence. Two round trips if the owner's name is that of the
// holder.
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
		return runstore.Fence{}, err // the grant was made by other means, or is another by now
	}
	var stored storedGrant
	if err := decode("the grant of a run", rec.Value, &stored); err != nil {
		return runstore.Fence{}, err
	}
	return runstore.Lease{Run: head.ID, Owner: owner, Token: head.Holder.Token, Grant: runstore.GrantID(stored.ID)}.Fence(), nil
}
