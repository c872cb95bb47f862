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
	// TTL is the requested duration. A holder trusts its lease for TTL from the moment that its
	// request left, on its own monotonic clock, never for longer.
	TTL time.Duration
	// ExpiresAt is the expiry on the store clock. It must not be compared with another clock.
	ExpiresAt time.Time
	// Strict leases are over at their expiry for their holder too (I3).
	Strict bool
}

// Fence returns the fence that a write under this lease presents.
func (l Lease) Fence() Fence {
	return Fence{run: l.Run, owner: l.Owner, token: l.Token, grant: l.Grant}
}

// Fence is what a write presents: run, owner, token and the grant's unique id. Only [Lease.Fence]
// returns one. The zero Fence is no fence.
type Fence struct {
	run   RunID
	owner Owner
	token Token
	grant GrantID
}

// Run returns the run that the fence belongs to.
func (f Fence) Run() RunID { return f.run }

// Owner returns the name of the lease's owner.
func (f Fence) Owner() Owner { return f.owner }

// Token returns the fencing token.
func (f Fence) Token() Token { return f.token }

// Grant returns the grant's unique id.
func (f Fence) Grant() GrantID { return f.grant }

// IsZero reports whether f is no fence.
func (f Fence) IsZero() bool { return f == Fence{} }

// Holder describes a run's current grant. It contains no grant id, so reading a run gives no
// caller a fence. All times are on the store clock.
type Holder struct {
	Owner     Owner
	Reactor   Reactor
	Token     Token
	ExpiresAt time.Time
	Strict    bool
	// TTL is the duration that the last grant or renewal requested.
	TTL time.Duration
	// GrantedAt is the time of the grant. RenewedAt is the time of its last renewal; before the
	// first renewal it is the time of the grant.
	GrantedAt, RenewedAt time.Time
	// MaxStall is the grant's [LeaseSpec.MaxStall], 0 for none. ProgressedAt is the time of the
	// last commit under the grant that appended an event or changed a record (I13); before the
	// first such commit it is the time of the grant.
	MaxStall     time.Duration
	ProgressedAt time.Time
	// Former is how the grant before this one ended.
	Former GrantEnd
	// Preempted describes the live grant that this grant preempted; it is zero unless Former is
	// EndPreempted.
	Preempted Preempted
}

// Term is the time of one grant of a run's lease, from the grant to its end. All times are on the
// store clock.
type Term struct {
	// Token is the grant's token, Owner and Reactor are its holder.
	Token   Token
	Owner   Owner
	Reactor Reactor
	// GrantedAt is the time of the grant, zero if it is not known.
	GrantedAt time.Time
	// ExpiresAt is the expiry as last renewed.
	ExpiresAt time.Time
	// EndedAt is the time from which the fence of the grant was refused because the grant had
	// ended: that of the release or the revocation, or else that of the next grant, which may be
	// long after ExpiresAt. A strict lease was over for its holder at ExpiresAt already. It is zero
	// while the grant is current, and if it is not known.
	EndedAt time.Time
	// End is how the grant ended; EndNone while it is current, expired or not.
	End GrantEnd
	// Reason is the reason that the next grant gave for the preemption; "" unless End is
	// EndPreempted. The owner of the next term preempted it.
	Reason string
}

// GrantEnd is how a grant ended. A driver that takes a run over has to recover unfinished work of
// its predecessor, unless the predecessor released the lease or handed it off.
type GrantEnd int

// The ends of a grant. The numbers are stored.
const (
	// EndNone: there was no grant.
	EndNone GrantEnd = iota
	// EndReleased: the holder released it, under its fence.
	EndReleased
	// EndHandedOff: the holder consented to the next grant; see [AcquireRequest].
	EndHandedOff
	// EndExpired: it had expired, and another grant took over.
	EndExpired
	// EndPreempted: it was live, and another grant preempted it.
	EndPreempted
	// EndRevoked: it was ended without its fence and without another grant: by a batch with
	// Release and without the fence, by a purge or by a new epoch.
	EndRevoked
)

