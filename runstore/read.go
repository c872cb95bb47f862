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
	// Token and Owner are those of the fence under which the event was written: 0 and empty for a
	// write without a fence.
	Token Token
	Owner Owner
	// Position is the event's position in the feed of all runs. In a journal it is 0, except on
	// engines that assign the position with the commit. A reader of one run follows Seq and waits
	// for no position.
	Position Position
}

// FeedEvent is an event in the feed of all runs.
type FeedEvent struct {
	Run RunID
	Event
	// Err is nil, or reports why the store cannot return the event: it matches ErrCorrupt and
	// names the run. Then only Run, Seq and Position are set, or only Position where a part of the
	// feed itself is damaged. The feed continues after the event, so that one damaged run does not
	// hide the others. A reader that needs every event stops here, or records the run and reads
	// the run's journal after its repair.
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

// Stamp names the event that explains a change of a record, with the time of the change and the
// grant under which the change was committed.
type Stamp struct {
	// Seq is the seq of that event, or the run's last seq when the batch had no event.
	Seq Seq
	// Time is the store clock at the commit.
	Time time.Time
	// Token is the token of the fence under which the change was made, so that a checkpoint names
	// its generation; 0 for a change without a fence.
	Token Token
}

// RecordQuery selects records: by exact keys, or by a prefix of their keys.
type RecordQuery struct {
	// Keys, if not empty, are exact: up to [MaxRecordKeys].
	Keys []RecordKey
	// Prefix selects all keys that begin with it, when Keys is empty. The empty prefix selects
	// every record of the run.
	Prefix RecordKey
	// After resumes a prefix read after this key.
	After RecordKey
	// Limit bounds a prefix read: 1 to [MaxPage]. A page ends early when it passes [MaxPageBytes];
	// an empty page means that there is nothing more.
	Limit int
}

// FeedQuery reads a page of the feed of all runs.
type FeedQuery struct {
	// After is the position after which the page begins: 0, or that of the last event read. At
	// most [MaxPosition].
	After Position
	// Limit bounds the page: 1 to [MaxPage].
	Limit int
	// Newest selects the end of the feed, and excludes After: the last Limit events of the feed,
	// in order, and only the newest of them when they pass [MaxPageBytes]. A reader that begins
	// here resumes after the last event, or after 0 if there is none, and misses no event that is
	// committed later.
	Newest bool
}

// Cursor is a position in an index, for resuming a scan. It is opaque, and valid only for a scan
// of the same index in the same direction.
type Cursor string

// IndexQuery scans one index in the order of (At, time of the write). Entries that are equal in
// both are in a fixed order of the engine.
type IndexQuery struct {
	Index IndexName
	// Until is the latest time of the selected entries, inclusive. Zero means the store clock: the
	// entries due now. For [IndexRunnable] leases are judged at that time too. [EndOfTime] selects
	// all.
	Until time.Time
	// From is the earliest time of the selected entries, inclusive, on the store clock. Zero means
	// no lower bound. It is not truncated: an entry a nanosecond before From is not selected.
	From time.Time
	// After resumes the scan after this cursor.
	After Cursor
	// Limit is from 1 to [MaxPage].
	Limit int
	// Newest scans in descending order, from the last entry to the first.
	Newest bool
	// Heads requests [IndexEntry.Head] in an index of records too. It costs no additional request.
	Heads bool
}

// IndexEntry is one entry of an index, true at the time of the read.
type IndexEntry struct {
	Run RunID
	// At is the entry's time in the index. In [IndexRunnable] it is at least the run's RunnableAt,
	// and at most the later of RunnableAt and the expiry of the current grant.
	At time.Time
	// Record is the record of the entry; zero for the indexes of runs.
	Record Record
	// Head is the run's head with its summary record, in [IndexRuns], in [IndexRunnable] and where
	// [IndexQuery.Heads] requests it; zero elsewhere. It is read in the same state as Record.
	Head Run
	// Cursor resumes after this entry.
	Cursor Cursor
}

// Journal iterates over a run's events, page by page, from seq from to the end of the journal. It
// stops at the first error.
func Journal(ctx context.Context, s RunStore, id RunID, from Seq) iter.Seq2[Event, error] {
	return pages(func(last *Event) ([]Event, error) {
		next := max(from, 1)
		if last != nil {
			next = last.Seq + 1
		}
		return s.ReadJournal(ctx, id, next, MaxPage)
	})
}

// Entries iterates over an index page by page. q.Limit is the size of a page; 0 means [MaxPage].
// It stops at the first error.
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

// Records iterates over the records whose keys begin with prefix, in key order, page by page. It
// stops at the first error.
func Records(ctx context.Context, s RunStore, id RunID, prefix RecordKey) iter.Seq2[Record, error] {
	return pages(func(last *Record) ([]Record, error) {
		q := RecordQuery{Prefix: prefix, Limit: MaxPage}
		if last != nil {
			q.After = last.Key
		}
		return s.ReadRecords(ctx, id, q)
	})
}

// pages iterates over the pages that read returns, until a page is empty. read receives the last
// entry of the page before, nil at the start. An iteration can be repeated from the start.
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
