package tape

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tapestore/tapestore/internal/optimistic"
	pacing "github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

// CursorMove configures [Tape.MoveCursors].
type CursorMove struct {
	// Replay moves the cursors to the start of the feed, 0, and not to its end.
	Replay bool
	// Reactions are the ids of the reactions to move; none means all.
	Reactions []string
	// Owner names the caller in the leases of the shards. Default "move-cursors".
	Owner runstore.Owner
	// Waiting is called as that of [Tape.FeedEnd].
	Waiting func(runs int)
}

// CursorsMoved counts what [Tape.MoveCursors] did.
type CursorsMoved struct {
	// Reactions counts the reactions that were moved, deregistered ones included, and Shards the
	// shards of these.
	Reactions, Shards int
	// Position is the position that their cursors have now.
	Position runstore.Position
}

// MoveCursors moves the cursors of reactions, deregistered ones included, to the end of the feed: the
// reactions then handle no event that was committed before the call. With m.Replay it moves them to the
// start, so that they handle every event. Runs that a cursor names are still begun, and tasks stay open.
// An entry that has an open task, or a run of an AGENT reaction, gets no second one: the replay of an AGENT
// reaction on the store that has begun its runs does nothing.
//
// It is for a store whose runs were imported. Their events are new in the feed, and their cursors are
// positions in the feed of another store: reactions would handle the whole history again, or nothing.
//
// The end of the feed is that of [Tape.FeedEnd].
//
// The commit of each cursor is guarded by the lease of its shard. MoveCursors may be interrupted and
// repeated; if it was killed, or the store failed, the lease of one shard may last for 10 s.
//
// Errors: runstore.ErrLeaseHeld if a matcher has a shard; runstore.ErrInvalid for a reaction that does
// not exist; runstore.ErrUnsupported if the store is no runstore.Mover; those of the store.
func (t *Tape) MoveCursors(ctx context.Context, m CursorMove) (CursorsMoved, error) {
	if m.Owner == "" {
		m.Owner = "move-cursors"
	}
	var done CursorsMoved
	all, err := t.definingRuns(ctx)
	if err != nil {
		return done, err
	}
	if len(m.Reactions) > 0 {
		named := make([]runstore.RunID, 0, len(m.Reactions))
		for _, id := range m.Reactions {
			if !slices.Contains(all, shardRun(id, 0)) {
				return done, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "reactions", Problem: fmt.Sprintf("names %q, which the store does not have", id)}
			}
			named = append(named, shardRun(id, 0))
		}
		all = named
	}
	if !m.Replay {
		if done.Position, err = t.FeedEnd(ctx, m.Waiting); err != nil {
			return done, err
		}
	}
	for _, run := range all {
		r, found, err := t.moveStart(ctx, run, done.Position)
		if err != nil {
			return done, err
		}
		if !found {
			continue
		}
		for n := range r.Shards {
			if err := t.moveShard(ctx, r, n, done.Position, m.Owner); err != nil {
				return done, fmt.Errorf("move the cursor of shard %d of reaction %q: %w", n, r.ID, err)
			}
			done.Shards++
		}
		done.Reactions++
	}
	return done, nil
}

// DefinedReactions returns the ids of all reactions, deregistered ones included, in no order. It reads
// the ids of all runs of the store.
//
// Errors: runstore.ErrUnsupported if the store is no runstore.Mover; those of the store.
func (t *Tape) DefinedReactions(ctx context.Context) (ids []string, err error) {
	runs, err := t.definingRuns(ctx)
	if err != nil {
		return nil, err
	}
	for _, run := range runs {
		rec, found, err := t.readRecord(ctx, run, reactionKey)
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		r, err := reactionOf(run, rec)
		if err != nil {
			return nil, err
		}
		ids = append(ids, r.ID)
	}
	return ids, nil
}

// definingRuns returns the runs that may define reactions: those of the first shards.
func (t *Tape) definingRuns(ctx context.Context) (runs []runstore.RunID, err error) {
	mover, err := t.mover()
	if err != nil {
		return nil, err
	}
	for after := runstore.RunID(""); ; {
		page, err := mover.ScanRuns(ctx, after, runstore.MaxPage)
		if err != nil || len(page) == 0 {
			return runs, err
		}
		for _, run := range page {
			after = run
			if _, n, shard := cutShard(run); shard && n == 0 {
				runs = append(runs, run)
			}
		}
	}
}

func (t *Tape) mover() (runstore.Mover, error) {
	mover, ok := runstore.As[runstore.Mover](t.store)
	if !ok {
		return nil, &runstore.InputError{Kind: runstore.ErrUnsupported, Field: "store", Problem: "its adapter does not implement runstore.Mover"}
	}
	return mover, nil
}

// FeedEnd returns a position up to which the feed shows every event that was committed before the call.
// A feed may show events some time after their commit, so FeedEnd reads the heads of all runs and the
// whole feed, and waits until it has seen the last event of every run. It calls waiting before each pause
// in which it waits for the events of that many runs; nil is no call.
//
// Errors: runstore.ErrUnsupported if the store is no runstore.Mover; those of the store; the end of ctx.
func (t *Tape) FeedEnd(ctx context.Context, waiting func(runs int)) (runstore.Position, error) {
	last, err := t.lastSeqs(ctx)
	if err != nil {
		return 0, err
	}
	if waiting == nil {
		waiting = func(int) {}
	}
	return t.feedEndAfter(ctx, last, waiting)
}

