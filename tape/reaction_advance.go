package tape

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// Advance moves the cursor of a shard from at to the position to, and handles the matches in
// between in the same commit:
//
//   - If r.Handler makes tasks, it creates a task for each match. If r.DebounceMS allows, it
//     updates a recent PENDING task of the same subject instead.
//   - If r.Handler is HandlerAgent, the commit is a write-ahead intent: it names the runs to begin.
//     The caller begins them ([Tape.BeginReactionRun]) before the next call; so does any later
//     holder of the shard that finds them in the cursor.
//
// f is the fence of the shard's run. The matches are entries of the shard in feed order, up to the
// position to; matches up to at.Position were handled before and are ignored.
//
// Each entry is handled once: the commit is guarded by the fence and by the version of the cursor.
// If the reply is lost, the commit is repeated under its batch id. After runstore.ErrUnknownOutcome
// the caller continues from [Tape.ShardCursor].
//
// An entry is handled according to the definition r of the commit that passes it: by a task or by a
// run, and by a run of one app. A change of the reaction's handler or app takes effect after the
// cursor. Runs that the cursor names are still begun, under the earlier app, and have no task.
//
// Matches that do not fit into one commit are left for the next: the returned cursor is then at the
// last match that fits, and the caller calls Advance again with it. While at has pending runs that
// the caller has not begun, a call only removes the begun ones from the record.
//
//	for c.Position < to || !c.Settled() {
//		for c.PendingRuns() > 0 {
//			if c, err = t.BeginReactionRun(ctx, r.ID, c); err != nil { … }
//		}
//		if c, err = t.Advance(ctx, f, r, c, matches, to); err != nil { … }
//	}
//
// An entry whose subject and payload exceed [MaxTask] makes no task; it is logged. Entries that
// Tape writes are smaller.
//
// An entry that has an open task gets no second one: a cursor that [Tape.MoveCursors] has moved back passes
// such entries. An entry whose task has ended, or whose match was merged into a debounced task, gets a new one.
//
// One round trip. If matches are debounced, one more for the store clock, and one for each of their
// subjects, up to 16 at a time. If entries have open tasks, two more for each commit that is refused.
//
// Errors: runstore.ErrFenced and ErrNoSuchRun; runstore.ErrConflict, whose Key is that of the
// cursor, if the cursor is not at its version, or that of an open task of another entry with the same
// position, which an imported shard may have: it is in the way until a worker has ended it;
// runstore.ErrTooLarge, field "records", if the shard
// has as many open tasks as the store allows in one run: the caller waits until workers have ended
// some; runstore.ErrInvalid for a fence, a position or a match that is not the shard's.
func (t *Tape) Advance(ctx context.Context, f runstore.Fence, r Reaction, at Cursor, matches []Entry, to runstore.Position) (Cursor, error) {
	r = r.withDefaults()
	shard, ok := r.shardOf(f.Run())
	if !ok {
		return at, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "fence", Problem: "is for no shard of the reaction"}
	}
	if err := checkMatches(r, shard, at, matches, to); err != nil {
		return at, err
	}
	if rest := at.rest(); rest != nil {
		if at.begun == 0 {
			return at, nil
		}
		return t.moveCursor(ctx, f, at, at.Position, rest)
	}
	if to == at.Position && at.Settled() {
		return at, nil
	}
	if r.Handler == HandlerAgent {
		decided, next, err := planRuns(r, at, matches, to)
		if err != nil {
			return at, err
		}
		return t.moveCursor(ctx, f, at, next, decided)
	}
	wanted := t.tasksFor(ctx, f.Run(), r, shard, at, matches)
	if len(wanted) > maxTasks {
		wanted, to = wanted[:maxTasks], wanted[maxTasks-1].Source
	}
	for n := 0; ; {
		b, next, err := t.planAdvance(ctx, f, r, at, wanted, to)
		if err != nil {
			return at, err
		}
		done, err := t.commit(ctx, b)
		if err == nil {
			return Cursor{Position: next, Version: done.Versions[0]}, nil
		}
		var conflict *runstore.ConflictError
		if !errors.As(err, &conflict) || !strings.HasPrefix(string(conflict.Key), openPrefix) {
			return at, err
		}
		if conflict.Want == 0 { // an entry has a task: the cursor was moved back
			rest, inTheWay, readErr := t.withoutOpen(ctx, f.Run(), wanted, b, conflict.Key)
			switch {
			case readErr != nil:
				return at, readErr
			case len(rest) < len(wanted):
				wanted = rest
				continue
			case inTheWay:
				return at, err
			}
		}
		// A task was ended meanwhile. Or one that was to be updated has been claimed: its subject gets a new one.
		if n++; n == optimistic.MaxAttempts {
			return at, err
		}
		if err := optimistic.Rest(ctx, n-1, err); err != nil {
			return at, err
		}
	}
}

