package tape

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
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
	return t.endAttempt(ctx, id, owner, func(k *storedTask, p delivery.Receipt) (bool, error) {
		return k.apply(taskRules.Complete(k.delivery(), p)), nil
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
	return t.endAttempt(ctx, id, owner, func(k *storedTask, p delivery.Receipt) (bool, error) {
		k.LastError = clip(failure, MaxTaskError)
		dead, result := taskRules.Fail(k.delivery(), p, runstore.When{})
		if permanent || result != delivery.Applied {
			return k.apply(dead, result), nil
		}
		r, _, err := t.reaction(ctx, k.Reaction)
		r = r.withDefaults() // the defaults if there is no such reaction
		rules := taskRules
		rules.MaxAttempts = int(r.DLQAfter)
		return k.apply(rules.Fail(k.delivery(), p, runstore.After(r.backoff(k.Attempts)))), err
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

// endAttempt ends the owner's claim of a task by a transition, which may also change other fields.
func (t *Tape) endAttempt(ctx context.Context, id, owner string,
	transition func(*storedTask, delivery.Receipt) (applied bool, err error)) (Task, error) {
	run, key, ok := parseTaskID(id)
	if !ok {
		return Task{}, ErrNoSuchTask
	}
	k, err := tasks.change(ctx, t, run, runstore.Fence{}, key, func(k storedTask, _ bool) (storedTask, *step, error) {
		applied, err := transition(&k, delivery.Receipt{Holder: owner})
		switch {
		case err != nil:
			return k, nil, err
		case !applied: // an absent task is closed
			return k, nil, ErrNoSuchTask
		case k.Status == TaskPending:
			return k, &step{}, nil
		}
		s := &step{deletes: true}
		s.writes.Records = append(s.writes.Records, tasks.write(k.key(), k))
		return k, s, nil
	})
	if err != nil {
		return Task{}, err
	}
	return k.Task, nil
}
