package runstore

import "time"

// Lease is temporary authority to extend a run.
type Lease struct {
	Run     RunID
	Owner   Owner
	Reactor Reactor
	// Token is the fencing token of this grant.
	Token Token
	// Grant is the grant's unique id.
	Grant GrantID
	// TTL is what was asked for. A holder trusts its lease for TTL from the
	// moment its request left, on its own monotonic clock, never for longer.
	TTL time.Duration
	// ExpiresAt is the expiry on the store clock. Don't compare it with another
	// clock.
	ExpiresAt time.Time
	// Strict leases are over at their expiry for their holder too (I3).
	Strict bool
}

// Fence returns what a write must present to be made under this lease.
func (l Lease) Fence() Fence {
	return Fence{run: l.Run, owner: l.Owner, token: l.Token, grant: l.Grant}
}

// Fence is what a write presents: run, owner, token and the grant's unique id.
// It can only be had from a [Lease]. The zero Fence is no fence.
type Fence struct {
	run   RunID
	owner Owner
	token Token
	grant GrantID
}

// Run returns the run that the fence is for.
func (f Fence) Run() RunID { return f.run }

// Owner returns the name of the lease's owner.
func (f Fence) Owner() Owner { return f.owner }

// Token returns the fencing token.
func (f Fence) Token() Token { return f.token }

// Grant returns the grant's unique id.
func (f Fence) Grant() GrantID { return f.grant }

// IsZero reports whether f is no fence.
func (f Fence) IsZero() bool { return f == Fence{} }

// Holder names who holds a run's lease. It holds no grant id, so reading a run
// gives nobody a fence.
type Holder struct {
	Owner     Owner
	Reactor   Reactor
	Token     Token
	ExpiresAt time.Time
	Strict    bool
	// Preempted tells of the live grant that this one ended, if it did.
	Preempted Preempted
}

// Preempted tells that a grant took a live lease away, and why.
type Preempted struct {
	From   Owner
	Reason string
}

// LeaseSpec says which lease is wanted.
type LeaseSpec struct {
	Owner   Owner
	Reactor Reactor
	// TTL is from [MinTTL] to [MaxTTL].
	TTL time.Duration
	// Strict asks for a lease that its holder loses at expiry, takeover or not. For a
	// write that is under way at the expiry see [StrictCommitter].
	Strict bool
	// Grant is the id of the wanted grant, from [NewGrantID]; see [GrantID] for
	// what a repeat of the request returns. Empty means that the store chooses an
	// id; then the caller cannot repeat the request after a lost reply.
	Grant GrantID
}

// AcquireRequest asks for a run's lease.
type AcquireRequest struct {
	Run RunID
	LeaseSpec
	// Preempt, if not empty, is the reason for ending a live grant under a new
	// token. It is stored with the grant and returned by GetRun.
	Preempt string
	// Guards must hold too. Unguarded is refused here.
	//
	// A [Fence] among them is the consent of the current holder: its grant ends and the
	// new one begins in one step, also while the lease is live, and no Preempt is needed
	// or allowed. So a lease is handed off without a gap: the holder acquires it under the
	// GrantID of its successor, whose own request with that id then returns the lease.
	//
	// [AtToken] makes the request a compare-and-swap: a request that preempts ends the
	// grant of that token or none.
	Guards []Guard
	// Writes are applied with the grant and under it: events carry the new
	// token. Release and Purge are refused.
	Writes Writes
}

// RenewRequest extends a lease.
type RenewRequest struct {
	Fence Fence
	// TTL is from [MinTTL] to [MaxTTL], counted from now on the store clock.
	TTL time.Duration
}

// ReleaseRequest ends a lease.
type ReleaseRequest struct {
	Fence Fence
	// Guards must hold too. A second fence or Unguarded is refused here.
	Guards []Guard
	// Writes are applied with the release and under the grant that it ends.
	// Purge is refused.
	Writes Writes
}
