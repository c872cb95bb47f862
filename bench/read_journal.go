package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// replay reads a journal repeatedly, and compares it with the acknowledged events.
type replay struct {
	store   runstore.RunStore
	journal *filledJournal
	next    runstore.Seq // where the next round begins
	passes  int          // passes that reached the end
	peak    float64      // additional memory of the process during a pass, in bytes
}

// heapLooks is how often the first pass measures the reachable heap: 4 times, because a collection
// takes milliseconds.
const heapLooks = 4

// first reads the journal once, and measures the process's memory meanwhile.
func (r *replay) first(ctx context.Context) error {
	every := max(1, len(r.journal.numbers)/heapLooks)
	peak := newPeakHeap()
	err := r.whole(ctx, func(seq runstore.Seq) {
		if int(seq)%every == 0 {
			peak.look()
		}
	})
	r.peak = peak.bytes()
	return err
}

// whole reads the journal once, from its first event to its last, and calls each with every seq.
func (r *replay) whole(ctx context.Context, each func(seq runstore.Seq)) error {
	seq := runstore.Seq(0)
	for e, err := range runstore.Journal(ctx, r.store, r.journal.lease.Run, 1) {
		if err != nil {
			return err
		}
		seq++
		if err := r.journal.check(&e, seq); err != nil {
			return err
		}
		if each != nil {
			each(seq)
		}
	}
	if length := len(r.journal.numbers); int(seq) != length {
		return fmt.Errorf("the journal ends at seq %d; %d were acknowledged", seq, length)
	}
	r.next = 1
	r.passes++
	return nil
}

// round reads for about d, starting where the last round ended; at the journal's end it starts
// over.
func (r *replay) round(ctx context.Context, d time.Duration, m *Measured) error {
	if r.peak >= 0 {
		m.Add("held memory", "B", Less, r.peak)
		r.peak = -1 // measured once
	}
	began := time.Now()
	return readFor(d, m, func() (int, error) {
		return r.read(ctx, func() bool { return time.Since(began) < d })
	})
}

// readFor calls read until d has passed, and records the events per second and the allocations per
// event.
func readFor(d time.Duration, m *Measured, read func() (events int, err error)) error {
	before, began, events := allocated(), time.Now(), 0
	for events == 0 || time.Since(began) < d {
		n, err := read()
		if err != nil {
			return err
		}
		events += n
	}
	took := time.Since(began)
	objects, bytes := allocated().since(before, events)
	m.Add(Rate, "events/s", More, float64(events)/took.Seconds())
	m.Add("allocations per event", "", Less, objects)
	m.Add("allocated per event", "B", Less, bytes)
	return nil
}

// read continues reading until the journal ends or more, which it calls now and then, returns
// false.
func (r *replay) read(ctx context.Context, more func() bool) (events int, err error) {
	for e, err := range runstore.Journal(ctx, r.store, r.journal.lease.Run, r.next) {
		if err != nil {
			return events, err
		}
		if err := r.journal.check(&e, r.next); err != nil {
			return events, err
		}
		r.next++
		if events++; events%runstore.MaxPage == 0 && !more() {
			return events, nil
		}
	}
	if length := len(r.journal.numbers); int(r.next) != length+1 {
		return events, fmt.Errorf("the journal ends at seq %d; %d were acknowledged", r.next-1, length)
	}
	r.next = 1
	r.passes++
	return events, nil
}

func (r *replay) verify(ctx context.Context) (string, error) {
	if err := r.whole(ctx, nil); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d events in order, read to the end %d times", len(r.journal.numbers), r.passes), nil
}

// feedTail reads the feed of all runs from a position on, and compares it with the journals that
// were written after that position.
type feedTail struct {
	store    runstore.RunStore
	start    runstore.Position
	journals map[runstore.RunID]*filledJournal
	total    int // events of all journals

	position runstore.Position
	seen     map[runstore.RunID]runstore.Seq // the last seq of each run
	events   int                             // since start
	passes   int
}

func newFeedTail(store runstore.RunStore, start runstore.Position, journals []*filledJournal) *feedTail {
	f := &feedTail{store: store, start: start, journals: map[runstore.RunID]*filledJournal{}}
	for _, j := range journals {
		f.journals[j.lease.Run] = j
		f.total += len(j.numbers)
	}
	f.rewind()
	return f
}

func (f *feedTail) rewind() {
	f.position, f.seen, f.events = f.start, map[runstore.RunID]runstore.Seq{}, 0
}

// errFeedEnds reports that the feed shows no further event.
var errFeedEnds = errors.New("the feed ends early")

// page reads and checks one page, and starts over after the last acknowledged event.
func (f *feedTail) page(ctx context.Context) (events int, err error) {
	page, err := f.store.ReadFeed(ctx, runstore.FeedQuery{After: f.position, Limit: runstore.MaxPage})
	if err != nil {
		return 0, err
	}
	if len(page) == 0 {
		return 0, fmt.Errorf("%w: it has shown %d events of %d", errFeedEnds, f.events, f.total)
	}
	for i := range page {
		e := &page[i]
		if e.Err != nil {
			return 0, e.Err
		}
		if e.Position <= f.position {
			return 0, fmt.Errorf("position %d follows %d", e.Position, f.position)
		}
		f.position = e.Position
		j := f.journals[e.Run]
		if j == nil {
			continue // an event of another program, in a store at a URL
		}
		f.seen[e.Run]++
		if err := j.check(&e.Event, f.seen[e.Run]); err != nil {
			return 0, fmt.Errorf("%s: %w", e.Run, err)
		}
		events++
	}
	if f.events += events; f.events == f.total {
		f.rewind()
		f.passes++
	}
	return events, nil
}

// feedTimeout bounds how long the feed, and a follower, may take to show a committed event: 5
// minutes. The feed lags behind open transactions, and no transaction is open for minutes, however
// busy the machine is. So an event that is missing after 5 minutes is lost.
const feedTimeout = 5 * time.Minute

// whole reads the feed once up to the last acknowledged event, which the feed may show late.
func (f *feedTail) whole(ctx context.Context) error {
	f.rewind()
	began := time.Now()
	for passes := f.passes; f.passes == passes; {
		_, err := f.page(ctx)
		if errors.Is(err, errFeedEnds) && time.Since(began) < feedTimeout {
			err = sleep(ctx, 10*time.Millisecond)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *feedTail) round(ctx context.Context, d time.Duration, m *Measured) error {
	return readFor(d, m, func() (int, error) { return f.page(ctx) })
}

func (f *feedTail) verify(ctx context.Context) (string, error) {
	if err := f.whole(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d events of %d runs in order, read to the end %d times", f.total, len(f.journals), f.passes), nil
}

// feedEnd returns the position of the last event in the feed, or 0 if there is none.
func feedEnd(ctx context.Context, s runstore.RunStore) (runstore.Position, error) {
	last, err := s.ReadFeed(ctx, runstore.FeedQuery{Newest: true, Limit: 1})
	if err != nil || len(last) == 0 {
		return 0, err
	}
	return last[len(last)-1].Position, nil
}
