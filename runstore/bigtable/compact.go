package bigtable

import (
	"context"
	"encoding/json"
)

// Compaction removes pages of the feed's log, by blocks of 64. If all runs of a block were purged, its
// pages are deleted except the first, which then names the page at which the log continues
// (feedPage.Next). A reader that does not find the page it looks for reads the first page of the block.
//
//  1. Only a block below the hint is compacted. So the rows of its runs have the positions in it, and no
//     round of a sequencer begins there.
//  2. The first page is replaced before the others are deleted, and by longer than a request takes
//     (readerGrace). So a request that misses one of these sees the new first page, and no reader takes
//     a removed page for the end of the log.
//  3. If the first page of a block says that the block is compacted, no other page of the block counts.
//     A handle that was suspended while a number was the end of the log may create that page again, but
//     no reader reads it. The handle reads the first page of the block before it writes positions back,
//     and begins again (sequencer.dropVoid). If the handle dies before that, a later compaction removes
//     the page.
//
// Rejected: deleting the first page, too. A writer could not distinguish the end of the log from a gap.

// logBlock is how many pages are removed together: as many as one request reads.
const logBlock = pagesPerRequest

// blocksPerPass bounds the blocks that one call of compactNext reads.
const blocksPerPass = 16

// blockStart returns the number of the first page of a number's block.
func blockStart(number int64) int64 { return (number-1)/logBlock*logBlock + 1 }

// skips reports whether a reader at number skips the rest of a compacted block, and where it continues.
// g is the first page of number's block, or nil.
func (g *feedPage) skips(number int64) (next int64, skips bool) {
	if g == nil || g.number == number || g.Next <= number {
		return 0, false
	}
	return g.Next, true
}

// compactNext compacts the block of the first page after a hash, and the next blocks until one has events.
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

// compact removes the pages of a block if all their runs were purged. It reports whether they were.
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
	var dead []string // with those that an interrupted compaction has left
	for _, n := range numbers[1:] {
		if _, there := found[n]; there { // a page, or the row of a late append
			dead = append(dead, logKey(n))
		}
	}
	s.garbage.deleteLater(when, dead)
	return true, nil
}
