package tape

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// Cursor is the position up to which a shard has handled the feed. [Tape.ShardCursor] and
// [Tape.Advance] return it.
type Cursor struct {
	// Position is the position of the last entry that the shard has decided on. Once its pending
	// runs are begun, the entries up to there are handled.
	Position runstore.Position
	// Version is the version of the cursor's record, which guards its next change.
	Version runstore.Version

	pending *pendingRuns // as in the record; nil for none; immutable
	begun   int          // how many of them the caller has begun
}

// cursorHead is the stored form of a cursor.
type cursorHead struct {
	Position runstore.Position `json:"position"`
	Pending  *pendingRuns      `json:"pending,omitempty"`
}

// OpenShard returns the id of the run of a reaction's shard, whose lease the shard's matcher holds.
// It creates the run, with its cursor at r.Start, if it does not exist. The run has no status and
// never needs a driver, so no list of runs shows it. One round trip, and two more the first time.
//
// Errors: runstore.ErrInvalid for a shard that the reaction does not have.
func (t *Tape) OpenShard(ctx context.Context, r Reaction, shard int32) (runstore.RunID, error) {
	if shard < 0 || shard >= max(r.Shards, 1) {
		return "", &runstore.InputError{
			Kind: runstore.ErrInvalid, Field: "shard", Problem: fmt.Sprintf("is %d, and the reaction has %d shards", shard, r.Shards),
		}
	}
	run := shardRun(r.ID, shard)
	if _, found, err := t.readRecord(ctx, run, cursorKey); err != nil || found {
		return run, err
	}
	if err := t.createShared(ctx, run, runstore.Fence{}); err != nil {
		return "", err
	}
	b := runstore.NewBatch(run, runstore.AtVersion(cursorKey, 0))
	b.Put(cursorKey, encode(cursorHead{Position: r.Start}))
	if _, err := t.commit(ctx, b); err != nil && !errors.Is(err, runstore.ErrConflict) { // another caller has opened the shard
		return "", err
	}
	return run, nil
}

// ShardCursor returns the cursor of a shard. One read.
//
// Errors: ErrNoSuchRun if the shard was not opened.
func (t *Tape) ShardCursor(ctx context.Context, id runstore.RunID) (Cursor, error) {
	rec, found, err := t.readRecord(ctx, id, cursorKey)
	if err != nil {
		return Cursor{}, err
	}
	if !found {
		return Cursor{}, ErrNoSuchRun
	}
	var head cursorHead
	if err := decode(fmt.Sprintf("cursor of run %q", id), rec.Value, &head); err != nil {
		return Cursor{}, err
	}
	return Cursor{Position: head.Position, Version: rec.Version, pending: head.Pending}, nil
}

// Cursors returns the cursors of a reaction's shards, by number. That of a shard that was not opened is
// at r.Start. One read for each shard.
func (t *Tape) Cursors(ctx context.Context, r Reaction) ([]Cursor, error) {
	all := make([]Cursor, max(r.Shards, 1))
	for n := range all {
		at, err := t.ShardCursor(ctx, shardRun(r.ID, int32(n)))
		if errors.Is(err, ErrNoSuchRun) {
			at, err = Cursor{Position: r.Start}, nil
		}
		if err != nil {
			return nil, err
		}
		all[n] = at
	}
	return all, nil
}

// shardOf returns the number of the reaction's shard whose run has that id.
func (r Reaction) shardOf(run runstore.RunID) (int32, bool) {
	text, found := strings.CutPrefix(string(run), shardPrefix(r.ID))
	n, err := strconv.ParseUint(text, 10, 31)
	return int32(n), found && err == nil && int32(n) < max(r.Shards, 1)
}
