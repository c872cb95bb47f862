package tape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

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
	for n := 0; ; n++ {
		// A caller that lost chooses among more tasks than the first ones.
		choice := 1
		if n > 0 {
			choice = 4
		}
		due, err := t.dueFor(ctx, req, choice)
		if err != nil || len(due) == 0 {
			return nil, err
		}
		claimed, err := t.claimAll(ctx, req, due)
		lost := errors.Is(err, runstore.ErrConflict) || errors.Is(err, ErrNoSuchRun)
		switch {
		case len(claimed) > 0:
			if err != nil && !lost {
				t.log.WarnContext(ctx, "a claim of tasks ends early", "reaction", clip(req.Reaction, 64), "claimed", len(claimed), "error", err)
			}
			slices.SortFunc(claimed, func(a, b Task) int {
				return cmp.Or(cmp.Compare(millisOf(a.NextAttempt), millisOf(b.NextAttempt)), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Source, b.Source))
			})
			return claimed, nil
		case !lost:
			return nil, err
		case n+1 == maxAttempts || restAfter(ctx, n, err) != nil:
			return nil, nil
		}
	}
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

// dueFor returns up to req.Max tasks that are due and fit into one answer. It picks one block of
// that many tasks at random among the given number of blocks, and reads no further page once it has
// a task.
func (t *Tape) dueFor(ctx context.Context, req TaskClaim, blocks int) ([]storedTask, error) {
	var due []storedTask
	q := runstore.IndexQuery{Index: dueTasks(req.Reaction, max(req.Shard, anyShard)), Until: req.until(), Limit: min(req.Max*blocks, runstore.MaxPage)}
	for len(due) == 0 {
		page, err := t.store.ScanIndex(ctx, q)
		if err != nil || len(page) == 0 {
			return nil, err
		}
		for _, entry := range page {
			k, err := taskOf(entry.Run, entry.Record)
			if err == nil && k.claimSize(req.Owner) > maxAnswer {
				err = errUnanswerable
			}
			if err != nil { // do not let one task hide the others
				t.log.WarnContext(ctx, "a claim leaves a task out", "run", entry.Run, "record", entry.Record.Key, "error", err)
				continue
			}
			if req.due(k) {
				due = append(due, k)
			}
		}
		q.After = page[len(page)-1].Cursor
	}
	if whole := len(due) / req.Max; whole > 1 {
		due = due[rand.N(whole)*req.Max:]
	}
	due = due[:min(len(due), req.Max)]
	size := 0
	for i, k := range due {
		if size += k.claimSize(req.Owner); size > maxAnswer {
			return due[:i], nil
		}
	}
	return due, nil
}

// claimSize returns an upper bound of the bytes that a claimed task takes in an answer, and its
// record in a commit.
func (k storedTask) claimSize(owner string) int {
	return k.bytes + 6*len(owner) + 512 // as JSON a text may be six times as long
}

// claimAll claims tasks, those of each shard in one commit, and returns the claimed ones. The error
// is that of a failed commit, preferably one that is not a conflict.
func (t *Tape) claimAll(ctx context.Context, req TaskClaim, due []storedTask) (claimed []Task, failed error) {
	var shards []runstore.RunID
	byShard := map[runstore.RunID][]storedTask{}
	for _, k := range due {
		if byShard[k.run] == nil {
			shards = append(shards, k.run)
		}
		byShard[k.run] = append(byShard[k.run], k)
	}
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		slots = make(chan struct{}, claimsInFlight)
	)
	for _, run := range shards {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			done, err := t.claimShard(ctx, req, run, byShard[run])
			mu.Lock()
			defer mu.Unlock()
			claimed = append(claimed, done...)
			if err != nil && (failed == nil || errors.Is(failed, runstore.ErrConflict)) {
				failed = err
			}
		})
	}
	wg.Wait()
	return claimed, failed
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
