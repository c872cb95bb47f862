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

// TaskClaim asks for tasks to work on.
type TaskClaim struct {
	Reaction string
	// Shard is that of the tasks; any where it is negative.
	Shard int32
	// Owner is the caller's name, which its reports present.
	Owner string
	// Lease is how long the caller may work on the tasks: 60 s for 0 or less, and from 1 ms to 24 h.
	Lease time.Duration
	// Max is 16 for 0 or less, and at most [MaxTaskClaim].
	Max int
	// Now is the time at which tasks are due, and from which the lease counts, in whole milliseconds;
	// zero for the store clock.
	Now time.Time
}

// MaxTaskClaim is how many tasks one call claims. A call that asks for more gets that many.
const MaxTaskClaim = 256

// defaultTaskClaim is how many tasks a call claims that names no number.
const defaultTaskClaim = 16

// ClaimTasks claims tasks that are due: PENDING ones whose next attempt is, and CLAIMED ones whose
// lease is over. No task is given to two callers. Those that are due for longest come first, new
// ones before all others; the answer is ordered by the next attempt and then by the creation. It has
// fewer tasks than asked for where they would not fit into one answer, and may have none while other
// callers claim them all.
//
// A claim whose answer is lost leaves its tasks CLAIMED until the lease is over. Where some claims
// fail and others do not, ClaimTasks returns the latter and logs the error.
//
// One read for the tasks, and one commit for those of each shard, up to 16 at a time. Where another
// server has claimed the same tasks, both are made again. Within one Tape, claims of one reaction and shard wait for each
// other, so that they never lose to each other.
//
// Errors: ErrRefused without an owner; runstore.ErrInvalid and runstore.ErrTooLarge for a lease, a
// text or a time out of the limits; runstore.ErrUnknownOutcome where tasks may be CLAIMED.
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
		// A caller that lost takes others than the first ones.
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
		if err := checkTime("now_ms", req.Now.Add(2*maxClaimTTL)); err != nil { // the end of the lease is stored
			return err
		}
	}
	var err error
	req.Lease, err = claimTTL("lease_ms", req.Lease)
	return err
}

// until returns the bound of the scan for due tasks: what is due within the millisecond is due.
func (req TaskClaim) until() time.Time {
	if req.Now.IsZero() {
		return time.Time{}
	}
	return req.Now.Add(time.Millisecond - runstore.TimePrecision)
}

// due reports whether a task that the scan found can be claimed.
func (req TaskClaim) due(k storedTask) bool {
	switch k.Status {
	case TaskPending:
		return true
	case TaskClaimed: // on the wire a lease is over behind the millisecond of its end
		return req.Now.IsZero() || millisOf(k.LeaseExpires) < req.Now.UnixMilli()
	default:
		return false
	}
}

// dueFor returns up to req.Max tasks that are due and fit into one answer, all of one block of that
// many. It chooses among as many blocks as given, and reads no further page once it has a task.
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
			if err != nil { // one task must not hide the others
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

// claimSize returns at least the bytes that a claimed task takes in an answer, and its record in a
// commit.
func (k storedTask) claimSize(owner string) int {
	return k.bytes + 6*len(owner) + 512 // as JSON a text may be six times as long
}

// claimAll claims tasks, those of each shard in one commit, and returns those that it claimed. The
// error is that of a commit that failed, one that is no conflict if there is one.
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

// claimShard claims tasks of one shard, all of them or none.
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
