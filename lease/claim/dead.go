package claim

import (
	"context"
	"errors"
	"iter"
	"strings"

	"github.com/tapestore/tapestore/internal/delivery"
	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// Dead iterates over the dead letters, shard by shard and by id, and stops at the first error. One
// that cannot be read is logged and left out. A message whose last claim has expired appears once a
// call of [Queue.Claim] has found it. At least one read for each shard.
func (q *Queue) Dead(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		for n := range q.opts.Shards {
			for rec, err := range runstore.Records(ctx, q.store, q.shard(n), deadPrefix) {
				if errors.Is(err, runstore.ErrNotFound) {
					break // the shard has had no message yet
				}
				if err != nil {
					yield(DeadLetter{}, err)
					return
				}
				m, err := decode(strings.TrimPrefix(string(rec.Key), deadPrefix), rec)
				if err != nil { // do not let one dead letter hide the others
					q.opts.Logger.WarnContext(ctx, "claim: a dead letter cannot be read", "queue", q.name, "run", q.shard(n), "record", rec.Key, "error", err)
					continue
				}
				if !yield(DeadLetter{m.message(), m.updated}, nil) {
					return
				}
			}
		}
	}
}

// Redrive makes a dead letter a message again, without attempts, that can be claimed at once. Its
// reason stays. If the message is alive, Redrive does nothing. So a call can be repeated.
//
// Errors: ErrNoMessage if the queue has no such message; those of RunStore.Commit.
func (q *Queue) Redrive(ctx context.Context, id string) error {
	return q.change(ctx, id, func(m stored, found bool, b *runstore.Batch) (bool, error) {
		switch {
		case !found || m.State == done:
			return false, ErrNoMessage
		case m.State != dead:
			return false, nil
		}
		b.Delete(deadKey(id))
		q.move(&b.Writes, m.message(), delivery.State{Phase: delivery.Waiting, Due: runstore.After(0)})
		return true, nil
	})
}

// Discard deletes a dead letter; its id is remembered for QueueOptions.Remember. If the queue has no
// such message, Discard does nothing. So a call can be repeated.
//
// Errors: ErrNotDead if the message is alive; those of RunStore.Commit.
func (q *Queue) Discard(ctx context.Context, id string) error {
	return q.change(ctx, id, func(m stored, found bool, b *runstore.Batch) (bool, error) {
		switch {
		case !found || m.State == done:
			return false, nil
		case m.State != dead:
			return false, ErrNotDead
		}
		b.Delete(deadKey(id))
		q.remember(&b.Writes, id, 0)
		return true, nil
	})
}

// change reads a message, and makes the writes that decide adds to a batch which is guarded by the
// dead letter's version. If decide returns false there is nothing to write.
func (q *Queue) change(ctx context.Context, id string, decide func(m stored, found bool, b *runstore.Batch) (bool, error)) error {
	if err := checkSize("id", id, 1, MaxID); err != nil {
		return err
	}
	run := q.shardOf(id)
	for n := 0; ; n++ {
		m, found, err := q.read(ctx, run, id)
		if err != nil {
			return err
		}
		b := runstore.NewBatch(run, runstore.AtVersion(deadKey(id), m.version))
		if write, err := decide(m, found, &b); err != nil || !write {
			return err
		}
		_, err = optimistic.Commit(ctx, q.store, b)
		if !errors.Is(err, runstore.ErrConflict) || n+1 == optimistic.MaxAttempts {
			return err
		}
	}
}
