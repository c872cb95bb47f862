package bigtable

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/tapestore/tapestore/runstore"
)

// runsAtOnce bounds how many runs' rows a page of the feed reads in one request.
const runsAtOnce = 32

// feedEvents reads the events of a page of the feed, and leaves out those that were
// purged. The page ends early by its size.
func (s *Store) feedEvents(ctx context.Context, page []placed) (events []runstore.FeedEvent, err error) {
	size := int64(0)
	for len(page) > 0 && size <= runstore.MaxPageBytes {
		n, runs := 0, map[runstore.RunID]bool{}
		for n < len(page) && (len(runs) < runsAtOnce || runs[runstore.RunID(page[n].Run)]) {
			runs[runstore.RunID(page[n].Run)] = true
			n++
		}
		found, err := s.lookUp(ctx, page[:n], runs)
		if err != nil {
			return nil, err
		}
		var wanted []want
		first := len(events)
		for _, at := range page[:n] {
			one, there := found[eventKey{runstore.RunID(at.Run), at.Life, at.seq}]
			if !there {
				continue
			}
			one.about.Position = at.position
			events = append(events, runstore.FeedEvent{Run: runstore.RunID(at.Run), Event: one.about.event(at.seq, one.data)})
			size += int64(len(one.data))
			if one.about.Pack != nil {
				size += one.about.Pack.Length
				i := len(events) - 1
				wanted = append(wanted, want{runstore.RunID(at.Run), one.about.Pack, func(value []byte) { events[i].Data = value }})
			}
			if size > runstore.MaxPageBytes {
				break
			}
		}
		if err := s.fetch(ctx, wanted); err != nil {
			return nil, err
		}
		if len(events) == first && len(page) == n {
			return events, nil
		}
		page = page[n:]
	}
	return events, nil
}

type eventKey struct {
	run       runstore.RunID
	life, seq int64
}

// lookUp finds events in the rows of their runs and in segments.
func (s *Store) lookUp(ctx context.Context, page []placed, runs map[runstore.RunID]bool) (map[eventKey]sealedEvent, error) {
	from, to := page[0].seq, page[0].seq
	for _, at := range page {
		from, to = min(from, at.seq), max(to, at.seq)
	}
	keys := make([]string, 0, len(runs))
	for id := range runs {
		keys = append(keys, runKey(id))
	}
	heads, found := map[runstore.RunID]*row{}, map[eventKey]sealedEvent{}
	filter := latest(wholeFamily(familyHead), eventColumns(from, to))
	err := s.readList(ctx, keys, filter, func(r bigtable.Row) error {
		id := runOf(r.Key())
		parsed, err := parseRow(r)
		if err != nil {
			return err
		}
		heads[id] = parsed
		return parsed.events(func(one sealedEvent, _ []byte) error {
			found[eventKey{id, parsed.head.Life, one.seq}] = one
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	var sealed []string
	wanted := map[string]placed{}
	for _, at := range page {
		id := runstore.RunID(at.Run)
		r := heads[id]
		if r == nil || !r.exists() || r.head.Life != at.Life {
			continue
		}
		number := (at.seq - 1) / segmentSize
		if key := segmentKey(id, at.Life, number); number < r.head.Sealed {
			if _, asked := wanted[key]; !asked {
				sealed = append(sealed, key)
			}
			wanted[key] = at
		} else if _, there := found[eventKey{id, at.Life, at.seq}]; !there {
			return nil, errMissing{id}
		}
	}
	segments, err := s.segments(ctx, sealed)
	if err != nil {
		return nil, err
	}
	for key, at := range wanted {
		id := runstore.RunID(at.Run)
		if segments[key] == nil {
			return nil, errMissing{id} // purged meanwhile
		}
		for _, one := range segments[key] {
			found[eventKey{id, at.Life, one.seq}] = one
		}
	}
	for id, r := range heads {
		if !r.exists() {
			for k := range found {
				if k.run == id {
					delete(found, k)
				}
			}
		}
	}
	return found, nil
}
