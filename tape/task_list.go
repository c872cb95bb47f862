package tape

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// ListTasks returns up to limit (200 for 0 or less) tasks of a reaction, newest first: those of one
// status, or all for TaskUnspecified. If they would not fit into one answer, it leaves out the
// oldest. A task that cannot be read is logged and left out.
//
// Of more DONE or DLQ tasks of a shard than the limit, those of the latest entries are returned. After
// the cursor was moved back, the tasks of earlier entries are newer than these, and are left out.
//
// PENDING and CLAIMED tasks take one read per page of the reaction's open tasks. DONE and DLQ tasks
// are read shard by shard, each from its newest on until the list is full: one read for the
// reaction, and at least one for each shard and status.
func (t *Tape) ListTasks(ctx context.Context, reaction string, status TaskStatus, limit int) ([]Task, error) {
	if err := checkReactionID(reaction); err != nil {
		return nil, err
	}
	if limit <= 0 {
		limit = 200
	}
	list := taskList{limit: limit, status: status, seen: map[string]bool{}}
	// The open tasks are read first: a task that ends meanwhile then appears twice rather than not
	// at all.
	if list.wants(TaskPending) || list.wants(TaskClaimed) {
		q := runstore.IndexQuery{Index: openTasks(reaction), Until: runstore.EndOfTime, Newest: true, Limit: min(limit, runstore.MaxPage)}
		for entry, err := range runstore.Entries(ctx, t.store, q) {
			if err != nil {
				return nil, err
			}
			if k, ok := listed(ctx, t, nil, "tasks", taskOf, entry.Run, entry.Record); ok && !list.add(k.Task) {
				break
			}
		}
	}
	var ends []runstore.RecordKey
	if list.wants(TaskDone) {
		ends = append(ends, donePrefix)
	}
	if list.wants(TaskDLQ) {
		ends = append(ends, dlqPrefix)
	}
	if len(ends) == 0 {
		return list.tasks(), nil
	}
	r, _, err := t.reaction(ctx, reaction)
	if err != nil {
		return nil, err
	}
	for shard := range r.Shards { // 0 if there is no such reaction
		for _, prefix := range ends {
			if err := t.listShard(ctx, &list, shardRun(reaction, shard), prefix); err != nil {
				return nil, err
			}
		}
	}
	return list.tasks(), nil
}

// listShard adds the tasks of a shard whose keys begin with a prefix, from the newest on until the
// list is full.
func (t *Tape) listShard(ctx context.Context, list *taskList, run runstore.RunID, prefix runstore.RecordKey) error {
	q := runstore.RecordQuery{Prefix: prefix, Limit: min(list.limit, runstore.MaxPage)}
	for {
		page, err := t.store.ReadRecords(ctx, run, q)
		if noSuchRun(err) == ErrNoSuchRun {
			return nil // no matcher has opened the shard yet
		}
		if err != nil || len(page) == 0 {
			return err
		}
		for _, rec := range page {
			if k, ok := listed(ctx, t, nil, "tasks", taskOf, run, rec); ok && !list.add(k.Task) {
				return nil
			}
		}
		q.After = page[len(page)-1].Key
	}
}

// taskList keeps the newest tasks that fit into an answer.
type taskList struct {
	limit  int
	status TaskStatus
	kept   []Task
	size   int
	// floor is the creation time of the oldest kept task, once older ones were dropped.
	floor time.Time
	// seen holds the ids of the kept tasks: a task that ends during the list appears twice.
	seen map[string]bool
}

func (l *taskList) wants(s TaskStatus) bool { return l.status == TaskUnspecified || l.status == s }

// add adds a task if it is wanted. It returns false if neither this task nor an older one is.
func (l *taskList) add(k Task) bool {
	if k.CreatedAt.Before(l.floor) {
		return false
	}
	if l.seen[k.ID] || !l.wants(k.Status) {
		return true
	}
	l.seen[k.ID] = true
	l.kept = append(l.kept, k)
	l.size += k.size()
	if len(l.kept) >= 2*l.limit || l.size > maxAnswer+maxAnswer/4 { // each trim follows many additions
		l.trim()
	}
	return true
}

// trim drops the tasks that exceed the limit or the answer.
func (l *taskList) trim() {
	slices.SortFunc(l.kept, func(a, b Task) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.Source, a.Source))
	})
	l.size = 0
	for i, k := range l.kept {
		if l.size += k.size(); l.size > maxAnswer || i == l.limit {
			for _, out := range l.kept[i:] {
				delete(l.seen, out.ID)
			}
			clear(l.kept[i:])
			l.kept = l.kept[:i]
			l.floor = l.kept[i-1].CreatedAt
			return
		}
	}
}

func (l *taskList) tasks() []Task {
	l.trim()
	return l.kept
}
