package bigtable

import (
	"context"
	"errors"
	"math"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// runsAtOnce bounds how many rows of runs ReadFeed reads with one request.
const runsAtOnce = 32

// feedEvents reads the events that the log names, and leaves out purged ones. It stops when their size,
// added to size, exceeds runstore.MaxPageBytes; total is the sum. An event that cannot be decoded has an
// Err. If final is set, so has an event that is not where its run's row says.
//
// With an error it returns the events before the error. ErrUnsupported means that a newer program has
// written to the run of the next event: the event is not damaged, and must not be skipped.
// errBudgetSpent means that the read has an event and has made too many requests.
func (s *engine) feedEvents(ctx context.Context, page []loggedEvent, size int64, final bool) (events []runstore.FeedEvent, total int64, err error) {
	for len(page) > 0 && size <= runstore.MaxPageBytes {
		if budgetOf(ctx).ends(groupRequests) {
			return events, size, errBudgetSpent
		}
		n, runs := 0, map[runstore.RunID]bool{}
		for n < len(page) && (len(runs) < runsAtOnce || runs[runstore.RunID(page[n].Run)]) {
			if page[n].damage == nil {
				runs[runstore.RunID(page[n].Run)] = true
			}
			n++
		}
		before, sizeBefore := events, size
		found, err := s.lookUpEvents(ctx, page[:n], runs)
		if err != nil {
			return before, sizeBefore, err
		}
		var wanted []wantedValue
		var of []int    // the event of each wanted value
		var newer error // the next event is of a run that only newer programs can read
	page:
		for _, at := range page[:n] {
			one, err := found.event(at)
			switch {
			case errors.Is(err, errGone):
				continue
			case err != nil && !isUndecodable(err) && !final:
				return before, sizeBefore, err
			case errors.Is(err, runstore.ErrUnsupported):
				newer = ofRun(runstore.RunID(at.Run), err)
				break page
			case err != nil:
				events = append(events, runstore.FeedEvent{Run: runstore.RunID(at.Run), Event: runstore.Event{Seq: runstore.Seq(at.seq), Position: runstore.Position(at.position)}})
				s.markDamaged(&events[len(events)-1], err)
				continue
			}
			event := runstore.FeedEvent{Run: runstore.RunID(at.Run), Event: one.meta.event(at.seq, one.data)}
			event.Position = runstore.Position(at.position)
			events = append(events, event)
			size += int64(len(one.data))
			if one.meta.Pack != nil {
				size += one.meta.Pack.Length
				i := len(events) - 1
				wanted, of = append(wanted, wantedValue{runstore.RunID(at.Run), one.meta.Pack, func(value []byte) { events[i].Data = value }}), append(of, i)
			}
			if size > runstore.MaxPageBytes {
				break
			}
		}
		if final {
			err = s.fetchEachValue(ctx, wanted, func(i int, missing error) { s.markDamaged(&events[of[i]], missing) })
		} else {
			err = s.fetchValues(ctx, wanted)
		}
		if err != nil {
			return before, sizeBefore, err
		}
		if b := budgetOf(ctx); b != nil && len(events) > 0 {
			b.hasEvent = true
		}
		if newer != nil {
			return events, size, newer
		}
		page = page[n:]
	}
	return events, size, nil
}

// markDamaged replaces an event of the feed by one that cannot be returned because of err.
func (s *engine) markDamaged(e *runstore.FeedEvent, err error) {
	if !isUndecodable(err) {
		err = corrupt(err)
	}
	s.skipDamaged(e.Run, err)
	*e = runstore.FeedEvent{Run: e.Run, Event: runstore.Event{Seq: e.Seq, Position: e.Position}, Err: ofRun(e.Run, err)}
}

type eventKey struct {
	run             runstore.RunID
	generation, seq int64
}

// eventLookup is what ReadFeed has read of the runs whose events it returns.
type eventLookup struct {
	rows     map[runstore.RunID]*row
	events   map[eventKey]journalEvent
	damaged  map[runstore.RunID]error // of runs whose rows cannot be decoded
	segments map[string]error         // the journal segments that were read, by key: nil, or why one cannot be decoded
}

// errGone means that an event was purged.
var errGone = errors.New("bigtable: the event was purged")

// event returns an event that the log names. Errors: errGone, errMissing, or one that isUndecodable.
func (l *eventLookup) event(at loggedEvent) (*journalEvent, error) {
	id := runstore.RunID(at.Run)
	r := l.rows[id]
	if at.damage != nil {
		return nil, at.damage
	}
	if r != nil && (r.isGone(at.Generation) || r.head.isLost(at)) {
		return nil, errGone
	}
	if one, there := l.events[eventKey{id, at.Generation, at.seq}]; there {
		return &one, nil
	}
	if err := l.damaged[id]; err != nil {
		return nil, err
	}
	if err := l.segments[segmentKey(id, at.Generation, (at.seq-1)/segmentSize)]; err != nil {
		return nil, err
	}
	return nil, errMissing{id} // purged or sealed meanwhile
}

// isGone reports whether a generation of the run was purged.
func (r *row) isGone(generation int64) bool {
	return r.stored != nil && (r.head.Generation > generation || r.head.Generation == generation && r.head.Purged)
}

// withoutPurged returns the events that were not purged. It reads only the heads of the runs.
func (s *engine) withoutPurged(ctx context.Context, page []loggedEvent) (left []loggedEvent, err error) {
	asked, heads := map[runstore.RunID]bool{}, map[runstore.RunID]*row{}
	var keys []string
	for _, at := range page {
		if id := runstore.RunID(at.Run); at.damage == nil && !asked[id] {
			asked[id] = true
			keys = append(keys, runKey(id))
		}
	}
	err = s.readList(ctx, keys, latest(wholeFamily(familyHead)), func(r bigtable.Row) error {
		if parsed, err := parseRow(r); err == nil { // events of damaged runs stay
			heads[runOf(r.Key())] = parsed
		}
		return nil
	})
	for _, at := range page {
		if r := heads[runstore.RunID(at.Run)]; at.damage != nil || r == nil || !r.isGone(at.Generation) {
			left = append(left, at)
		}
	}
	return left, err
}

// lookUpEvents reads events from the rows of their runs and from segments of their journals.
func (s *engine) lookUpEvents(ctx context.Context, page []loggedEvent, runs map[runstore.RunID]bool) (*eventLookup, error) {
	l := &eventLookup{
		rows: map[runstore.RunID]*row{}, events: map[eventKey]journalEvent{}, damaged: map[runstore.RunID]error{}, segments: map[string]error{},
	}
	from, to := int64(math.MaxInt64), int64(0)
	for _, at := range page {
		if at.damage == nil {
			from, to = min(from, at.seq), max(to, at.seq)
		}
	}
	keys := make([]string, 0, len(runs))
	for id := range runs {
		keys = append(keys, runKey(id))
	}
	filter := latest(wholeFamily(familyHead), eventColumns(from, to))
	err := s.readList(ctx, keys, filter, func(r bigtable.Row) error {
		id := runOf(r.Key())
		parsed, err := parseRow(r)
		if err == nil {
			l.rows[id] = parsed
			err = parsed.events(func(one journalEvent, _ []byte) error {
				l.events[eventKey{id, parsed.head.Generation, one.seq}] = one
				return nil
			})
		}
		if err != nil {
			l.damaged[id] = err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var sealed []string
	owners := map[string]loggedEvent{}
	for _, at := range page {
		id := runstore.RunID(at.Run)
		r := l.rows[id]
		if r == nil || !r.exists() || r.head.Generation != at.Generation || at.damage != nil {
			continue
		}
		number := (at.seq - 1) / segmentSize
		key := segmentKey(id, at.Generation, number)
		if _, asked := owners[key]; !asked && number < r.head.Sealed {
			sealed = append(sealed, key)
			owners[key] = at
		}
	}
	err = s.eachSegment(ctx, sealed, func(key string, events journalSegment, damage error) error {
		at := owners[key]
		for _, one := range events {
			l.events[eventKey{runstore.RunID(at.Run), at.Generation, one.seq}] = one
		}
		l.segments[key] = damage
		return nil
	})
	return l, err
}
