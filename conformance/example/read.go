package boltstore

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/adapter"
)

// public returns the head with its summary record, as callers see it.
func (r *run) public() runstore.Run {
	head := r.Run
	head.Summary = r.Records[runstore.SummaryKey].Record
	return head
}

// GetRun implements adapter.Core.
func (c core) GetRun(_ context.Context, id runstore.RunID) (runstore.Run, error) {
	return view(c, func(tx tx) (runstore.Run, error) {
		r, err := tx.find(id)
		if err != nil {
			return runstore.Run{}, err
		}
		return r.public(), nil
	})
}

// ReadJournal implements adapter.Core.
func (c core) ReadJournal(_ context.Context, id runstore.RunID, from runstore.Seq, limit int) ([]runstore.Event, error) {
	return view(c, func(tx tx) (events []runstore.Event, err error) {
		journal := tx.Bucket(bucketEvents).Bucket([]byte(id))
		if _, err := tx.find(id); err != nil || journal == nil {
			return nil, err
		}
		at, page := journal.Cursor(), adapter.NewPage(limit)
		for key, position := at.Seek(number(uint64(max(from, 1)))); key != nil; key, position = at.Next() {
			var e runstore.FeedEvent
			if err := decode(tx.Bucket(bucketFeed).Get(position), &e); err != nil {
				return nil, err
			}
			if events = append(events, e.Event); page.Add(len(e.Data)) {
				break
			}
		}
		return events, nil
	})
}

// ReadRecords implements adapter.Core.
func (c core) ReadRecords(_ context.Context, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
	return view(c, func(tx tx) (found []runstore.Record, err error) {
		r, err := tx.find(id)
		if err != nil {
			return nil, err
		}
		var keys []runstore.RecordKey
		for key := range r.Records {
			if slices.Contains(q.Keys, key) || len(q.Keys) == 0 && strings.HasPrefix(string(key), string(q.Prefix)) && key > q.After {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		page := adapter.NewPage(q.Limit)
		for _, key := range keys {
			found = append(found, r.Records[key].Record)
			if page.Add(len(r.Records[key].Value)) && len(q.Keys) == 0 {
				break
			}
		}
		return found, nil
	})
}

// entry is an entry of an index with its place in the order of the index.
type entry struct {
	At, Written int64
	Run, Key    []byte // bytes, because a cursor is JSON
}

func (e entry) compare(other entry) int {
	return cmp.Or(cmp.Compare(e.At, other.At), cmp.Compare(e.Written, other.Written), slices.Compare(e.Run, other.Run), slices.Compare(e.Key, other.Key))
}

// ScanIndex implements adapter.Core. It computes the index from all runs.
func (c core) ScanIndex(_ context.Context, q runstore.IndexQuery) ([]runstore.IndexEntry, error) {
	var after entry
	if q.After != "" {
		if err := adapter.DecodeCursor(q.After, &after); err != nil {
			return nil, err
		}
	}
	return view(c, func(tx tx) (found []runstore.IndexEntry, err error) {
		runs, entries := map[string]*run{}, []entry(nil)
		until := q.Until
		if until.IsZero() {
			until = tx.now
		}
		err = tx.Bucket(bucketRuns).ForEach(func(id, data []byte) error {
			r := &run{}
			if err := decode(data, r); err != nil || r.Purged {
				return err
			}
			runs[string(id)] = r
			add := func(at, written time.Time, key runstore.RecordKey) {
				e := entry{runstore.Micros(at), runstore.Micros(written), []byte(r.ID), []byte(key)}
				order := e.compare(after)
				if at.Before(q.From) || at.After(until) || q.After != "" && (order == 0 || (order < 0) != q.Newest) {
					return
				}
				entries = append(entries, e)
			}
			switch {
			case q.Index == runstore.IndexRuns && !r.Unlisted:
				add(r.CreatedAt, r.CreatedAt, "")
			case q.Index == runstore.IndexRunnable && r.Runnable(until):
				add(r.RunnableFrom(), r.CreatedAt, "")
			}
			for key, rec := range r.Records {
				for _, p := range rec.Places {
					if p.Index == q.Index {
						add(p.At, rec.Updated.Time, key)
					}
				}
			}
			return nil
		})
		slices.SortFunc(entries, entry.compare)
		if q.Newest {
			slices.Reverse(entries)
		}
		page := adapter.NewPage(q.Limit)
		for _, e := range entries {
			r, key := runs[string(e.Run)], runstore.RecordKey(e.Key)
			one := runstore.IndexEntry{Run: r.ID, At: runstore.FromMicros(e.At), Record: r.Records[key].Record, Cursor: adapter.EncodeCursor(e)}
			if key == "" || q.Heads {
				one.Head = r.public()
			}
			if found = append(found, one); page.Add(len(one.Record.Value) + len(one.Head.Summary.Value)) {
				break
			}
		}
		return found, err
	})
}

// ReadFeed implements adapter.Core.
func (c core) ReadFeed(_ context.Context, q runstore.FeedQuery) ([]runstore.FeedEvent, error) {
	return view(c, func(tx tx) (events []runstore.FeedEvent, err error) {
		feed := tx.Bucket(bucketFeed)
		if last := runstore.Position(feed.Sequence()); q.After > last {
			return nil, &runstore.StoreBehindError{Field: "position", Presented: int64(q.After), Known: int64(last)}
		}
		at, page := feed.Cursor(), adapter.NewPage(q.Limit)
		step, key, data := (*bbolt.Cursor).Next, []byte(nil), []byte(nil)
		if q.Newest {
			step = (*bbolt.Cursor).Prev
			key, data = at.Last()
		} else {
			key, data = at.Seek(number(uint64(q.After) + 1))
		}
		for ; key != nil; key, data = step(at) {
			var e runstore.FeedEvent
			if err := decode(data, &e); err != nil {
				return nil, err
			}
			if events = append(events, e); page.Add(len(e.Data)) {
				break
			}
		}
		if q.Newest {
			slices.Reverse(events)
		}
		return events, nil
	})
}