// withoutOpen returns the wanted tasks without those that a refused commit was to write although their
// entries have open tasks, and whether there is a task with the key of the conflict. One read.
func (t *Tape) withoutOpen(ctx context.Context, run runstore.RunID, wanted []storedTask, refused runstore.Batch, key runstore.RecordKey) (rest []storedTask, inTheWay bool, err error) {
	var keys []runstore.RecordKey
	for _, w := range refused.Records {
		if w.Key != cursorKey {
			keys = append(keys, w.Key)
		}
	}
	records, err := t.store.ReadRecords(ctx, run, runstore.RecordQuery{Keys: keys})
	if err != nil {
		return nil, false, err
	}
	open := map[runstore.RecordKey]storedTask{}
	for _, rec := range records {
		inTheWay = inTheWay || rec.Key == key
		if k, err := taskOf(run, rec); err == nil { // one that cannot be read may be of any entry
			open[rec.Key] = k
		}
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(k storedTask) bool {
		is, found := open[k.key()]
		return found && is.standsFor(k)
	}), inTheWay, nil
}

// standsFor reports whether an open task is of the entry of a wanted one, which has its key. In a shard that
// was imported it may be of an entry that had this position in the feed of another store. A debounced task
// has the content of a later entry of its subject.
func (k storedTask) standsFor(wanted storedTask) bool {
	if k.Subject != wanted.Subject {
		return false
	}
	return k.debounced && k.Source > wanted.Source ||
		k.Source == wanted.Source && k.SourceRun == wanted.SourceRun && k.Payload == wanted.Payload
}

// moveCursor moves a cursor to a position and stores the runs to begin in it; nil for none.
func (t *Tape) moveCursor(ctx context.Context, f runstore.Fence, at Cursor, to runstore.Position, pending *pendingRuns) (Cursor, error) {
	b := runstore.NewBatch(f.Run(), f, runstore.AtVersion(cursorKey, at.Version))
	b.Put(cursorKey, encode(cursorHead{to, pending}))
	done, err := t.commit(ctx, b)
	if err != nil {
		return at, err
	}
	return Cursor{Position: to, Version: done.Versions[0], pending: pending}, nil
}

// checkMatches returns an error for matches that cannot come from the shard's part of the feed.
func checkMatches(r Reaction, shard int32, at Cursor, matches []Entry, to runstore.Position) error {
	if to < at.Position || to > runstore.MaxPosition {
		return &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: "to", Problem: fmt.Sprintf("is %d, the limits are %d, the cursor, and %d", to, at.Position, runstore.MaxPosition),
		}
	}
	last := runstore.Position(0)
	for i, e := range matches {
		if e.Position <= last || e.Position > to || r.ShardOf(e.Run) != shard {
			return &runstore.InputError{
				Kind: runstore.ErrInvalid, Field: fmt.Sprintf("matches[%d]", i),
				Problem: fmt.Sprintf("has the position %d in shard %d; positions grow, up to %d, in shard %d", e.Position, r.ShardOf(e.Run), to, shard),
			}
		}
		last = e.Position
	}
	return nil
}

