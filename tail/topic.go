package tail

import (
	"container/list"
	"context"
	"errors"
	"slices"

	"github.com/tapestore/tapestore/internal/pace"
	"github.com/tapestore/tapestore/runstore"
)

// topic is a run that has followers. The lock of its tail guards its fields.
type topic struct {
	tail   *Tail
	run    runstore.RunID
	ctx    context.Context // ends when the last follower leaves
	cancel context.CancelFunc
	place  *list.Element // position in the rotation of polls

	followers int
	waiting   map[*follower]struct{} // the followers that a shared read serves
	reading   bool                   // a goroutine makes shared reads

	// hinted is a high-water mark: the journal has events up to this seq, according to hints and
	// reads.
	hinted runstore.Seq
	// own is the last seq that this process is known to have written.
	own runstore.Seq
	// suspicions counts the hints without a seq.
	suspicions uint64
}

// follower is one iteration over a journal. While it waits at its topic, the lock of the tail
// guards its fields.
type follower struct {
	topic *topic
	next  runstore.Seq // the seq of the next event to yield
	// atEnd reports that the last page reached the end of the journal. suspicions is the topic's
	// counter at the start of that read.
	atEnd      bool
	suspicions uint64
	pages      chan delivery // receives the result of a shared read
	release    func()        // releases the admission of the last page
}

type delivery struct {
	events []runstore.Event
	err    error
}

// page is the result of one read.
type page struct {
	from   runstore.Seq
	events []runstore.Event
	end    bool // the page reaches the end of the journal
	// suspicions is the topic's counter at the start of the read, which covers these hints.
	suspicions uint64
}

// due reports whether the journal may have an event that f waits for.
func (f *follower) due() bool {
	return f.suspicions != f.topic.suspicions || f.topic.hinted >= f.next
}

// wait returns the next events, at least one.
func (f *follower) wait(ctx context.Context) ([]runstore.Event, error) {
	tp, t := f.topic, f.topic.tail
	f.free()
	for {
		// A follower that catches up reads without the others, so that other followers of its run do not wait
		// for events that they have.
		for !f.atEnd {
			if err := f.admit(ctx); err != nil {
				return nil, err
			}
			p, err := tp.read(ctx, f.next)
			if err != nil {
				return nil, err
			}
			t.mu.Lock()
			events := f.take(p)
			t.mu.Unlock()
			if len(events) > 0 {
				return events, nil
			}
			f.free()
		}
		t.mu.Lock()
		tp.waiting[f] = struct{}{}
		tp.schedule()
		t.mu.Unlock()
		select {
		case d := <-f.pages:
			if d.err != nil {
				return nil, d.err
			}
			switch admitted, err := f.admitShared(ctx, d.events); {
			case err != nil:
				return nil, err
			case admitted:
				return d.events, nil
			}
			f.next, f.atEnd = d.events[0].Seq, false // d is dropped, and read again
		case <-ctx.Done():
			return nil, &runstore.OpError{Op: "follow", Run: tp.run, Err: runstore.ErrUnavailable, Cause: ctx.Err()}
		case <-t.ctx.Done():
			return nil, closedError(tp.run)
		}
	}
}

// admit blocks until Options.Admit admits a page.
func (f *follower) admit(ctx context.Context) error {
	release, err := f.topic.tail.opts.Admit(ctx)
	if err == nil {
		f.release = release
	}
	return err
}

// smallPage is the size of a page that a follower may hold while it waits for room: 4 KiB. All followers of
// a run hold the same page, and a read by each would cost the store more.
const smallPage = 4 << 10

// admitShared admits a page that f has received. It reports false if f must not hold the page while it waits.
func (f *follower) admitShared(ctx context.Context, events []runstore.Event) (admitted bool, err error) {
	if try := f.topic.tail.opts.TryAdmit; try != nil {
		release, ok := try(ctx)
		if ok {
			f.release = release
			return true, nil
		}
		n := 0
		for _, e := range events {
			n += len(e.Kind) + len(e.Data)
		}
		if n > smallPage {
			return false, nil
		}
	}
	err = f.admit(ctx)
	return err == nil, err
}

