package temporal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	persistencespb "go.temporal.io/server/api/persistence/v1"
	"go.temporal.io/server/common/persistence"
	"go.temporal.io/server/service/history/tasks"

	"github.com/tapestore/tapestore/bench"
)

// payload is the task that a turn stores. It has the length of the event that a turn of a store
// commits.
var payload = bytes.Repeat([]byte("x"), bench.TurnBytes)

// pauseAtMost bounds the pause after a lost attempt: 10 ms. Each pause is random below it, as for
// the other peers that poll.
const pauseAtMost = 10 * time.Millisecond

// contest is a contest for a range of shards of its own. It implements bench.Contest and
// bench.Pauser.
type contest struct {
	db     *database
	first  int32 // the shard of lease 0
	leases int
	tasks  atomic.Int64 // the last task id
}

// contest makes a contest for as many shards as there are leases, plus one that PauseAndWake uses.
func (db *database) contest(ctx context.Context, contenders, leases int) (bench.Contest, error) {
	c := &contest{db: db, leases: leases}
	c.first = db.contests.Add(int32(leases)+1) - int32(leases)
	for lease := range leases + 1 {
		if _, err := c.shard(ctx, lease); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// shard reads the shard of a lease, and creates it if it is absent.
func (c *contest) shard(ctx context.Context, lease int) (*persistencespb.ShardInfo, error) {
	id := c.first + int32(lease)
	got, err := c.db.shards.GetOrCreateShard(ctx, &persistence.InternalGetOrCreateShardRequest{
		ShardID: id, LifecycleContext: ctx,
		CreateShardInfo: func() (int64, *commonpb.DataBlob, error) {
			info := &persistencespb.ShardInfo{ShardId: id}
			blob, err := c.db.blobs.ShardInfoToBlob(info)
			return info.RangeId, blob, err
		},
	})
	if err != nil {
		return nil, err
	}
	return c.db.blobs.ShardInfoFromBlob(got.ShardInfo)
}

// acquire raises the range id of a shard, unless another contender has raised it since it was read.
// The range id is the fencing token.
func (c *contest) acquire(ctx context.Context, contender, lease int) (rangeID int64, err error) {
	info, err := c.shard(ctx, lease)
	if err != nil {
		return 0, err
	}
	before := info.RangeId
	info.RangeId++
	info.Owner = fmt.Sprintf("contender %d", contender)
	info.StolenSinceRenew++
	blob, err := c.db.blobs.ShardInfoToBlob(info)
	if err != nil {
		return 0, err
	}
	return info.RangeId, c.db.shards.UpdateShard(ctx, &persistence.InternalUpdateShardRequest{
		ShardID: info.ShardId, RangeID: info.RangeId, PreviousRangeID: before, Owner: info.Owner, ShardInfo: blob,
	})
}

// write stores one task under a range id.
func (c *contest) write(ctx context.Context, lease int, rangeID int64) error {
	task := persistence.InternalHistoryTask{
		Key:  tasks.NewImmediateKey(c.tasks.Add(1)),
		Blob: &commonpb.DataBlob{EncodingType: enumspb.ENCODING_TYPE_PROTO3, Data: payload},
	}
	return c.db.executions.AddHistoryTasks(ctx, &persistence.InternalAddHistoryTasksRequest{
		ShardID: c.first + int32(lease), RangeID: rangeID,
		Tasks: map[tasks.Category][]persistence.InternalHistoryTask{tasks.CategoryTransfer: {task}},
	})
}

// lost reports whether an error means that another contender has the shard.
func lost(err error) bool {
	var ownership *persistence.ShardOwnershipLostError
	return errors.As(err, &ownership)
}

// Turn acquires the shard and stores a task, and repeats both until they succeed under one range
// id.
func (c *contest) Turn(ctx context.Context, contender, lease int) (turn bench.Turn, err error) {
	var calls atomic.Int64
	defer func() { turn.Calls = int(calls.Load()) }()
	// The end of ctx ends a pause and not an attempt, whose outcome would be unknown.
	attempt := context.WithValue(context.WithoutCancel(ctx), callsKey{}, &calls)
	began := time.Now()
	for {
		if err := ctx.Err(); err != nil {
			turn.Waited = time.Since(began)
			return turn, err
		}
		turn.Attempts++
		at := time.Now()
		rangeID, err := c.acquire(attempt, contender, lease)
		if err == nil {
			turn.Waited = time.Since(began)
			err = c.write(attempt, lease, rangeID)
		}
		if !lost(err) {
			return turn, err
		}
		turn.Lost = append(turn.Lost, time.Since(at))
		pause := time.NewTimer(rand.N(pauseAtMost))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
}

// Committed returns the number of tasks in the contest's shards.
func (c *contest) Committed(ctx context.Context) (n int, err error) {
	err = c.db.pool.QueryRowContext(ctx, "SELECT count(*) FROM transfer_tasks WHERE shard_id BETWEEN $1 AND $2",
		c.first, c.first+int32(c.leases)).Scan(&n)
	return n, err
}

// Close does nothing: the shards are dropped with the database.
func (c *contest) Close() error { return nil }

// PauseAndWake acquires a shard, has another contender acquire it and store a task, and then stores
// a task as the first. A shard has no time to live, so the successor does not wait.
func (c *contest) PauseAndWake(ctx context.Context) (bench.Woke, error) {
	first, err := c.acquire(ctx, 0, c.leases)
	if err != nil {
		return bench.Woke{}, fmt.Errorf("acquire: %w", err)
	}
	paused := time.Now()
	second, err := c.acquire(ctx, 1, c.leases)
	if err != nil {
		return bench.Woke{}, fmt.Errorf("take the shard over: %w", err)
	}
	woke := bench.Woke{Takeover: time.Since(paused), Answer: "no error"}
	before, err := c.Committed(ctx)
	if err != nil {
		return woke, err
	}
	if err := c.write(ctx, c.leases, second); err != nil {
		return woke, fmt.Errorf("write of the successor: %w", err)
	}
	if err := c.write(ctx, c.leases, first); err != nil {
		woke.Answer = err.Error()
	}
	after, err := c.Committed(ctx)
	if err != nil {
		return woke, err
	}
	switch after - before {
	case 1:
	case 2:
		woke.Stored = true
	default:
		return woke, fmt.Errorf("the successor and the paused holder stored one task each, and %d were stored", after-before)
	}
	return woke, nil
}
