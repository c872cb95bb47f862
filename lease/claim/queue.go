package claim

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// The defaults of [QueueOptions].
const (
	DefaultShards      = 8
	DefaultMaxAttempts = 5
	DefaultRemember    = 5 * time.Minute
)

// QueueOptions configures a [Queue]. A zero field takes its default; nil means all defaults.
type QueueOptions struct {
	// Shards is the number of runs that share the messages: 1 to [MaxShards]. Each shard makes one
	// commit at a time on an engine that orders the writes of a run. It is fixed when the queue is
	// created; 0 then means 8, and later the number that the queue has.
	Shards int
	// MaxAttempts is the number of attempts at a message before it becomes a dead letter. It is
	// judged by the handle that claims or nacks. Default 5; negative means that there is no limit.
	MaxAttempts int
	// Remember is how long a put of the id of a message adds nothing after this handle has
	// acknowledged or discarded the message, on the store clock. Default 5 minutes; negative means
	// not at all.
	Remember time.Duration
	// Logger receives what calls cannot return: messages that cannot be read, and claims that failed
	// while others did not. Default slog.Default().
	Logger *slog.Logger
}

// Queue is a named queue of messages on a store. It is safe for concurrent use, and all queues of
// one name on one store are the same queue.
type Queue struct {
	store runstore.RunStore
	name  string
	opts  QueueOptions
	rules delivery.Rules
	due   runstore.IndexName
	// turns makes calls of Claim on one handle wait for each other, so that they do not conflict.
	turns optimistic.Turns[runstore.IndexName]
}

// queueHead is the summary of each shard's run.
type queueHead struct {
	Format int    `json:"v"`
	Queue  string `json:"queue"`
	Shards int    `json:"shards"`
}

