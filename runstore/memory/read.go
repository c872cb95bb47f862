package memory

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"sort"
	"strings"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/wakeup"
)

// GetRun implements runstore.RunStore.
func (h *Handle) GetRun(ctx context.Context, id runstore.RunID) (head runstore.Run, err error) {
	err = h.read(ctx, "get run", id, runstore.CheckRunID(id), func() error {
		r, err := h.store.find(id)
		if err != nil {
			return err
		}
		head = r.public()
		return nil
	})
	return head, err
}

// page counts the entries and bytes of a page of a read, to find where the page ends.
type page struct{ left, bytes int }

// full adds one more entry of the given size and reports whether the page ends with it.
func (p *page) full(size int) bool {
	p.left--
	p.bytes += size
	return p.left <= 0 || p.bytes > runstore.MaxPageBytes
}

// ReadJournal implements runstore.RunStore.
func (h *Handle) ReadJournal(ctx context.Context, id runstore.RunID, from runstore.Seq, limit int) (events []runstore.Event, err error) {
	err = h.read(ctx, "read journal", id, runstore.CheckRead(id, from, limit), func() error {
		r, err := h.store.find(id)
		if err != nil {
			return err
		}
		p := page{left: limit}
		for i := max(from, 1) - 1; i < runstore.Seq(len(r.events)); i++ {
			e := r.events[i]
			e.Data = bytes.Clone(e.Data)
			events = append(events, e)
			if p.full(len(e.Data)) {
				break
			}
		}
		return nil
	})
	return events, err
}

// ReadRecords implements runstore.RunStore.
func (h *Handle) ReadRecords(ctx context.Context, id runstore.RunID, q runstore.RecordQuery) (records []runstore.Record, err error) {
	err = h.read(ctx, "read records", id, q.Check(id), func() error {
		r, err := h.store.find(id)
		if err != nil {
			return err
		}
		p := page{left: q.Limit}
		keys := slices.Compact(slices.Sorted(slices.Values(q.Keys)))
		if len(q.Keys) == 0 {
			for key := range r.records {
				if strings.HasPrefix(string(key), string(q.Prefix)) && key > q.After {
					keys = append(keys, key)
				}
			}
			slices.Sort(keys)
		} else {
			p.left = len(keys)
		}
		for _, key := range keys {
			rec := r.records[key]
			if rec == nil {
				continue
			}
			records = append(records, rec.clone())
			if p.full(len(rec.Value)) && len(q.Keys) == 0 {
				break
			}
		}
		return nil
	})
	return records, err
}

// ScanIndex implements runstore.RunStore.
func (h *Handle) ScanIndex(ctx context.Context, q runstore.IndexQuery) (found []runstore.IndexEntry, err error) {
	invalid := q.Check()
	after, cursorErr := decodeCursor(q.After)
	if invalid == nil {
		invalid = cursorErr
	}
	err = h.read(ctx, "scan index", "", invalid, func() error {
		places := h.store.entries(q, h.store.now())
		if q.Newest {
			slices.Reverse(places)
		}
		p := page{left: q.Limit}
		for _, entry := range places {
			if order := entry.compare(after); q.After != "" && (order == 0 || (order < 0) != q.Newest) {
				continue
			}
			e := runstore.IndexEntry{Run: entry.run, At: entry.at, Cursor: encodeCursor(entry)}
			r := h.store.runs[entry.run]
			if entry.key == "" || q.Heads {
				e.Head = r.public()
			}
			if entry.key != "" {
				e.Record = r.records[entry.key].clone()
			}
			found = append(found, e)
			if p.full(len(e.Record.Value) + len(e.Head.Summary.Value)) {
				break
			}
		}
		return nil
	})
	return found, err
}

// ReadFeed implements runstore.RunStore.
func (h *Handle) ReadFeed(ctx context.Context, q runstore.FeedQuery) (events []runstore.FeedEvent, err error) {
	err = h.read(ctx, "read feed", "", q.Check(), func() error {
		s := h.store
		if q.After > s.last {
			return &runstore.StoreBehindError{Field: "position", Presented: int64(q.After), Known: int64(s.last)}
		}
		p := page{left: q.Limit}
		first := sort.Search(len(s.feed), func(i int) bool { return s.feed[i].Position > q.After })
		if q.Newest {
			first = newest(s.feed, q.Limit)
		}
		for _, e := range s.feed[first:] {
			e.Data = bytes.Clone(e.Data)
			events = append(events, e)
			if p.full(len(e.Data)) && !q.Newest {
				break
			}
		}
		return nil
	})
	return events, err
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
func (h *Handle) Wakeups(ctx context.Context) (<-chan struct{}, error) {
	ch := make(chan struct{}, 1)
	err := h.read(ctx, "wakeups", "", nil, func() error {
		h.store.wakers[ch] = true
		return nil
	})
	context.AfterFunc(ctx, func() {
		h.store.mu.Lock()
		defer h.store.mu.Unlock()
		delete(h.store.wakers, ch)
	})
	return ch, err
}

// RunWakeups implements runstore.RunNotifier.
func (h *Handle) RunWakeups(ctx context.Context, id runstore.RunID, on runstore.WakeOn) (ch <-chan struct{}, err error) {
	err = h.read(ctx, "run wakeups", id, runstore.CheckRunID(id), func() error {
		ch = h.store.waiters().Add(ctx, id, on)
		return nil
	})
	return ch, err
}

// waiters returns the hub of the channels that wait for single runs.
func (s *Store) waiters() wakeup.Hub { return wakeup.Of(s) }

// wake wakes the channels of Wakeups after a commit. The caller holds the lock.
func (s *Store) wake() {
	for ch := range s.wakers {
		select {
		case ch <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

// StrictAtCommit implements runstore.StrictCommitter: a write reads the clock while it holds the
// lock.
func (h *Handle) StrictAtCommit() bool { return true }

// Describe implements runstore.Describer.
func (h *Handle) Describe(context.Context) (runstore.Description, error) {
	return runstore.Description{Engine: "memory", Version: "reference", Tier: "embedded"}, nil
}

// cursor is the encoded form of an index entry. It uses byte slices because ids and keys may
// contain any bytes, and JSON strings may not.
type cursor struct {
	At, Written int64
	Run, Key    []byte
}

func encodeCursor(p indexEntry) runstore.Cursor {
	text, _ := json.Marshal(cursor{runstore.Micros(p.at), runstore.Micros(p.written), []byte(p.run), []byte(p.key)})
	return runstore.Cursor(base64.RawURLEncoding.EncodeToString(text))
}

func decodeCursor(c runstore.Cursor) (indexEntry, error) {
	if c == "" {
		return indexEntry{}, nil
	}
	var at cursor
	text, err := base64.RawURLEncoding.DecodeString(string(c))
	if err == nil {
		err = json.Unmarshal(text, &at)
	}
	if err != nil {
		return indexEntry{}, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "after", Problem: "is not a cursor of this store"}
	}
	return indexEntry{
		at: runstore.FromMicros(at.At), written: runstore.FromMicros(at.Written),
		run: runstore.RunID(at.Run), key: runstore.RecordKey(at.Key),
	}, nil
}
