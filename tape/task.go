package tape

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/runstore"
)

// TaskStatus is the state of a task.
type TaskStatus int32

// The statuses of a task. DONE and DLQ are final. This package never sets FAILED.
const (
	TaskUnspecified TaskStatus = 0
	// TaskPending: the task can be claimed from NextAttempt on.
	TaskPending TaskStatus = 1
	// TaskClaimed: LeaseOwner works on the task. From LeaseExpires on it can be claimed again.
	TaskClaimed TaskStatus = 2
	TaskDone    TaskStatus = 3
	TaskFailed  TaskStatus = 4
	// TaskDLQ: every attempt failed, or a worker gave up (dead-letter queue).
	TaskDLQ TaskStatus = 5
)

// Task is the duty to handle one entry of the feed for one reaction.
type Task struct {
	// ID is opaque.
	ID       string
	Reaction string
	Shard    int32
	// SourceRun, Source, Subject and Payload come from the entry; SourceRun is empty for the entry
	// of a value. A debounced task has those of its latest entry.
	SourceRun        runstore.RunID
	Source           runstore.Position
	Subject, Payload string
	Status           TaskStatus
	// Attempts is the number of claims.
	Attempts int32
	// NextAttempt is zero until an attempt fails.
	NextAttempt time.Time
	// LeaseOwner and LeaseExpires are set while the task is CLAIMED.
	LeaseOwner   string
	LeaseExpires time.Time
	LastError    string
	CreatedAt    time.Time
}

// The limits of a task's texts, in bytes. A task with all texts at their limits fits into one
// record and one answer.
const (
	// MaxTask is the largest sum of an entry's subject and payload. Every entry that this package
	// writes is smaller.
	MaxTask = 3_500_000
	// MaxTaskError is the number of bytes of a failed attempt's error that are stored. A longer
	// error is truncated, not refused: an attempt that could not be reported would be repeated.
	MaxTaskError = 8 << 10
)

// defaultBackoffMS is the pause after the first failed attempt, in milliseconds, if a reaction
// names none.
const defaultBackoffMS = 1000

// A task is a record of its shard's run. The key of an open task contains the position of its first
// entry. A task that ends moves to another key, which names its final status and contains that
// position counted down from the maximum, so that a read of the prefix returns the newest first. An
// ended task is in no queue: a store that limits the records in queues has room for any number of
// them.
const (
	openPrefix = "task/"
	donePrefix = "done/"
	dlqPrefix  = "dead/"
)

// taskKey returns the key of a task with a status and the position of its first entry. The position
// takes 14 digits, the length of the largest one.
func taskKey(s TaskStatus, first runstore.Position) runstore.RecordKey {
	switch s {
	case TaskDone:
		return runstore.RecordKey(fmt.Sprintf("%s%014x", donePrefix, int64(runstore.MaxPosition-first)))
	case TaskDLQ:
		return runstore.RecordKey(fmt.Sprintf("%s%014x", dlqPrefix, int64(runstore.MaxPosition-first)))
	default:
		return runstore.RecordKey(fmt.Sprintf("%s%014x", openPrefix, int64(first)))
	}
}

// taskHead is the stored form of a task's small fields. Its subject, payload and last error are bodies.
type taskHead struct {
	Status      TaskStatus        `json:"status"`
	Reaction    string            `json:"reaction"`
	SourceRun   string            `json:"source_run,omitempty"`
	Source      runstore.Position `json:"source"`
	Attempts    int32             `json:"attempts,omitempty"`
	NextAttempt storedWhen        `json:"next_attempt,omitzero"`
	Owner       string            `json:"owner,omitempty"`
	LeaseEnd    storedWhen        `json:"lease_end,omitzero"`
	// Debounced reports that later entries of the subject may replace the content.
	Debounced bool `json:"debounced,omitempty"`
	// Created is set once the task has moved to another key; before, it is the time of the record's
	// creation.
	Created int64 `json:"created_us,omitempty"`
}

