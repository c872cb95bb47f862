package memory

import (
	"bytes"
	"context"
	"slices"
	"sort"
	"strings"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
	"github.com/tapestore/tapestore/runstore/adapter/wakeup"
)

// GetRun implements adapter.Core.
func (c core) GetRun(_ context.Context, id runstore.RunID) (runstore.Run, error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	r, err := c.store.find(id)
	if err != nil {
		return runstore.Run{}, err
	}
	return r.public(), nil
}

// ReadTerms implements runstore.TermReader.
func (c core) ReadTerms(_ context.Context, id runstore.RunID) ([]runstore.Term, error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	r, err := c.store.find(id)
	if err != nil {
		return nil, err
	}
	return r.ListTerms()
}

// ReadJournal implements adapter.Core.
func (c core) ReadJournal(_ context.Context, id runstore.RunID, from runstore.Seq, limit int) (events []runstore.Event, err error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	r, err := c.store.find(id)
	if err != nil {
		return nil, err
	}
	p := adapter.NewPage(limit)
	for i := max(from, 1) - 1; i < runstore.Seq(len(r.events)); i++ {
		e := r.events[i]
		e.Data = bytes.Clone(e.Data)
		events = append(events, e)
		if p.Add(len(e.Data)) {
			break
		}
	}
	return events, nil
}

// ReadRecords implements adapter.Core.
func (c core) ReadRecords(_ context.Context, id runstore.RunID, q runstore.RecordQuery) (records []runstore.Record, err error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	r, err := c.store.find(id)
	if err != nil {
		return nil, err
	}
	keys := slices.Compact(slices.Sorted(slices.Values(q.Keys)))
	if len(q.Keys) == 0 {
		for key := range r.records {
			if strings.HasPrefix(string(key), string(q.Prefix)) && key > q.After {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
	}
	p := adapter.NewPage(q.Limit)
	for _, key := range keys {
		rec := r.records[key]
		if rec == nil {
			continue
		}
		records = append(records, rec.clone())
		if p.Add(len(rec.Value)) && len(q.Keys) == 0 {
			break
		}
	}
	return records, nil
}

// ScanIndex implements adapter.Core.
func (c core) ScanIndex(_ context.Context, q runstore.IndexQuery) (found []runstore.IndexEntry, err error) {
	after, err := decodeCursor(q.After)
	if err != nil {
		return nil, err
	}
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	places := c.store.entries(q, c.store.now())
	if q.Newest {
		slices.Reverse(places)
	}
	p := adapter.NewPage(q.Limit)
	for _, entry := range places {
		if order := entry.compare(after); q.After != "" && (order == 0 || (order < 0) != q.Newest) {
			continue
		}
		e := runstore.IndexEntry{Run: entry.run, At: entry.at, Cursor: encodeCursor(entry)}
		r := c.store.runs[entry.run]
		if entry.key == "" || q.Heads {
			e.Head = r.public()
		}
		if entry.key != "" {
			e.Record = r.records[entry.key].clone()
		}
		found = append(found, e)
		if p.Add(len(e.Record.Value) + len(e.Head.Summary.Value)) {
			break
		}
	}
	return found, nil
}

// ReadFeed implements adapter.Core.
func (c core) ReadFeed(_ context.Context, q runstore.FeedQuery) (events []runstore.FeedEvent, err error) {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.After > s.last {
		return nil, &runstore.StoreBehindError{Field: "position", Presented: int64(q.After), Known: int64(s.last)}
	}
	p := adapter.NewPage(q.Limit)
	first := sort.Search(len(s.feed), func(i int) bool { return s.feed[i].Position > q.After })
	if q.Newest {
		first = newest(s.feed, q.Limit)
	}
	for _, e := range s.feed[first:] {
		e.Data = bytes.Clone(e.Data)
		events = append(events, e)
		if p.Add(len(e.Data)) && !q.Newest {
			break
		}
	}
	return events, nil
}

// newest returns the index at which the last page of the feed begins.
func newest(feed []runstore.FeedEvent, limit int) (first int) {
	first = len(feed)
	for size := 0; first > 0 && len(feed)-first < limit && size <= runstore.MaxPageBytes; first-- {
		size += len(feed[first-1].Data)
	}
	return first
}

// Wakeups implements runstore.Notifier.
func (c core) Wakeups(ctx context.Context) (<-chan struct{}, error) {
	return wakeup.Of(c.store).Add(ctx, anyRun, runstore.OnWrite), nil
}

// anyRun is the run that callers of Wakeups wait for in the hub. No run has this id.
const anyRun runstore.RunID = ""

// cursor is the encoded form of an index entry. It uses byte slices because ids and keys may
// contain any bytes, and JSON strings may not.
type cursor struct {
	At, Written int64
	Run, Key    []byte
}

func encodeCursor(p indexEntry) runstore.Cursor {
	return adapter.EncodeCursor(cursor{runstore.Micros(p.at), runstore.Micros(p.written), []byte(p.run), []byte(p.key)})
}

func decodeCursor(c runstore.Cursor) (indexEntry, error) {
	if c == "" {
		return indexEntry{}, nil
	}
	var at cursor
	if err := adapter.DecodeCursor(c, &at); err != nil {
		return indexEntry{}, err
	}
	return indexEntry{
		at: runstore.FromMicros(at.At), written: runstore.FromMicros(at.Written),
		run: runstore.RunID(at.Run), key: runstore.RecordKey(at.Key),
	}, nil
}
