package tape

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

// TaskClaim is the input of ClaimTasks.
type TaskClaim struct {
	Reaction string
	// Shard selects the tasks of one shard; negative selects all.
	Shard int32
	// Owner is the caller's name, which its reports must present.
	Owner string
	// Lease is how long the caller may work on the tasks: from 1 ms to 24 h; 0 or less means 60 s.
	Lease time.Duration
	// Max is the maximal number of tasks, up to [MaxTaskClaim]; 0 or less means 16.
	Max int
	// Now is the time by which tasks are due and from which the lease counts, in whole
	// milliseconds; zero means the store clock. Workers leave it at zero: after a time in the past the
	// lease ends early, or has ended, and another caller gets the task while the first one is at work.
	Now time.Time
}

// MaxTaskClaim is the largest number of tasks that one call claims; a larger request is reduced to
// it.
const MaxTaskClaim = 256

// defaultTaskClaim is the number of tasks that a call claims if the request names none.
const defaultTaskClaim = 16

// ClaimTasks claims tasks that are due: PENDING tasks whose next attempt is due, and CLAIMED tasks
// whose lease has ended. No task is given to two callers. The longest due come first, and new tasks
// before all others; the answer is ordered by the next attempt and then by the creation. It has
// fewer tasks than requested if they would not fit into one answer, and may be empty while other
// callers claim them all.
//
// If the answer to a claim is lost, its tasks stay CLAIMED until the lease ends. If some claims
// fail and others do not, ClaimTasks returns the latter and logs the error.
//
// One read for the tasks, and one commit for those of each shard, up to 16 at a time. If another
// server has claimed the same tasks, both are repeated. Within one Tape, claims of the same
// reaction and shard wait for each other, so that they never conflict.
//
// Errors: ErrRefused without an owner; runstore.ErrInvalid and runstore.ErrTooLarge for a lease, a
// text or a time out of the limits; runstore.ErrUnknownOutcome if tasks may be CLAIMED.
func (t *Tape) ClaimTasks(ctx context.Context, req TaskClaim) ([]Task, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	if req.Max <= 0 {
		req.Max = defaultTaskClaim
	}
	req.Max = min(req.Max, MaxTaskClaim)
	claimed, err := delivery.Claims[storedTask, Task]{
		Store: t.store,
		Query: runstore.IndexQuery{Index: dueTasks(req.Reaction, max(req.Shard, anyShard)), Until: req.until()},
		Max:   req.Max, Rules: taskRules, Holder: req.Owner, Ends: req.end(),
		Turns: &t.claims,
		Log:   t.log.With("reaction", clip(req.Reaction, 64)),
		Decode: func(entry runstore.IndexEntry) (storedTask, delivery.State, error) {
			k, err := taskOf(entry.Run, entry.Record)
			if err == nil && k.claimSize(req.Owner) > maxAnswer {
				err = errUnanswerable
			}
			s := k.delivery()
			if !req.Now.IsZero() { // on the wire a lease ends after the millisecond of its expiry
				s.Ends = runstore.At(k.LeaseExpires.Truncate(time.Millisecond).Add(time.Millisecond))
			}
			return k, s, err
		},
		Size:    func(k storedTask) int { return k.claimSize(req.Owner) },
		MaxSize: maxAnswer,
		Write: func(w *runstore.Writes, k storedTask, next delivery.State) {
			k.apply(next, delivery.Applied)
			w.Records = append(w.Records, tasks.write(k.key(), k))
		},
		Claimed: func(k storedTask, next delivery.State, _ runstore.Version, ends time.Time) Task {
			k.apply(next, delivery.Applied)
			k.LeaseExpires = ends
			return k.Task
		},
	}.Claim(ctx)
	slices.SortFunc(claimed, func(a, b Task) int {
		return cmp.Or(cmp.Compare(millisOf(a.NextAttempt), millisOf(b.NextAttempt)), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Source, b.Source))
	})
	return claimed, err
}

// millisOf returns a time in milliseconds since 1970; 0 for the zero time.
func millisOf(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixMilli()
}

func (req *TaskClaim) check() error {
	if req.Owner == "" {
		return refuse(ErrRefused, "claim_tasks: owner is required")
	}
	if err := checkReactionID(req.Reaction); err != nil {
		return err
	}
	if err := checkText(field{"owner", req.Owner}); err != nil {
		return err
	}
	if err := checkLength("owner", req.Owner, MaxClaimer); err != nil {
		return err
	}
	if !req.Now.IsZero() {
		req.Now = req.Now.Truncate(time.Millisecond)
		if err := checkTime("now_ms", req.Now.Add(2*delivery.MaxTTL)); err != nil { // the stored end of the lease must be valid, too
			return err
		}
	}
	var err error
	req.Lease, err = claimTTL("lease_ms", req.Lease)
	return err
}

// until returns the bound of the scan for due tasks, including tasks due within the current
// millisecond.
func (req TaskClaim) until() time.Time {
	if req.Now.IsZero() {
		return time.Time{}
	}
	return req.Now.Add(time.Millisecond - runstore.TimePrecision)
}

// end returns the end of the lease.
func (req TaskClaim) end() runstore.When {
	if req.Now.IsZero() {
		return runstore.After(req.Lease)
	}
	return runstore.At(req.Now.Add(req.Lease))
}

// claimSize returns an upper bound of the bytes that a claimed task takes in an answer, and its
// record in a commit.
func (k storedTask) claimSize(owner string) int {
	return k.bytes + 6*len(owner) + 512 // as JSON a text may be six times as long
}