// lastSeqs returns the seq of the last event of each run that has one.
func (t *Tape) lastSeqs(ctx context.Context) (map[runstore.RunID]runstore.Seq, error) {
	mover, err := t.mover()
	if err != nil {
		return nil, err
	}
	last := map[runstore.RunID]runstore.Seq{}
	var mu sync.Mutex // guards last
	for after := runstore.RunID(""); ; {
		page, err := mover.ScanRuns(ctx, after, runstore.MaxPage)
		if err != nil || len(page) == 0 {
			return last, err
		}
		after = page[len(page)-1]
		reads, ctx := errgroup.WithContext(ctx)
		reads.SetLimit(8)
		for _, id := range page {
			reads.Go(func() error {
				head, err := t.store.GetRun(ctx, id)
				if errors.Is(err, runstore.ErrNotFound) || err == nil && head.LastSeq == 0 {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				last[id] = head.LastSeq
				return err
			})
		}
		if err := reads.Wait(); err != nil {
			return nil, err
		}
	}
}

// feedIdle is after how many pauses of 100 ms without a new event feedEndAfter gives up on a damaged feed: 100,
// which are ten seconds. A feed that only lags is slower than that in rare cases, and the call can be repeated.
const feedIdle = 100

// feedEndAfter returns a position of the feed up to which it has shown the given events, one for each
// run. It drops a run that was purged meanwhile, and may have been created anew. One pause follows the
// read of at most MaxPage heads, those of other runs than before. If a part of the feed is damaged, it may
// hide one of the events: then feedEndAfter fails once feedIdle pauses have passed without a new event.
func (t *Tape) feedEndAfter(ctx context.Context, last map[runstore.RunID]runstore.Seq, waiting func(int)) (end runstore.Position, err error) {
	var damaged error
	idle := 0
	for len(last) > 0 {
		page, err := t.store.ReadFeed(ctx, runstore.FeedQuery{After: end, Limit: runstore.MaxPage})
		if err != nil {
			return 0, err
		}
		for _, e := range page {
			end = e.Position
			if seq, found := last[e.Run]; found && e.Seq >= seq {
				delete(last, e.Run)
			}
			if e.Run == "" && damaged == nil {
				damaged = fmt.Errorf("at position %d: %w", e.Position, e.Err)
			}
		}
		if len(page) > 0 || len(last) == 0 {
			idle = 0
			continue
		}
		idle++
		reads := 0
		for id, seq := range last { // in another order each time
			if reads++; reads > runstore.MaxPage {
				break
			}
			head, err := t.store.GetRun(ctx, id)
			switch {
			case errors.Is(err, runstore.ErrNotFound) || err == nil && head.LastSeq < seq:
				delete(last, id)
			case err != nil:
				return 0, err
			}
		}
		switch {
		case len(last) == 0:
			return end, nil
		case damaged != nil && idle > feedIdle:
			return 0, fmt.Errorf("the feed does not show the last events of %d runs, and is damaged %w", len(last), damaged)
		}
		if waiting(len(last)); !pacing.Pause(ctx, 100*time.Millisecond) {
			return 0, fmt.Errorf("the feed does not show the last events of %d runs yet: %w", len(last), context.Cause(ctx))
		}
	}
	return end, nil
}

// moveStart makes the reaction that is defined in a run start at a position: shards without a cursor
// begin there. It returns the reaction, and false if the run defines none.
func (t *Tape) moveStart(ctx context.Context, run runstore.RunID, to runstore.Position) (r Reaction, found bool, err error) {
	stored, err := reactions.change(ctx, t, run, runstore.Fence{}, reactionKey, func(s storedReaction, exists bool) (storedReaction, *step, error) {
		if found = exists; !found || s.Start == to {
			return s, nil, nil
		}
		s.Start = to
		return s, &step{}, nil
	})
	return stored.Reaction, found, err
}

// moveShard moves the cursor of a shard to a position, under the shard's lease. It opens the shard: a
// matcher with the earlier definition would open it at the former start.
func (t *Tape) moveShard(ctx context.Context, r Reaction, shard int32, to runstore.Position, owner runstore.Owner) (err error) {
	run, err := t.OpenShard(ctx, r, shard)
	if err != nil {
		return err
	}
	// 10 s: more than a read and a commit take.
	request := runstore.AcquireRequest{Run: run, LeaseSpec: runstore.LeaseSpec{
		Owner: owner, Reactor: "reactions", TTL: 10 * time.Second, Grant: runstore.NewGrantID(),
	}}
	granted, err := optimistic.Repeat(ctx, func() (runstore.Granted, error) { return t.store.AcquireLease(ctx, request) })
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // a repeat of the call needs the lease
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_, _ = t.store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: granted.Fence()})
		}
	}()
	at, err := t.ShardCursor(ctx, run)
	if err != nil {
		return err
	}
	b := runstore.NewBatch(run, granted.Fence(), runstore.AtVersion(cursorKey, at.Version))
	b.Put(cursorKey, encode(cursorHead{to, at.pending}))
	b.Release = true
	_, err = t.commit(ctx, b)
	return err
}
