package tape

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// Part reads the lists of several runs in parts, and shows the runs of some tenants only. A part looks at
// a bounded number of entries, whichever runs they belong to, so it may be empty and not the last.
//
// The parts of a list together show each entry once that stays where it is in its queue. An entry that
// moves in between appears again, or for the first time, if it moves to a later place.
type Part struct {
	tape  *Tape
	admit func(tenant string) bool
	after string
}

const (
	// maxPartEntries is 4,000, the number of entries that a part looks at: four pages of a read.
	maxPartEntries = 4 * runstore.MaxPage
	// maxPartBytes is 16 MiB, the size of the entries at which a part ends: four pages of a read.
	maxPartBytes = 4 * runstore.MaxPageBytes
	// partRoom is the room for entries in the answer of a part: 32 KiB less than in that of a list, for
	// the bookmark.
	partRoom = maxAnswer - 32<<10
)

// Part returns the part of a list after a bookmark, which a former part of the same list has returned;
// the first part for "". admit reports whether the list shows the runs of a tenant: "" for runs without
// one.
//
// A bookmark contains ids of runs that the list may not show. A caller that hands it to clients seals it.
func (t *Tape) Part(admit func(tenant string) bool, after string) Part {
	return Part{tape: t, admit: admit, after: after}
}

// ListRunsToRecover returns a part of [Tape.ListRunsToRecover], and the bookmark after it; "" at the end.
func (p Part) ListRunsToRecover(ctx context.Context, now time.Time, limit int) (list []Run, next string, err error) {
	return inPart(p, func(s *partScan) ([]Run, error) { return p.tape.listRunsToRecover(ctx, s, now, limit) })
}

// ListCompactableRuns returns a part of [Tape.ListCompactableRuns], and the bookmark after it; "" at the
// end.
func (p Part) ListCompactableRuns(ctx context.Context, before time.Time, limit int) (list []Run, next string, err error) {
	return inPart(p, func(s *partScan) ([]Run, error) { return p.tape.listCompactableRuns(ctx, s, before, limit) })
}

// ListPendingEffects returns a part of [Tape.ListPendingEffects], and the bookmark after it; "" at the
// end.
func (p Part) ListPendingEffects(ctx context.Context, q PendingQuery) (list []Effect, next string, err error) {
	return inPart(p, func(s *partScan) ([]Effect, error) { return p.tape.listPendingEffects(ctx, s, q) })
}

// ListEffectsToDispatch returns a part of [Tape.ListEffectsToDispatch], and the bookmark after it; "" at
// the end. The order holds within a part.
func (p Part) ListEffectsToDispatch(ctx context.Context, q DispatchQuery) (list []Effect, next string, err error) {
	return inPart(p, func(s *partScan) ([]Effect, error) { return p.tape.listEffectsToDispatch(ctx, s, q) })
}

// ListUnresolvedObligations returns a part of [Tape.ListUnresolvedObligations], and the bookmark after
// it; "" at the end. The order holds within a part.
func (p Part) ListUnresolvedObligations(ctx context.Context, q UnresolvedQuery) (list []Obligation, next string, err error) {
	return inPart(p, func(s *partScan) ([]Obligation, error) { return p.tape.listUnresolvedObligations(ctx, s, q) })
}

// ListDueTimers returns a part of [Tape.ListDueTimers], and the bookmark after it; "" at the end. With
// Claim it fires the timers of the part only.
func (p Part) ListDueTimers(ctx context.Context, q DueTimersQuery) (list []Timer, next string, err error) {
	return inPart(p, func(s *partScan) ([]Timer, error) { return p.tape.listDueTimers(ctx, s, q) })
}

// partScan is the scan of a part. A nil scan is that of a whole list.
type partScan struct {
	admit func(tenant string) bool
	ends  []mark // by queue: the place after which the scan continues
	began []mark // ends at the beginning of the part
	// entry is the mark after the entry that the list is looking at, of the queue numbered queue.
	entry mark
	queue int
	more  bool // the scan has ended before the queues have
}

