package runstore

import "time"

// Run is a run's head: everything about it but its journal and records.
type Run struct {
	ID     RunID
	Status Status
	// Unlisted runs are not in [IndexRuns]; see [RunSpec.Unlisted].
	Unlisted bool
	// CreatedAt is the store clock at the run's creation.
	CreatedAt time.Time
	// RunnableAt is the time from which the run wants a driver; zero means never. See
	// [IndexRunnable].
	RunnableAt time.Time
	// LastSeq is the seq of the run's last event, 0 before the first.
	LastSeq Seq
	// Token is the token of the last grant, 0 before the first. It outlives release, expiry and
	// purge.
	Token Token
	// ExpiresAt is the expiry of the last grant as renewed, also after its release; zero before
	// the first.
	ExpiresAt time.Time
	// Holder is the holder of the current grant; zero when the lease is free. A holder whose lease
	// has expired is returned until a takeover.
	Holder Holder
	// Summary is the record under [SummaryKey]; its version is 0 when there is none.
	Summary Record
}

// Live reports whether a grant is current and unexpired at now, a time of the store clock.
func (r Run) Live(now time.Time) bool {
	return r.Holder.Token != 0 && now.Before(r.ExpiresAt)
}

// WaitingSince returns the time since which a run that wants a driver has had no live lease: the later
// of RunnableAt and ExpiresAt; zero if RunnableAt is zero. A lease that was released before its expiry
// counts until that expiry, so the result may be in the future although no lease is live.
func (r Run) WaitingSince() time.Time {
	if !r.RunnableAt.IsZero() && r.ExpiresAt.After(r.RunnableAt) {
		return r.ExpiresAt
	}
	return r.RunnableAt
}

// RunSpec describes a run to create.
type RunSpec struct {
	ID     RunID
	Status Status
	// Unlisted keeps the run out of [IndexRuns] until it is purged: for runs that support others,
	// such as values, sessions and registries. [IndexRunnable], the indexes of records and the
	// feed contain it like any other run.
	Unlisted bool
	// Runnable is when the run first wants a driver; the zero When means never.
	Runnable When
	// Lease, if set, is granted with the creation, in the same step.
	Lease *LeaseSpec
	// Writes are applied with the creation. Release and Purge are refused. Status and Runnable are
	// refused too, because they are fields of the spec.
	Writes Writes
}

// Created is the result of CreateRun.
type Created struct {
	// New reports whether this call created the run.
	New bool
	// Run is the run as this call left or found it.
	Run Run
	// Lease is the lease that was granted with the creation; zero when none was requested or the
	// run existed.
	Lease Lease
	// Committed is the result of the spec's writes, as [RunStore.Commit] returns it; zero unless
	// New. Its Time is that of the creation. Replayed is true when an earlier copy of the request
	// created the run.
	Committed Committed
	// Former is how the last grant of the purged run that had this id before ended; EndNone when
	// no lease was granted with the creation.
	Former GrantEnd
}
