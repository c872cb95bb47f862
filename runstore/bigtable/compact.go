package bigtable

import (
	"context"
	"encoding/json"
)

// The log of the feed is compacted block by block: the segments of a block whose runs were all
// purged are removed, but for the first, which then says where the log goes on (segment.Next).
// A reader within the block finds the number that it looks for absent, or by an invariant below
// not to be read, and looks at the first segment of the block.
//
//  1. Only a block below the hint is compacted: its runs' rows say what it has, and no round
//     begins there.
//  2. The first segment is replaced before the others are deleted, by longer than a request may
//     take. So a request that misses one of these sees the new first segment, and no reader
//     takes a removed segment for the end of the log.
//  3. The first segment counts before all others of its block. A writer that was suspended since
//     its number was the end of the log can create it again, but nobody reads it there; the writer
//     looks at the block's first segment before it tells the run's row, and begins again
//     (sequencer.dropVoid). What it leaves there, a later pass removes.
//
// Deleting the numbers for good would be simpler, and wrong: by them alone a writer cannot tell
// the end of the log from a gap.

// logBlock is how many segments are removed together: as many as one request reads.
const logBlock = pagesPerRequest

// blocksPerPass bounds the blocks that one pass looks at.
const blocksPerPass = 16

// blockStart returns the number of the first segment of a block.
func blockStart(number int64) int64 { return (number-1)/logBlock*logBlock + 1 }

// skips reports whether the log goes on behind number for a reader that finds g, the first
// segment of number's block or nil, and where.
func (g *feedPage) skips(number int64) (next int64, skips bool) {
	if g == nil || g.number == number || g.Next <= number {
		return 0, false
	}
	return g.Next, true
}

// compactNext compacts the block of the first segment behind a hash, and the blocks after it while
// they are empty.
func (s *engine) compactNext(ctx context.Context, hash string) error {
	keys, err := s.keys(ctx, kindLog+hash, after(kindLog), 1)
	if err == nil && len(keys) == 0 {
		keys, err = s.keys(ctx, kindLog, kindLog+hash, 1)
	}
	if err != nil || len(keys) == 0 || len(keys[0]) != len(logKey(0)) {
		return err
	}
	hint, err := s.hint(ctx)
	if err != nil {
		return err
	}
	start := blockStart(fromBE64(keys[0][len(keys[0])-8:]))
	for range blocksPerPass {
		if start+logBlock > hint {
			return nil
		}
		if empty, err := s.compact(ctx, start); err != nil || !empty {
			return err
		}
		start += logBlock
	}
	return nil
}

// compact removes the segments of a block, if all their runs were purged.
func (s *engine) compact(ctx context.Context, start int64) (empty bool, err error) {
	end := start + logBlock
	var numbers []int64
	for n := start; n < end; n++ {
		numbers = append(numbers, n)
	}
	when := s.observe()
	found, err := s.readPages(ctx, numbers...)
	if err != nil || found[start] == nil {
		return false, err
	}
	if found[start].Next < end {
		var named []loggedEvent
		for _, n := range numbers {
			g := found[n]
			if g == nil || g.damage != nil || g.openState != nil || g.Next != 0 {
				return false, nil
			}
			for _, r := range g.Ranges {
				named = append(named, loggedEvent{eventRange: r})
			}
		}
		if left, err := s.withoutPurged(ctx, named); err != nil || len(left) > 0 {
			return false, err
		}
		if err := s.checkEpoch(ctx, when); err != nil {
			return false, err
		}
		value, _ := json.Marshal(&feedPage{By: found[start].By, Next: end}) // numbers only: it cannot fail
		if err := s.writeAll(ctx, []mutation{put(logKey(start), "", value)}); err != nil {
			return false, err
		}
	}
	var dead []string // also those that a pass left which was cut
	for _, n := range numbers[1:] {
		if _, there := found[n]; there { // a segment, or what a late append left
			dead = append(dead, logKey(n))
		}
	}
	s.garbage.deleteLater(when, dead)
	return true, nil
}