// tasksFor returns the tasks for the matches after a cursor. Texts in runs of other programs may
// not be UTF-8.
func (t *Tape) tasksFor(ctx context.Context, run runstore.RunID, r Reaction, shard int32, at Cursor, matches []Entry) (wanted []storedTask) {
	valid := func(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
	for _, e := range matches {
		if !r.Handler.makesTasks() || e.Position <= at.Position {
			continue
		}
		k := storedTask{run: run, first: e.Position, debounced: r.DebounceMS > 0, Task: Task{
			Reaction: r.ID, Shard: shard, SourceRun: runstore.RunID(valid(string(e.Run))), Source: e.Position,
			Subject: valid(e.Subject), Payload: valid(e.Payload), Status: TaskPending,
		}}
		if size := len(k.Subject) + len(k.Payload); size > MaxTask {
			t.log.WarnContext(ctx, "a reaction gets no task for an entry", "reaction", clip(r.ID, 64), "run", e.Run, "seq", e.Seq,
				"position", e.Position, "bytes", size, "limit", MaxTask)
			continue
		}
		wanted = append(wanted, k)
	}
	return wanted
}

// maxTasks is the number of tasks that one commit writes. Each takes a write and a guard; so does
// the cursor.
const maxTasks = min(runstore.MaxRecordWrites, runstore.MaxGuards) - 1

// planAdvance returns the commit that creates as many of the wanted tasks, in order, as fit, and
// the new position of the cursor.
func (t *Tape) planAdvance(ctx context.Context, f runstore.Fence, r Reaction, at Cursor, wanted []storedTask, to runstore.Position) (runstore.Batch, runstore.Position, error) {
	latest, err := t.tasksToChange(ctx, f.Run(), r, wanted)
	if err != nil {
		return runstore.Batch{}, 0, err
	}
	const cursorBytes = 256 // an upper bound of the cursor's size
	var writes []runstore.RecordWrite
	written := map[string]int{} // index in writes of the debounced task of a subject
	b := runstore.NewBatch(f.Run(), f, runstore.AtVersion(cursorKey, at.Version))
	next, size := to, cursorBytes
	for i, k := range wanted {
		if known, found := latest[k.Subject]; found {
			known.SourceRun, known.Source, known.Payload = k.SourceRun, k.Source, k.Payload
			k = known
		}
		w := tasks.write(k.key(), k)
		grown := len(w.Key) + len(w.Value)
		place, again := written[k.Subject]
		if again {
			grown -= len(writes[place].Key) + len(writes[place].Value)
		}
		if size += grown; size > runstore.MaxBatchBytes {
			next = wanted[i-1].Source // the first always fits
			break
		}
		if again {
			writes[place] = w
			continue
		}
		b.Require(runstore.AtVersion(w.Key, k.version))
		if k.debounced {
			latest[k.Subject], written[k.Subject] = k, len(writes)
		}
		writes = append(writes, w)
	}
	b.Put(cursorKey, encode(cursorHead{Position: next}))
	b.Records = append(b.Records, writes...)
	return b, next, nil
}

// tasksToChange returns the tasks to update instead of creating new ones, by subject: the newest
// PENDING task of each subject, if it is younger than the reaction's debounce time.
func (t *Tape) tasksToChange(ctx context.Context, run runstore.RunID, r Reaction, wanted []storedTask) (map[string]storedTask, error) {
	latest := map[string]storedTask{}
	if r.DebounceMS <= 0 || len(wanted) == 0 {
		return latest, nil
	}
	now, err := t.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	subjects := map[string]bool{}
	for _, k := range wanted {
		subjects[k.Subject] = true
	}
	var failed error
	optimistic.Each(slices.Collect(maps.Keys(subjects)), func(subject string, mu sync.Locker) {
		k, found, err := t.newestTask(ctx, run, subject)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			failed = err
		case found && k.CreatedAt.Add(time.Duration(r.DebounceMS)*time.Millisecond).After(now):
			latest[subject] = k
		}
	})
	return latest, failed
}

// newestTask returns the newest PENDING task of a subject. A task that cannot be read is logged and
// left unchanged.
func (t *Tape) newestTask(ctx context.Context, run runstore.RunID, subject string) (k storedTask, found bool, err error) {
	page, err := t.store.ScanIndex(ctx, runstore.IndexQuery{Index: tasksOf(run, subject), Until: runstore.EndOfTime, Newest: true, Limit: 1})
	if err != nil || len(page) == 0 {
		return storedTask{}, false, err
	}
	if k, err = taskOf(run, page[0].Record); err != nil {
		t.log.WarnContext(ctx, "a task cannot be debounced", "run", run, "record", page[0].Record.Key, "error", err)
		return storedTask{}, false, nil
	}
	return k, k.Status == TaskPending, nil
}