// String returns the end in words.
func (e GrantEnd) String() string {
	switch e {
	case EndReleased:
		return "released"
	case EndHandedOff:
		return "handed off"
	case EndExpired:
		return "expired"
	case EndPreempted:
		return "preempted"
	case EndRevoked:
		return "revoked"
	default:
		return "none"
	}
}

// Preempted names the holder whose live lease a grant preempted, and the reason.
type Preempted struct {
	From   Owner
	Reason string
}

// LeaseSpec describes the requested lease.
type LeaseSpec struct {
	Owner   Owner
	Reactor Reactor
	// TTL is from [MinTTL] to [MaxTTL].
	TTL time.Duration
	// Strict requests a lease that its holder loses at expiry, takeover or not. [StrictCommitter]
	// describes a write that is under way at the expiry.
	Strict bool
	// Grant is the id of the requested grant, from [NewGrantID]; [GrantID] documents what a repeat
	// of the request returns. If it is empty, the store chooses an id, and the caller cannot
	// repeat the request after a lost reply.
	Grant GrantID
	// MaxStall, if not 0, is how long the grant may be renewed without progress (I13): from
	// [MinTTL] to [MaxMaxStall]. When the last progress is longer ago, a renewal without writes is
	// refused with [ErrNoProgress], and the lease ends at its expiry.
	MaxStall time.Duration
}

// AcquireRequest asks for a run's lease.
type AcquireRequest struct {
	Run RunID
	LeaseSpec
	// Preempt, if not empty, is the reason for ending a live grant under a new token. It is stored
	// with the grant and returned by GetRun.
	Preempt string
	// Guards must hold too. Unguarded is refused here.
	//
	// A [Fence] among them is the consent of the current holder: its grant ends and the new grant
	// begins in one step, even while the lease is live, and Preempt is neither needed nor allowed.
	// This hands a lease off without a gap: the holder acquires the lease under the GrantID of its
	// successor, and the successor's own request with that id then returns the lease.
	//
	// [AtToken] makes the request a compare-and-swap: a request that preempts ends the grant of
	// that token or none.
	Guards []Guard
	// Writes are applied with the grant and under it: events carry the new token. Release and
	// Purge are refused.
	Writes Writes
}

// Granted is the result of AcquireLease.
type Granted struct {
	Lease
	// Ended is true when an earlier copy of the request made the grant, and the grant has ended
	// since: the request's writes were applied, and the fence is refused.
	Ended bool
	// Committed is the result of the request's writes, as [RunStore.Commit] returns it. Its Time is
	// that of the grant. Replayed is true when an earlier copy of the request made the grant.
	Committed Committed
	// Former is how the grant before this one ended.
	Former GrantEnd
}

// RenewRequest extends a lease.
type RenewRequest struct {
	Fence Fence
	// TTL is from [MinTTL] to [MaxTTL], counted from now on the store clock.
	TTL time.Duration
	// Writes are applied with the renewal and under the grant, in one atomic step, so that a
	// heartbeat can carry a checkpoint. Release and Purge are refused.
	Writes Writes
	// ID makes a renewal with writes idempotent, as a batch's id does; renewals and batches share
	// one namespace. A repeat returns the first result, even when the grant has ended since.
	// Without writes, ID is refused: a plain renewal can be repeated as it is.
	ID BatchID
}

// Renewed is the result of RenewLease.
type Renewed struct {
	Lease
	// Committed is the result of the request's writes, as [RunStore.Commit] returns it. It is zero
	// for a renewal without writes.
	Committed Committed
}

// ReleaseRequest ends a lease.
type ReleaseRequest struct {
	Fence Fence
	// Guards must hold too. A second fence or Unguarded is refused here.
	Guards []Guard
	// Writes are applied with the release and under the grant that it ends. Purge is refused.
	Writes Writes
}
