package bigtable

import (
	"context"

	"github.com/tapestore/tapestore/runstore"
)

// readNewest reads the last events of the feed: it reads the log backwards, block by block, and the
// events of each block from the last one on. For final see feedEvents.
func (s *engine) readNewest(ctx context.Context, limit int, final bool) (events []runstore.FeedEvent, err error) {
	size := int64(0)
	err = s.eachBlockBackwards(ctx, func(block []loggedEvent) (more bool, err error) {
		for n := limit; len(block) > 0 && len(events) < limit && size <= runstore.MaxPageBytes; {
			last := block[max(len(block)-n, 0):]
			page, total, err := s.feedEvents(ctx, last, 0, final)
			if err != nil {
				return false, err
			}
			if total > runstore.MaxPageBytes && len(last) > 1 { // feedEvents may have stopped before the last event
				n = len(last) / 2
				continue
			}
			block = block[:len(block)-len(last)]
			events, size = append(page, events...), size+total
		}
		return len(events) < limit && size <= runstore.MaxPageBytes, nil
	})
	events = events[max(len(events)-limit, 0):]
	for len(events) > 1 && size-int64(len(events[0].Data)) > runstore.MaxPageBytes {
		size -= int64(len(events[0].Data))
		events = events[1:]
	}
	return events, err
}

// eachBlockBackwards calls f with the events of one block of the log after the other, from the end of the log
// backwards, until f returns false. It leaves out events of purged runs.
func (s *engine) eachBlockBackwards(ctx context.Context, f func(events []loggedEvent) (more bool, err error)) error {
	x, err := s.readEpochs(ctx)
	if err != nil {
		return err
	}
	hint, err := s.hint(ctx)
	if err != nil {
		return err
	}
	for i := len(x.Epochs); i >= 0; i-- { // the log of the epoch that follows the first i
		first, next := int64(firstPage), int64(0)
		if i > 0 {
			first = x.Epochs[i-1].Base
		}
		if i < len(x.Epochs) {
			next = x.Epochs[i].Base
		}
		var end int64
		if i < len(x.Epochs) && x.Epochs[i].Closed {
			end = x.Epochs[i].End + 1 // the page that ends the log may have events
		} else if end, err = s.endOfLog(ctx, first, next, hint); err != nil {
			return err
		}
		for end > first {
			start := max(blockStart(end-1), first)
			var page []loggedEvent
			_, err = s.followBy(ctx, start, end-start, func(g *feedPage) bool {
				if g.number < end {
					page = g.appendTo(page, 0)
				}
				return g.next() < end
			})
			if err == nil {
				page, err = s.withoutPurged(ctx, page)
			}
			if err != nil {
				return err
			}
			if more, err := f(page); err != nil || !more {
				return err
			}
			end = start
		}
	}
	return nil
}

// endOfLog returns the number after the last page of an epoch's log. first is the first page of the
// epoch, and next that of the following epoch, or 0.
func (s *engine) endOfLog(ctx context.Context, first, next, hint int64) (end int64, err error) {
	if end = first; hint > first && (next == 0 || hint < next) {
		end = hint // the log exists up to the hint, and its end is not far
	}
	_, err = s.follow(ctx, end, func(g *feedPage) bool {
		if g.next() == next {
			return false
		}
		end = g.next()
		return true
	})
	return end, err
}
