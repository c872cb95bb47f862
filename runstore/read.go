package runstore

import (
	"context"
	"iter"
	"time"
)

// Event is one immutable entry of a run's journal.
type Event struct {
	Seq  Seq
	Kind string
	Data []byte
	// Time is the store clock at the commit.
	Time time.Time
	// Token and Owner are those of the fence under which the event was written:
	// 0 and empty for a write without one.
	Token Token
	Owner Owner
	// Position is the event's place in the feed of all runs. In a journal it is 0, except
	// on engines that know the position with the commit: a reader of one run follows Seq,
	// and waits for no position.
	Position Position
}

// FeedEvent is an event in the feed of all runs.
type FeedEvent struct {
	Run RunID
	Event
	// Err is nil, or says why the store cannot return the event: it matches ErrCorrupt
	// and names the run. Only Run, Seq and Position are set then; where a part of the
	// feed itself is damaged, only Position. The feed goes on behind it, so that one
	// damaged run does not hide the others. A reader that needs every event stops here,
	// or records the run and reads its journal once that is repaired.
	Err error
}

// Record is a named, versioned document of a run.
type Record struct {
	Key     RecordKey
	Version Version
	Value   []byte
	// Created and Updated stamp the record's first and last change.
	Created, Updated Stamp
}

// Stamp names the event that explains a change of a record, and says when and under which
// grant the change was committed.
type Stamp struct {
	// Seq is that of the event, or the run's last seq where the batch had no event.
	Seq Seq
	// Time is the store clock at the commit.
	Time time.Time
	// Token is that of the fence under which the change was made, so that a checkpoint
	// names its generation; 0 for a change without a fence.
	Token Token
}

// RecordQuery names records: exact keys, or those that begin with a prefix.
type RecordQuery struct {
	// Keys, if not empty, are exact: up to [MaxRecordKeys].
	Keys []RecordKey
	// Prefix selects all keys that begin with it, when Keys is empty. The empty
	// prefix selects every record of the run.
	Prefix RecordKey
	// After resumes a prefix read behind this key.
	After RecordKey
	// Limit bounds a prefix read: 1 to [MaxPage]. A page ends early when it
	// passes [MaxPageBytes]; an empty page means that there is nothing more.
	Limit int
}

// FeedQuery reads a page of the feed of all runs.
type FeedQuery struct {
	// After is the position behind which the page begins: 0, or that of the last event
	// read. At most [MaxPosition].
	After Position
	// Limit bounds the page: 1 to [MaxPage].
	Limit int
	// Newest asks for the end of the feed, and goes without After: the last Limit events
	// that the feed has, in order, and fewer of the last when they pass [MaxPageBytes].
	// A reader that begins here resumes behind the last of them, or behind 0 if there is
	// none, and misses no event that is committed later.
	Newest bool
}

// Cursor is a place in an index, for resuming a scan. It is opaque, and valid
// only for a scan of the same index in the same direction.
type Cursor string

// IndexQuery scans one index in the order of (At, time of the write), and in a
// fixed order of the engine where both are equal.
type IndexQuery struct {
	Index IndexName
	// Until is the latest time of the entries wanted, inclusive. Zero means the
	// store clock: what is due now. For [IndexRunnable] leases are judged at that
	// time too. [EndOfTime] means all.
	Until time.Time
	// From is the earliest time of the entries wanted, inclusive, on the store clock.
	// Zero means no lower bound.
	From time.Time
	// After resumes behind this cursor.
	After Cursor
	// Limit is from 1 to [MaxPage].
	Limit int
	// Newest scans backwards, from the last entry to the first.
	Newest bool
	// Heads asks for [IndexEntry.Head] in an index of records too. It costs no request
	// more than a scan without it.
	Heads bool
}

// IndexEntry is one entry of an index, true at the time of the read.
type IndexEntry struct {
	Run RunID
	// At is the entry's time in the index. In [IndexRunnable] it is at least the run's
	// RunnableAt, and at most the later of that and the expiry of its current grant.
	At time.Time
	// Record is the record that is placed there; zero for the indexes of runs.
	Record Record
	// Head is the run's head with its summary record, in [IndexRuns], in [IndexRunnable]
	// and where [IndexQuery.Heads] asks for it; zero elsewhere. It is read in the same
	// state as Record.
	Head Run
	// Cursor resumes behind this entry.
	Cursor Cursor
}

// Journal iterates over a run's events from seq from on, page by page, to the
// last that the journal holds. It stops at the first error.
func Journal(ctx context.Context, s RunStore, id RunID, from Seq) iter.Seq2[Event, error] {
	return pages(func(last *Event) ([]Event, error) {
		next := max(from, 1)
		if last != nil {
			next = last.Seq + 1
		}
		return s.ReadJournal(ctx, id, next, MaxPage)
	})
}

// Entries iterates over an index page by page. q.Limit is the size of a page; 0
// means [MaxPage]. It stops at the first error.
func Entries(ctx context.Context, s RunStore, q IndexQuery) iter.Seq2[IndexEntry, error] {
	return pages(func(last *IndexEntry) ([]IndexEntry, error) {
		q := q
		if q.Limit == 0 {
			q.Limit = MaxPage
		}
		if last != nil {
			q.After = last.Cursor
		}
		return s.ScanIndex(ctx, q)
	})
}

// Records iterates over the records whose keys begin with prefix, in the order
// of the keys, page by page. It stops at the first error.
func Records(ctx context.Context, s RunStore, id RunID, prefix RecordKey) iter.Seq2[Record, error] {
	return pages(func(last *Record) ([]Record, error) {
		q := RecordQuery{Prefix: prefix, Limit: MaxPage}
		if last != nil {
			q.After = last.Key
		}
		return s.ReadRecords(ctx, id, q)
	})
}

// pages iterates over what read returns behind the last one seen, nil at the
// start, until a page is empty. An iteration can be repeated from the start.
func pages[T any](read func(last *T) ([]T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for last := (*T)(nil); ; {
			page, err := read(last)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			if len(page) == 0 {
				return
			}
			for _, entry := range page {
				if !yield(entry, nil) {
					return
				}
			}
			last = &page[len(page)-1]
		}
	}
}
