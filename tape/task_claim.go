package tape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/tapestore/tapestore/internal/optimistic"
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
	// milliseconds; zero means the store clock.
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
	turn := t.claims[maphash.String(t.seed, fmt.Sprint(req.Shard, req.Reaction))%retryTurns]
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return nil, &runstore.OpError{Op: "claim tasks", Err: runstore.ErrUnavailable, Cause: context.Cause(ctx)}
	}
	claimed, err := optimistic.Claims[storedTask, Task]{
		Store: t.store,
		Query: runstore.IndexQuery{Index: dueTasks(req.Reaction, max(req.Shard, anyShard)), Until: req.until()},
		Max:   req.Max,
		Decode: func(entry runstore.IndexEntry) (storedTask, bool) {
			k, err := taskOf(entry.Run, entry.Record)
			if err == nil && k.claimSize(req.Owner) > maxAnswer {
				err = errUnanswerable
			}
			if err != nil { // do not let one task hide the others
				t.log.WarnContext(ctx, "a claim leaves a task out", "run", entry.Run, "record", entry.Record.Key, "error", err)
				return k, false
			}
			return k, req.due(k)
		},
		Size:    func(k storedTask) int { return k.claimSize(req.Owner) },
		MaxSize: maxAnswer,
		Commit: func(ctx context.Context, run runstore.RunID, due []storedTask) ([]Task, error) {
			return t.claimShard(ctx, req, run, due)
		},
		Lost: func(err error) bool { return errors.Is(err, runstore.ErrConflict) || errors.Is(err, ErrNoSuchRun) },
	}.Claim(ctx)
	if len(claimed) == 0 {
		return nil, err
	}
	if err != nil {
		t.log.WarnContext(ctx, "a claim of tasks ends early", "reaction", clip(req.Reaction, 64), "claimed", len(claimed), "error", err)
	}
	slices.SortFunc(claimed, func(a, b Task) int {
		return cmp.Or(cmp.Compare(millisOf(a.NextAttempt), millisOf(b.NextAttempt)), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Source, b.Source))
	})
	return claimed, nil
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
		if err := checkTime("now_ms", req.Now.Add(2*maxClaimTTL)); err != nil { // the stored end of the lease must be valid, too
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

// due reports whether a task of the scan can be claimed.
func (req TaskClaim) due(k storedTask) bool {
	switch k.Status {
	case TaskPending:
		return true
	case TaskClaimed: // on the wire a lease ends after the millisecond of its expiry
		return req.Now.IsZero() || millisOf(k.LeaseExpires) < req.Now.UnixMilli()
	default:
		return false
	}
}

// claimSize returns an upper bound of the bytes that a claimed task takes in an answer, and its
// record in a commit.
func (k storedTask) claimSize(owner string) int {
	return k.bytes + 6*len(owner) + 512 // as JSON a text may be six times as long
}

// claimShard claims tasks of one shard: all of them or none.
func (t *Tape) claimShard(ctx context.Context, req TaskClaim, run runstore.RunID, due []storedTask) ([]Task, error) {
	end := runstore.After(req.Lease)
	if !req.Now.IsZero() {
		end = runstore.At(req.Now.Add(req.Lease))
	}
	var guards []runstore.Guard
	var w runstore.Writes
	for i := range due {
		k := &due[i]
		k.Status, k.LeaseOwner, k.leaseEnd = TaskClaimed, req.Owner, end
		k.Attempts++
		value, places := k.encode()
		guards = append(guards, runstore.AtVersion(k.key(), k.version))
		w.Records = append(w.Records, runstore.RecordWrite{Key: k.key(), Value: value, Index: places, Reserve: k.later()})
	}
	b := runstore.NewBatch(run, guards[0], guards[1:]...)
	b.Writes = w
	done, err := t.commit(ctx, b)
	if err != nil {
		return nil, err
	}
	claimed := make([]Task, len(due))
	for i, k := range due {
		k.LeaseExpires = end.Resolve(done.Time)
		claimed[i] = k.Task
	}
	return claimed, nil
}