// storedTask is a task with what is needed to write it again.
type storedTask struct {
	Task
	run runstore.RunID
	// first is the position of the task's first entry.
	first runstore.Position
	// version and bytes are the version and the length of the record as read.
	version runstore.Version
	bytes   int
	// next and leaseEnd are NextAttempt and LeaseExpires in the form that is written: the time of
	// the commit may not be known yet.
	next, leaseEnd runstore.When
	debounced      bool
}

var tasks = ledger[storedTask]{decode: taskOf, encode: storedTask.encode, later: storedTask.later}

func (k storedTask) key() runstore.RecordKey { return taskKey(k.Status, k.first) }

func (k storedTask) encode() ([]byte, []runstore.Place) {
	head := taskHead{
		Status: k.Status, Reaction: k.Reaction, SourceRun: string(k.SourceRun), Source: k.Source, Attempts: k.Attempts,
		NextAttempt: storeWhen(k.next), Owner: k.LeaseOwner, LeaseEnd: storeWhen(k.leaseEnd), Debounced: k.debounced,
	}
	if k.Status == TaskDone || k.Status == TaskDLQ {
		head.Created = runstore.Micros(k.CreatedAt)
	}
	return encode(head, k.Subject, k.Payload, k.LastError), k.places()
}

// taskStatuses are the statuses of a task by the phases of its delivery.
var taskStatuses = [...]TaskStatus{
	delivery.Waiting: TaskPending, delivery.Claimed: TaskClaimed, delivery.Done: TaskDone, delivery.Dead: TaskDLQ,
}

// delivery returns the task's state as a delivery. A task that has not failed yet is due before all
// others. A task's claims are its attempts, and are named by their owner alone.
func (k storedTask) delivery() delivery.State {
	s := delivery.State{
		Phase: delivery.Phase(slices.Index(taskStatuses[:], k.Status)), Due: k.next, Ends: k.leaseEnd, Holder: k.LeaseOwner, Attempts: int(k.Attempts),
	}
	if s.Due.IsZero() {
		s.Due = runstore.At(firstTime)
	}
	return s
}

// apply puts the task into the state of a transition, if that is applied. Its next attempt stays as
// it was until an attempt fails.
func (k *storedTask) apply(s delivery.State, result delivery.Result) (applied bool) {
	if result != delivery.Applied {
		return false
	}
	k.Status, k.Attempts = taskStatuses[s.Phase], int32(s.Attempts)
	k.LeaseOwner, k.LeaseExpires, k.leaseEnd = s.Holder, time.Time{}, s.Ends // LeaseExpires follows from the commit
	if s.Phase == delivery.Waiting {
		k.next = s.Due
	}
	return true
}

// places returns the index entries of an open task: in the queues of its reaction and its shard, at
// the time from which it can be claimed; in the queue of all open tasks of its reaction, by its
// creation; and, while later entries may replace its content, in the queue of its subject.
func (k storedTask) places() []runstore.Place {
	due := k.delivery().Available()
	if due.IsZero() {
		return nil
	}
	created := createdWhen(k.CreatedAt)
	places := []runstore.Place{
		{Index: dueTasks(k.Reaction, anyShard), At: due}, {Index: dueTasks(k.Reaction, k.Shard), At: due},
		{Index: openTasks(k.Reaction), At: created},
	}
	if k.debounced && k.Status == TaskPending {
		places = append(places, runstore.Place{Index: tasksOf(k.run, k.Subject), At: created})
	}
	return places
}

// later returns the room to reserve for the largest later form of an open task. A task that ends
// needs none.
func (k storedTask) later() []runstore.RecordWrite {
	if k.Status != TaskPending && k.Status != TaskClaimed {
		return nil
	}
	k.Status, k.next = TaskPending, runstore.After(0)
	return roomFor(k.key(), k.places()...)
}

// anyShard stands for all shards of a reaction.
const anyShard int32 = -1