// free releases the admission of the last page.
func (f *follower) free() {
	f.release()
	f.release = func() {}
}

// take advances f over a page and returns the events that are new to f.
func (f *follower) take(p page) []runstore.Event {
	if f.next < p.from {
		return nil
	}
	events := p.events
	if first := slices.IndexFunc(events, func(e runstore.Event) bool { return e.Seq >= f.next }); first >= 0 {
		events = events[first:]
		f.next = events[len(events)-1].Seq + 1
	} else if events = nil; !p.end {
		return nil
	}
	f.atEnd, f.suspicions = p.end, max(f.suspicions, p.suspicions)
	return events
}

func (tp *topic) suspect() {
	tp.suspicions++
	tp.schedule()
}

// schedule starts shared reads if a follower waits for one.
func (tp *topic) schedule() {
	if _, due := tp.first(); due && !tp.reading && !tp.tail.closed {
		tp.reading = true
		tp.tail.work.Go(tp.serve)
	}
}

// first returns the lowest seq that a follower waits for, and whether any follower is due.
func (tp *topic) first() (from runstore.Seq, due bool) {
	for f := range tp.waiting {
		due = due || f.due()
		if from == 0 || f.next < from {
			from = f.next
		}
	}
	return from, due
}

// serve makes shared reads as long as any are due.
func (tp *topic) serve() {
	for {
		tp.tail.mu.Lock()
		from, due := tp.first()
		if !due || tp.ctx.Err() != nil {
			tp.reading = false
			tp.tail.mu.Unlock()
			return
		}
		tp.tail.mu.Unlock()

		p, err := tp.read(tp.ctx, from)

		tp.tail.mu.Lock()
		for f := range tp.waiting {
			if err == nil {
				if events := f.take(p); len(events) > 0 {
					tp.deliver(f, delivery{events: events})
				}
			} else if f.due() {
				tp.deliver(f, delivery{err: err})
			}
		}
		tp.tail.mu.Unlock()
		pace.Pause(tp.ctx, readInterval)
	}
}

func (tp *topic) deliver(f *follower, d delivery) {
	delete(tp.waiting, f)
	f.pages <- d // does not block: f waits for one delivery at a time
}

// read reads a page and updates the high-water mark.
func (tp *topic) read(ctx context.Context, from runstore.Seq) (page, error) {
	t := tp.tail
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return page{}, &runstore.OpError{Op: "follow", Run: tp.run, Err: runstore.ErrUnavailable, Cause: ctx.Err()}
	case <-t.ctx.Done():
		return page{}, closedError(tp.run)
	}
	t.mu.Lock()
	p, hinted := page{from: from, suspicions: tp.suspicions}, tp.hinted
	t.mu.Unlock()
	events, err := t.store.ReadJournal(ctx, tp.run, from, pageEvents)
	if err != nil && !errors.Is(err, runstore.ErrNotFound) {
		return page{}, err
	}
	p.events, p.end = events, reachesEnd(events)
	t.mu.Lock()
	defer t.mu.Unlock()
	last := from - 1
	if len(events) > 0 {
		last = events[len(events)-1].Seq
	}
	switch {
	case p.end && tp.hinted == hinted && last < hinted:
		tp.hinted = last // the run was purged after the hint
	case len(events) > 0 && last > tp.hinted:
		tp.hinted = last // other followers may wait for these events
		tp.schedule()
	}
	return p, nil
}

// reachesEnd reports whether a page reaches the end of its journal: a page that does not is full,
// by its number of events or by its bytes.
func reachesEnd(events []runstore.Event) bool {
	bytes := 0
	for _, e := range events {
		bytes += len(e.Data)
	}
	return len(events) < pageEvents && bytes <= runstore.MaxPageBytes
}