// OpenQueue returns the queue of a name, which it creates if necessary. One request.
//
// Errors: runstore.ErrInvalid and runstore.ErrTooLarge for a name or options out of the limits, and
// for a number of shards that is not the queue's; those of RunStore.CreateRun, after all of which
// the call can be repeated.
func OpenQueue(ctx context.Context, s runstore.RunStore, name string, opts *QueueOptions) (*Queue, error) {
	q := &Queue{store: s, name: name, due: runstore.IndexName("claim.due/" + name)}
	if opts != nil {
		q.opts = *opts
	}
	o := &q.opts
	wanted := o.Shards
	if o.Shards == 0 {
		o.Shards = DefaultShards
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = DefaultMaxAttempts
	}
	if o.Remember == 0 {
		o.Remember = DefaultRemember
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	q.rules = delivery.Rules{MaxAttempts: o.MaxAttempts, CountClaims: true}
	o.Remember = max(o.Remember, 0).Truncate(runstore.TimePrecision)
	if err := firstOf(checkSize("name", name, 1, MaxName), checkNumber("shards", int64(o.Shards), 1, MaxShards),
		checkDuration("remember", o.Remember, 0, MaxDelay)); err != nil {
		return nil, err
	}
	head, err := q.create(ctx, q.shard(0))
	if err != nil {
		return nil, err
	}
	if wanted != 0 && head.Shards != wanted {
		return nil, invalid("shards", "%d, but the queue has %d", wanted, head.Shards)
	}
	o.Shards = head.Shards
	return q, nil
}

// create creates the run of a shard unless it exists, and returns its summary.
func (q *Queue) create(ctx context.Context, run runstore.RunID) (queueHead, error) {
	head := queueHead{format, q.name, q.opts.Shards}
	value, err := json.Marshal(head)
	if err != nil {
		return head, err
	}
	spec := runstore.RunSpec{ID: run, Unlisted: true}
	spec.Writes.Put(runstore.SummaryKey, value)
	made, err := optimistic.Repeat(ctx, func() (runstore.Created, error) { return q.store.CreateRun(ctx, spec) })
	if err != nil || made.New {
		return head, err
	}
	if err := json.Unmarshal(made.Run.Summary.Value, &head); err != nil || head.Format != format || head.Shards < 1 || head.Shards > MaxShards {
		return head, &runstore.CorruptError{Run: run, Cause: fmt.Errorf("the summary is not that of a shard of a queue: %.64q", made.Run.Summary.Value)}
	}
	return head, nil
}

// shard returns the run of the shard of a number.
func (q *Queue) shard(n int) runstore.RunID {
	return runstore.RunID(fmt.Sprintf("claim/queue/%s/%d", q.name, n))
}

// shardOf returns the run of a message.
func (q *Queue) shardOf(id string) runstore.RunID {
	return q.shard(int(hashOf(id) % uint64(q.opts.Shards)))
}

// hashOf returns a hash whose bits are all uniform, which those of FNV are not for short ids.
func hashOf(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.BigEndian.Uint64(sum[:])
}

// PutOptions configures a put; nil means the defaults.
type PutOptions struct {
	// Delay is the time before the message can be claimed, from 0 to [MaxDelay].
	Delay time.Duration
}

// Put adds a message, unless the queue has one of that id or remembers it; then added is false and
// nothing changes, whatever the payload. The id is up to [MaxID] bytes, the payload up to
// [MaxPayload]. One round trip for a new message.
//
// Errors: runstore.ErrInvalid and runstore.ErrTooLarge for input out of the limits;
// runstore.ErrTooLarge also if the store limits the messages of a shard; those of RunStore.Commit.
// After runstore.ErrUnknownOutcome the message may have been added: repeat the put.
func (q *Queue) Put(ctx context.Context, id string, payload []byte, opts *PutOptions) (added bool, err error) {
	var o PutOptions
	if opts != nil {
		o = *opts
	}
	if err := firstOf(checkSize("id", id, 1, MaxID), checkSize("payload", payload, 0, MaxPayload),
		checkDuration("delay", o.Delay, 0, MaxDelay)); err != nil {
		return false, err
	}
	run := q.shardOf(id)
	m, s := Message{ID: id, Payload: payload}, delivery.State{Phase: delivery.Waiting, Due: runstore.After(o.Delay)}
	var forgotten runstore.Version // of the record of an acknowledged message that is replaced
	// A late copy of a commit that was refused, because the shard or the id was not as expected, is
	// applied if it arrives when they are.
	later := false
	for n := 0; ; n++ {
		b := runstore.NewBatch(run, runstore.AtVersion(liveKey(id), 0), runstore.AtVersion(deadKey(id), 0), runstore.AtVersion(doneKey(id), forgotten))
		q.move(&b.Writes, m, s)
		if forgotten != 0 {
			b.Delete(doneKey(id))
		}
		_, refused := optimistic.Commit(ctx, q.store, b)
		present := false
		switch {
		case refused == nil:
			return true, nil
		case errors.Is(refused, runstore.ErrNotFound):
			later = true
			_, err = q.create(ctx, run)
		case errors.Is(refused, runstore.ErrConflict):
			later = true
			forgotten, present, err = q.present(ctx, run, id)
		default:
			err = refused
		}
		switch {
		case present:
			return false, nil
		case err == nil && n+1 < optimistic.MaxAttempts && (n < 2 || optimistic.Rest(ctx, n-2, refused) == nil):
			continue
		case err == nil:
			err = &runstore.OpError{Op: "put", Run: run, Err: runstore.ErrUnknownOutcome, Cause: errors.New(refused.Error())}
		case later && slices.Contains([]error{runstore.ErrUnavailable, runstore.ErrCorrupt, runstore.ErrClosed}, runstore.KindOf(err)):
			err = &runstore.OpError{Op: "put", Run: run, Err: runstore.ErrUnknownOutcome, Cause: err}
		}
		return false, err
	}
}

// present reports whether a message is in the queue or its id is remembered. If the id is to be
// forgotten, it returns the version of its record.
func (q *Queue) present(ctx context.Context, run runstore.RunID, id string) (forgotten runstore.Version, present bool, err error) {
	m, found, err := q.read(ctx, run, id)
	if err != nil || !found || m.State != done {
		return 0, found, err
	}
	now, err := q.store.Now(ctx)
	if err != nil {
		return 0, false, err
	}
	return m.version, now.Before(m.remembered()), nil
}

// remembered returns the time until which a done message's id is remembered.
func (m stored) remembered() time.Time {
	return m.updated.Add(time.Duration(m.Remember) * time.Microsecond)
}

// read returns the message of an id, in any state.
func (q *Queue) read(ctx context.Context, run runstore.RunID, id string) (m stored, found bool, err error) {
	recs, err := q.store.ReadRecords(ctx, run, runstore.RecordQuery{Keys: []runstore.RecordKey{liveKey(id), deadKey(id), doneKey(id)}})
	if errors.Is(err, runstore.ErrNotFound) {
		return m, false, nil // the shard has had no message yet
	}
	if err != nil || len(recs) == 0 {
		return m, false, err
	}
	m, err = decode(id, recs[0])
	return m, true, err
}

// LeaseVector describes the claims of a queue's messages and the holds of a capacity.
func LeaseVector() runstore.LeaseVector {
	return runstore.LeaseVector{
		Substrate:   "a record of a run for each message or hold; the store clock",
		Payload:     "owner, attempts, time of the claim's end",
		Enforcement: "by the store, at each settling of the claim: the record must be at the receipt's version",
		Token:       "the record's version, which rises with each claim",
		Handoff:     "give the claim back, and the next consumer claims it",
	}
}