// mark is a place in a queue.
type mark struct {
	After runstore.Cursor `json:"after,omitempty"`
	End   bool            `json:"end,omitempty"` // the queue has no more entries
}

// inPart lists a part, and returns the bookmark after it.
func inPart[E any](p Part, list func(*partScan) ([]E, error)) ([]E, string, error) {
	s := &partScan{admit: p.admit}
	if p.after != "" {
		if err := json.Unmarshal([]byte(p.after), &s.ends); err != nil {
			return nil, "", badBookmark()
		}
	}
	listed, err := list(s)
	if err != nil || !s.more {
		return listed, "", err
	}
	return listed, string(compactJSON(s.ends)), nil
}

func badBookmark() error {
	return &runstore.InputError{Kind: runstore.ErrInvalid, Field: "page_token", Problem: "belongs to another list"}
}

// room returns the room for the entries of an answer, in bytes.
func (s *partScan) room() int {
	if s == nil {
		return maxAnswer
	}
	return partRoom
}

// took moves the bookmark after the entry that the list is looking at. A list calls it before it stops at
// an entry that it shows; one that does not fit is the first of the next part.
func (s *partScan) took() {
	if s != nil {
		s.ends[s.queue] = s.entry
	}
}

// entries iterates over the entries of queues in the order of their times, from the bookmark on. Those of
// runs that the list does not show are left out. It ends after maxPartEntries or maxPartBytes.
func (s *partScan) entries(ctx context.Context, store runstore.RunStore, queues []runstore.IndexQuery) iter.Seq2[runstore.IndexEntry, error] {
	switch {
	case s == nil && len(queues) == 1:
		return runstore.Entries(ctx, store, queues[0])
	case s == nil:
		streams := make([]iter.Seq2[runstore.IndexEntry, error], len(queues))
		for i, q := range queues {
			streams[i] = runstore.Entries(ctx, store, q)
		}
		return merge(streams)
	}
	return func(yield func(runstore.IndexEntry, error) bool) {
		if s.ends == nil {
			s.ends = make([]mark, len(queues))
		}
		if len(s.ends) != len(queues) {
			yield(runstore.IndexEntry{}, badBookmark())
			return
		}
		s.began = slices.Clone(s.ends)
		type head struct {
			next  func() (runstore.IndexEntry, error, bool)
			entry runstore.IndexEntry
			ok    bool
		}
		heads := make([]head, len(queues))
		advance := func(i int) bool {
			var err error
			if heads[i].entry, err, heads[i].ok = heads[i].next(); err != nil {
				yield(runstore.IndexEntry{}, err)
				return false
			}
			s.ends[i].End = !heads[i].ok
			return true
		}
		for i, q := range queues { // in order; see the callers
			if s.ends[i].End {
				continue
			}
			q.After, q.Limit, q.Heads = s.ends[i].After, runstore.MaxPage, true
			next, stop := iter.Pull2(runstore.Entries(ctx, store, q))
			defer stop()
			heads[i].next = next
			if !advance(i) {
				return
			}
		}
		for looked, size := 0, 0; ; looked++ {
			first := -1
			for i := range heads {
				if heads[i].ok && (first < 0 || heads[i].entry.At.Before(heads[first].entry.At)) {
					first = i
				}
			}
			if first < 0 {
				return
			}
			if looked == maxPartEntries || size > maxPartBytes {
				s.more = true
				return
			}
			entry := heads[first].entry
			size += len(entry.Record.Value) + len(entry.Head.Summary.Value)
			s.queue, s.entry = first, mark{After: entry.Cursor}
			run, err := runOf(entry.Head)
			if err == nil && s.admit(run.Tenant) && !yield(entry, nil) {
				s.more = true
				return
			}
			s.took()
			if !advance(first) {
				return
			}
		}
	}
}

// again makes the next part begin where this one has begun.
func (s *partScan) again() {
	if s != nil {
		s.ends, s.more = slices.Clone(s.began), true
	}
}
