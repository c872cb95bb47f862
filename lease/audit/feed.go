package audit

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/tapestore/tapestore/runstore"
)

// extend returns the hash of a sequence of events and of the next one. Positions are left out,
// because a journal may not show them.
func (c *checker) extend(chain uint64, e runstore.Event) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	var numbers [48]byte
	for i, n := range []uint64{
		chain, uint64(e.Seq), uint64(runstore.Micros(e.Time)), uint64(e.Token), uint64(len(e.Kind)), uint64(len(e.Owner)),
	} {
		binary.LittleEndian.PutUint64(numbers[8*i:], n)
	}
	for _, part := range [][]byte{numbers[:], []byte(e.Kind), []byte(e.Owner), e.Data} {
		_, _ = h.Write(part) // never fails
	}
	return h.Sum64()
}

// follow reads the feed from where the partition stands to its end.
func (c *checker) follow(ctx context.Context, s *partition, take func(runstore.FeedEvent)) error {
	for {
		page, err := c.store.ReadFeed(ctx, runstore.FeedQuery{After: s.after, Limit: runstore.MaxPage})
		if damaged(err) {
			s.noFeed = true
			c.publish(Finding{Kind: KindDamaged, Position: s.after, Problem: problem("the feed cannot be read after this position: %v", err)})
			return nil
		}
		if errors.Is(err, runstore.ErrStoreBehind) {
			s.noFeed = true
			c.publish(Finding{Kind: KindFeed, Position: s.after, Problem: problem("the store does not know the position, which its feed has shown: %v", err)})
			return nil
		}
		if err != nil || len(page) == 0 {
			return err
		}
		began := s.after
		for _, e := range page {
			switch {
			case e.Position > runstore.MaxPosition:
				c.publish(Finding{Kind: KindFeed, Run: e.Run, Seq: e.Seq, Position: e.Position, Problem: "the position is above the highest of the contract"})
			case e.Position <= s.after:
				c.publish(Finding{Kind: KindFeed, Run: e.Run, Seq: e.Seq, Position: e.Position, Problem: problem("the position follows position %d", s.after)})
			}
			s.after = max(s.after, min(e.Position, runstore.MaxPosition))
			take(e)
		}
		if s.after == began { // a reader of this feed never gets to its end
			s.noFeed = true
			return nil
		}
	}
}

// readFeed reads the feed to its end, before anything else is read.
func (c *checker) readFeed(ctx context.Context, s *partition) error {
	c.report.Passes++
	return c.follow(ctx, s, func(e runstore.FeedEvent) {
		if e.Run == "" { // a part of the feed that is damaged
			c.publish(Finding{Kind: KindDamaged, Position: e.Position, Problem: problem("a part of the feed cannot be read: %v", e.Err)})
			s.noFeed = true
			return
		}
		r := c.track(s, e.Run)
		if r == nil {
			return
		}
		r.feedEvents++
		c.take(s, r, e)
	})
}

// take compares the next event that the feed shows of a run with those before.
func (c *checker) take(s *partition, r *runState, e runstore.FeedEvent) {
	r.seenAt = e.Position
	switch {
	case e.Err != nil:
		c.add(r, Finding{Kind: KindDamaged, Seq: e.Seq, Position: e.Position, Problem: problem("the feed cannot show the event: %v", e.Err)})
		r.incomparable, r.seen = true, max(r.seen, e.Seq)
		return
	case e.Seq == 1 && r.seen > 0:
		// A run that was purged and created again begins again. A suspect has one incarnation.
		c.add(r, Finding{Kind: KindFeed, Seq: e.Seq, Position: e.Position, Problem: problem("the feed shows the seq after seq %d", r.seen)})
		r.seen, r.chain, r.chains, r.incomparable = 0, 0, nil, false
	case e.Seq != r.seen+1:
		c.add(r, Finding{Kind: KindFeed, Seq: e.Seq, Position: e.Position, Problem: problem("the feed shows the seq after seq %d", r.seen)})
		r.incomparable = true
	}
	r.chain = c.extend(r.chain, e.Event)
	r.seen = max(r.seen, e.Seq)
	if s.suspects && s.chains < maxChains && int64(len(r.chains))+1 == int64(r.seen) {
		s.chains++
		r.chains = append(r.chains, r.chain)
	}
}

// readRest reads what was added to the feed since readFeed, and looks there for the events that the
// journals have had more.
func (c *checker) readRest(ctx context.Context, s *partition) error {
	now, err := c.store.Now(ctx)
	if err != nil {
		return err
	}
	pending := 0
	for _, r := range s.runs {
		// A time that is later than the store clock by the lag of a feed is no reading of it.
		if r.latest.Sub(now) > c.opts.FeedLag {
			c.add(r, Finding{Kind: KindClock, Problem: problem("%v is later than the store clock, %v", r.latest, now)})
		}
		if r.end > 0 {
			pending++
		}
	}
	if pending == 0 || s.noFeed {
		return nil
	}
	err = c.follow(ctx, s, func(e runstore.FeedEvent) {
		r := s.runs[e.Run]
		if r == nil || r.end == 0 || e.Seq > r.end || r.incomparable {
			return
		}
		c.take(s, r, e)
		if r.seen == r.end && !r.incomparable {
			c.compare(r, r.endChain, 0)
			r.end = 0
		}
	})
	if err != nil || s.noFeed {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(s.runs)) {
		r := s.runs[id]
		if r.end == 0 || r.incomparable {
			continue
		}
		missing, err := c.store.ReadJournal(ctx, id, r.seen+1, 1)
		switch {
		case errors.Is(err, runstore.ErrNotFound) || err == nil && len(missing) == 0: // purged since
			continue
		case err != nil && !damaged(err):
			return err
		case err == nil && now.Sub(missing[0].Time) <= c.opts.FeedLag:
			if !s.suspects {
				c.report.FeedPending++
			}
			continue
		}
		c.add(r, Finding{Kind: KindFeed, Seq: r.seen + 1, Problem: problem("the event is missing in the feed, which was read up to position %d", s.after)})
	}
	return nil
}

// compare records a finding if the feed shows other events than the journal up to the last seq that
// the feed has shown. first is the seq of the first difference, 0 if it is not known.
func (c *checker) compare(r *runState, chain uint64, first runstore.Seq) {
	if r.chain == chain {
		return
	}
	text := problem("the feed and the journal differ in an event up to seq %d", r.seen)
	if first > 0 {
		text = problem("the feed and the journal differ in the event at seq %d", first)
	}
	c.add(r, Finding{Kind: KindFeed, Problem: text})
}
