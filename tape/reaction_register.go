package tape

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// RegisterReaction registers a reaction, or replaces the one with the same ID, and returns it as
// stored. An empty ID becomes a UUID. Registering a deregistered reaction revives it; its shards
// continue where they were. The values CreatedAtMS, Start and Shards are fixed by the first
// registration. A registration that changes nothing writes nothing. A matcher may use the earlier
// definition for some time; each entry is handled under one definition (see [Tape.Advance]).
//
// At the first registration Start becomes the end of the feed if fromHead is set, otherwise 0. An
// entry that was committed before, but that the feed does not show yet, counts as new.
//
// Two round trips if nothing is written, otherwise three, and one more for the end of the feed.
//
// Errors: runstore.ErrTooLarge above [MaxReactionID], [MaxReactionNames], [MaxPattern] and
// [MaxPredicate]; runstore.ErrInvalid for text that is not UTF-8, for more than [MaxShards] shards,
// and for a number of shards other than the reaction's: runs would move between shards, and entries
// between the two shards' cursors would be handled twice or never.
func (t *Tape) RegisterReaction(ctx context.Context, r Reaction, fromHead bool) (Reaction, error) {
	r = r.withDefaults()
	if r.ID == "" {
		r.ID = newUUID()
	}
	if err := r.check(); err != nil {
		return Reaction{}, err
	}
	run := shardRun(r.ID, 0)
	if err := t.createShared(ctx, run, runstore.Fence{}); err != nil {
		return Reaction{}, err
	}
	stored, err := reactions.change(ctx, t, run, runstore.Fence{}, reactionKey, func(s storedReaction, found bool) (storedReaction, *step, error) {
		next := storedReaction{Reaction: r, createdMS: max(r.CreatedAtMS, 0)}
		if !found {
			var err error
			if fromHead {
				next.Start, err = t.endOfFeed(ctx)
			} else {
				next.Start = 0
			}
			return next, &step{}, err
		}
		if r.Shards != s.Shards {
			return s, nil, &runstore.InputError{
				Kind: runstore.ErrInvalid, Field: "num_shards",
				Problem: fmt.Sprintf("is %d, and the reaction was registered with %d, which is fixed: register another reaction_id", r.Shards, s.Shards),
			}
		}
		next.createdMS, next.created = s.createdMS, s.created
		next.CreatedAtMS, next.Start, next.Version = s.CreatedAtMS, s.Start, s.Version
		if next == s {
			return s, nil, nil
		}
		return next, &step{}, nil
	})
	return stored.Reaction, err
}

// endOfFeed returns the position of the last event that the feed shows; 0 before the first.
func (t *Tape) endOfFeed(ctx context.Context) (runstore.Position, error) {
	last, err := t.store.ReadFeed(ctx, runstore.FeedQuery{Newest: true, Limit: 1})
	if err != nil || len(last) == 0 {
		return 0, err
	}
	return last[len(last)-1].Position, nil
}

// DeregisterReaction ends a reaction: no list shows it, and matchers stop when they notice. Its
// tasks stay and can be claimed. existed is false if there was never a reaction with that ID. Two
// round trips, one if nothing is written.
func (t *Tape) DeregisterReaction(ctx context.Context, id string) (existed bool, err error) {
	if err := checkReactionID(id); err != nil {
		return false, err
	}
	_, err = reactions.change(ctx, t, shardRun(id, 0), runstore.Fence{}, reactionKey, func(r storedReaction, found bool) (storedReaction, *step, error) {
		if existed = found; !found || r.deleted {
			return r, nil, nil
		}
		r.deleted = true
		return r, &step{}, nil
	})
	return existed && err == nil, err
}

// reaction returns a reaction, even if it is deregistered. One read.
func (t *Tape) reaction(ctx context.Context, id string) (r Reaction, found bool, err error) {
	rec, found, err := t.readRecord(ctx, shardRun(id, 0), reactionKey)
	if err != nil || !found {
		return Reaction{}, false, err
	}
	stored, err := reactionOf(shardRun(id, 0), rec)
	return stored.Reaction, err == nil, err
}

// Reactions iterates over all registered reactions in the order of their creation, page by page. A
// reaction that cannot be read is logged and left out. One read per page.
func (t *Tape) Reactions(ctx context.Context) iter.Seq2[Reaction, error] {
	return func(yield func(Reaction, error) bool) {
		for entry, err := range runstore.Entries(ctx, t.store, runstore.IndexQuery{Index: IndexReactions, Until: runstore.EndOfTime}) {
			if err != nil {
				yield(Reaction{}, err)
				return
			}
			r, err := reactionOf(entry.Run, entry.Record)
			if err != nil { // do not let one reaction hide the others
				t.leaveOut(ctx, "reactions", entry.Run, entry.Record.Key, err)
				continue
			}
			if !yield(r.Reaction, nil) {
				return
			}
		}
	}
}

// ListReactions returns the registered reactions with the given pattern text, or all of them for
// the empty text, in the order of their creation. It ends where the next one would not fit into one
// answer; [Tape.Reactions] does not. One read per page.
func (t *Tape) ListReactions(ctx context.Context, pattern string) ([]Reaction, error) {
	if _, err := ParsePattern(pattern); err != nil {
		return nil, err
	}
	var listed []Reaction
	size, seen := 0, map[string]bool{} // a reaction that is registered again during the scan may appear twice
	for r, err := range t.Reactions(ctx) {
		if err != nil {
			return nil, err
		}
		if seen[r.ID] || pattern != "" && r.Pattern != pattern {
			continue
		}
		seen[r.ID] = true
		if size += r.size(); size > maxAnswer {
			break
		}
		listed = append(listed, r)
	}
	slices.SortStableFunc(listed, func(a, b Reaction) int { return cmp.Compare(a.CreatedAtMS, b.CreatedAtMS) })
	return listed, nil
}