// dueTasks returns the queue of the open tasks of a reaction and a shard.
func dueTasks(reaction string, shard int32) runstore.IndexName {
	name := "task.due/" + hashOf(reaction)
	if shard >= 0 {
		name += "/" + strconv.Itoa(int(shard))
	}
	return runstore.IndexName(name)
}

// openTasks returns the queue of a reaction's open tasks by their creation.
func openTasks(reaction string) runstore.IndexName {
	return runstore.IndexName("task.open/" + hashOf(reaction))
}

// tasksOf returns the queue of a shard's PENDING tasks of a subject, by their creation.
func tasksOf(run runstore.RunID, subject string) runstore.IndexName {
	return runstore.IndexName("task.subject/" + hashOf(string(run), subject))
}

// taskOf is the inverse of storedTask.encode.
func taskOf(run runstore.RunID, rec runstore.Record) (storedTask, error) {
	var head taskHead
	k := storedTask{run: run, version: rec.Version, bytes: len(rec.Value)}
	what := fmt.Sprintf("task %q of run %q", clip(string(rec.Key), 64), run)
	if err := decode(what, rec.Value, &head, &k.Subject, &k.Payload, &k.LastError); err != nil {
		return storedTask{}, err
	}
	hash, shard, found := cutShard(run)
	_, digits, _ := strings.Cut(string(rec.Key), "/")
	number, err := strconv.ParseInt(digits, 16, 64)
	k.first = runstore.Position(number)
	if head.Status == TaskDone || head.Status == TaskDLQ {
		k.first = runstore.MaxPosition - k.first
	}
	if !found || err != nil || taskKey(head.Status, k.first) != rec.Key {
		return storedTask{}, refuse(ErrFormat, "%s is damaged: it is not where it should be", what)
	}
	k.ID, k.Reaction, k.Shard = fmt.Sprintf("%s-%d-%014x", hash, shard, int64(k.first)), head.Reaction, shard
	k.SourceRun, k.Source = runstore.RunID(head.SourceRun), head.Source
	k.Status, k.Attempts, k.LeaseOwner, k.debounced = head.Status, head.Attempts, head.Owner, head.Debounced
	k.NextAttempt = head.NextAttempt.time(rec.Updated.Time)
	k.LeaseExpires = head.LeaseEnd.time(rec.Updated.Time)
	k.next, k.leaseEnd = whenAt(k.NextAttempt), whenAt(k.LeaseExpires)
	if k.CreatedAt = runstore.FromMicros(head.Created); k.CreatedAt.IsZero() {
		k.CreatedAt = rec.Created.Time
	}
	return k, nil
}

// cutShard returns the parts of the id of a shard's run.
func cutShard(run runstore.RunID) (hash string, shard int32, ok bool) {
	rest, found := strings.CutPrefix(string(run), "reaction/")
	hash, number, cut := strings.Cut(rest, "/")
	n, err := strconv.ParseUint(number, 10, 31)
	return hash, int32(n), found && cut && err == nil && n < MaxShards && strconv.FormatUint(n, 10) == number
}

// parseTaskID returns the run of a task, and its key in that run while it is open.
func parseTaskID(id string) (run runstore.RunID, key runstore.RecordKey, ok bool) {
	parts := strings.Split(id, "-")
	if len(parts) != 3 || len(parts[0]) != 64 || len(parts[2]) != 14 {
		return "", "", false
	}
	run = runstore.RunID("reaction/" + parts[0] + "/" + parts[1])
	_, _, ok = cutShard(run)
	return run, runstore.RecordKey(openPrefix + parts[2]), ok
}

// size returns an upper bound of the bytes that the task takes in an answer.
func (k Task) size() int {
	const numbers = 256 // numbers, and the tags and lengths of all fields: under 200 bytes
	return numbers + len(k.ID) + len(k.Reaction) + len(k.SourceRun) + len(k.Subject) + len(k.Payload) + len(k.LeaseOwner) + len(k.LastError)
}
