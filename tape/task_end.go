package tape

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// maxBackoff is the longest pause between two attempts at a task, as in Tape's protocol.
const maxBackoff = time.Hour

// CompleteTask makes a task DONE that its owner has claimed. The lease may have expired, as long as
// no other caller has claimed the task. Two round trips.
//
// Errors: ErrNoSuchTask for a task that is not CLAIMED, or is claimed by another owner; ErrRefused
// without an owner.
func (t *Tape) CompleteTask(ctx context.Context, id, owner string) (Task, error) {
	if owner == "" {
		return Task{}, refuse(ErrRefused, "complete_task: owner is required")
	}
	return t.endAttempt(ctx, id, owner, func(k storedTask) (storedTask, error) {
		k.Status = TaskDone
		return k, nil
	})
}

// NackTask reports that an attempt at a task has failed. The task becomes PENDING again after a
// pause that its reaction defines and that doubles from attempt to attempt, up to one hour. It goes
// to the DLQ if the report is permanent, and after the last attempt that the reaction allows. Three
// round trips, two if the report is permanent.
//
// Errors: as for [Tape.CompleteTask]; runstore.ErrInvalid for an error text that is not UTF-8.
func (t *Tape) NackTask(ctx context.Context, id, owner, failure string, permanent bool) (Task, error) {
	if owner == "" {
		return Task{}, refuse(ErrRefused, "nack_task: owner is required")
	}
	if err := checkText(field{"error", failure}); err != nil {
		return Task{}, err
	}
	return t.endAttempt(ctx, id, owner, func(k storedTask) (storedTask, error) {
		k.LastError = clip(failure, MaxTaskError)
		if permanent {
			k.Status = TaskDLQ
			return k, nil
		}
		r, _, err := t.reaction(ctx, k.Reaction)
		if err != nil {
			return k, err
		}
		r = r.withDefaults() // the defaults if there is no such reaction
		if k.Attempts >= r.DLQAfter {
			k.Status = TaskDLQ
			return k, nil
		}
		k.Status, k.next = TaskPending, runstore.After(r.backoff(k.Attempts))
		return k, nil
	})
}

// backoff returns the pause after that many attempts.
func (r Reaction) backoff(attempts int32) time.Duration {
	pause := time.Duration(r.RetryBackoffMS) * time.Millisecond
	for ; attempts > 1 && pause < maxBackoff; attempts-- {
		pause *= 2
	}
	return min(pause, maxBackoff)
}

// endAttempt ends the owner's claim of a task by a transition to another status.
func (t *Tape) endAttempt(ctx context.Context, id, owner string, decide func(storedTask) (storedTask, error)) (Task, error) {
	run, key, ok := parseTaskID(id)
	if !ok {
		return Task{}, ErrNoSuchTask
	}
	k, err := tasks.change(ctx, t, run, runstore.Fence{}, key, func(k storedTask, found bool) (storedTask, *step, error) {
		if !found || k.Status != TaskClaimed || k.LeaseOwner != owner {
			return k, nil, ErrNoSuchTask
		}
		next, err := decide(k)
		if err != nil {
			return k, nil, err
		}
		next.LeaseOwner, next.LeaseExpires, next.leaseEnd = "", time.Time{}, runstore.When{}
		if next.Status == TaskPending {
			return next, &step{}, nil
		}
		s := &step{deletes: true}
		value, _ := next.encode()
		s.writes.Put(next.key(), value)
		return next, s, nil
	})
	if err != nil {
		return Task{}, err
	}
	return k.Task, nil
}
