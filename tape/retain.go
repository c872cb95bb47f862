package tape

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Ended returns when a run ended, and whether it may be purged once it is old enough: it is one of this
// package's runs and TERMINAL, FAILED or CANCELLED. A STUCK run waits for a person, and a run of another
// program is not Tape's to judge.
func Ended(head runstore.Run) (at time.Time, ok bool) {
	run, err := runOf(head)
	if err != nil || !slices.Contains([]RunStatus{RunTerminal, RunFailed, RunCancelled}, run.Status) || run.EndedAt.IsZero() {
		return time.Time{}, false
	}
	return run.EndedAt, true
}

// Settled reports whether a run with a record in the index may be purged: the index lists runs, and not
// work that is left to do. An effect that is not complete, an obligation that is open or stuck and a
// timer that was not fired keep their run.
func Settled(index runstore.IndexName) bool {
	return index == IndexEnded || strings.HasPrefix(string(index), string(IndexSession)+"/")
}

// TaskTrim is the input of [Tape.TrimTasks].
type TaskTrim struct {
	// Done is the time before which a DONE task was completed, Dead the one before which a task went to
	// the DLQ, for it to be deleted; the zero time deletes none.
	Done, Dead time.Time
	// DryRun only counts.
	DryRun bool
	// Pause is called before each read and each commit. Its error ends the call. Nil is no limit.
	Pause func(context.Context) error
}

// TasksTrimmed counts what [Tape.TrimTasks] did.
type TasksTrimmed struct {
	// Shards counts the shards of reactions, deregistered ones included.
	Shards int64
	// Done and Dead count the tasks that were deleted, or would be, and Kept the ended tasks that are
	// younger.
	Done, Dead, Kept int64
	// Unreadable counts records that are no task; they are left alone.
	Unreadable int64
	// Failed counts the shards that could not be trimmed to their end.
	Failed int64
}

// trimBatch is the number of tasks that one commit deletes, 100: each takes a guard and a write.
const trimBatch = 100

// TrimTasks deletes ended tasks that are older than a time, of all reactions, deregistered ones included.
// Open tasks stay, and so do reactions and their cursors: without its cursor, a reaction that is
// registered again would handle the feed from its start. A task's journal is that of its source run, so a
// deletion is no event.
//
// Each commit deletes up to 100 tasks of one shard, guarded by their versions. It may be interrupted and
// repeated, and may run several times at once. An error with one shard does not stop the others.
//
// It reads the ids of all runs of the store, and all ended tasks.
//
// Errors: runstore.ErrUnsupported if the store is no runstore.Mover; those of Pause; those of the store,
// joined.
func (t *Tape) TrimTasks(ctx context.Context, trim TaskTrim) (TasksTrimmed, error) {
	var done TasksTrimmed
	mover, err := t.mover()
	if err != nil {
		return done, err
	}
	if trim.Pause == nil {
		trim.Pause = func(context.Context) error { return nil }
	}
	var failed error
	for after := runstore.RunID(""); ; {
		if err := trim.Pause(ctx); err != nil {
			return done, errors.Join(err, failed)
		}
		page, err := mover.ScanRuns(ctx, after, runstore.MaxPage)
		if err != nil || len(page) == 0 {
			return done, errors.Join(err, failed)
		}
		for _, id := range page {
			after = id
			if _, _, shard := cutShard(id); !shard {
				continue
			}
			done.Shards++
			err := t.trimShard(ctx, id, trim, &done)
			if ctx.Err() != nil && err != nil {
				return done, errors.Join(err, failed)
			}
			if err != nil {
				if done.Failed++; failed == nil { // one of many is enough
					failed = err
				}
			}
		}
	}
}

// trimShard deletes the ended tasks of a shard that are old enough.
func (t *Tape) trimShard(ctx context.Context, run runstore.RunID, trim TaskTrim, done *TasksTrimmed) error {
	for _, kind := range []struct {
		prefix runstore.RecordKey
		before time.Time
		count  *int64
	}{{donePrefix, trim.Done, &done.Done}, {dlqPrefix, trim.Dead, &done.Dead}} {
		if kind.before.IsZero() {
			continue
		}
		for q := (runstore.RecordQuery{Prefix: kind.prefix, Limit: runstore.MaxPage}); ; {
			if err := trim.Pause(ctx); err != nil {
				return err
			}
			page, err := t.store.ReadRecords(ctx, run, q)
			if errors.Is(err, runstore.ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			if len(page) == 0 {
				break
			}
			q.After = page[len(page)-1].Key
			var old []runstore.Record
			for _, rec := range page {
				switch _, err := taskOf(run, rec); {
				case err != nil:
					done.Unreadable++
				case rec.Updated.Time.Before(kind.before):
					old = append(old, rec)
				default:
					done.Kept++
				}
			}
			for batch := range slices.Chunk(old, trimBatch) {
				if err := t.deleteTasks(ctx, run, batch, trim); err != nil {
					return err
				}
				*kind.count += int64(len(batch))
			}
		}
	}
	return nil
}

// deleteTasks deletes ended tasks of a shard. An ended task never changes, so a conflict means that
// another call has deleted some of them; they are then deleted one by one.
func (t *Tape) deleteTasks(ctx context.Context, run runstore.RunID, batch []runstore.Record, trim TaskTrim) error {
	if trim.DryRun {
		return nil
	}
	if err := trim.Pause(ctx); err != nil {
		return err
	}
	b := runstore.NewBatch(run, runstore.AtVersion(batch[0].Key, batch[0].Version))
	for i, rec := range batch {
		if i > 0 {
			b.Require(runstore.AtVersion(rec.Key, rec.Version))
		}
		b.Delete(rec.Key)
	}
	_, err := t.commit(ctx, b)
	switch {
	case errors.Is(err, ErrNoSuchRun): // purged meanwhile
		return nil
	case !errors.Is(err, runstore.ErrConflict):
		return err
	case len(batch) == 1:
		return nil
	}
	for i := range batch {
		if err := t.deleteTasks(ctx, run, batch[i:i+1], trim); err != nil {
			return err
		}
	}
	return nil
}
