package tape

import (
	"context"
	"iter"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// PendingQuery selects the effects whose outcome is open.
type PendingQuery struct {
	// OlderThan excludes PENDING effects that were changed at that time or later; zero excludes
	// none. It does not apply to UNKNOWN effects.
	OlderThan time.Time
	// Limit is the maximal number of effects; 0 or less means 200.
	Limit int
	// Pending and Unknown select the statuses; if neither is set, both are selected.
	Pending, Unknown bool
}

// ListPendingEffects returns effects of all runs whose outcome is open, in the order of their last
// change, oldest first. It returns fewer than the limit if they would not fit into one answer. An
// effect that cannot be read is logged and left out. One read per page and status.
func (t *Tape) ListPendingEffects(ctx context.Context, q PendingQuery) ([]Effect, error) {
	return t.listPendingEffects(ctx, nil, q)
}

func (t *Tape) listPendingEffects(ctx context.Context, part *partScan, q PendingQuery) ([]Effect, error) {
	if q.Limit <= 0 {
		q.Limit = 200
	}
	both := q.Pending == q.Unknown
	var queues []runstore.IndexQuery
	page := min(q.Limit, runstore.MaxPage)
	if until := olderThan(q.OlderThan); (both || q.Pending) && !until.IsZero() {
		queues = append(queues, runstore.IndexQuery{Index: IndexPending, Until: until, Limit: page})
	}
	if both || q.Unknown {
		queues = append(queues, runstore.IndexQuery{Index: IndexUnknown, Until: runstore.EndOfTime, Limit: page})
	}
	// The pending effects are read first: an effect that becomes UNKNOWN in between is then in both
	// scans rather than in neither.
	return list(ctx, t, part, "effects", effectOf, part.entries(ctx, t.store, queues), q.Limit, func(e storedEffect) (Effect, bool) { return e.Effect, true })
}

// olderThan returns the latest time before bound, or the zero time if there is none or bound is
// zero.
func olderThan(bound time.Time) time.Time {
	if bound.IsZero() {
		return runstore.EndOfTime
	}
	if bound = clampTime(bound).Add(-runstore.TimePrecision); bound.After(time.Unix(0, 0)) {
		return bound
	}
	return time.Time{}
}

// merge merges streams of entries, each ordered by time, into one stream ordered by time. It stops
// at the first error.
func merge(streams []iter.Seq2[runstore.IndexEntry, error]) iter.Seq2[runstore.IndexEntry, error] {
	return func(yield func(runstore.IndexEntry, error) bool) {
		type head struct {
			entry runstore.IndexEntry
			next  func() (runstore.IndexEntry, error, bool)
		}
		var heads []head
		for _, s := range streams {
			next, stop := iter.Pull2(s)
			defer stop()
			heads = append(heads, head{next: next})
		}

		// advance reads the next entry of a stream into its head, and removes the stream at its
		// end.
		advance := func(i int) bool {
			entry, err, ok := heads[i].next()
			switch {
			case err != nil:
				yield(runstore.IndexEntry{}, err)
				return false
			case ok:
				heads[i].entry = entry
			default:
				heads = append(heads[:i], heads[i+1:]...)
			}
			return true
		}
		// Fill the heads in order. An empty stream is removed, and the next one moves up.
		for i := 0; i < len(heads); {
			n := len(heads)
			if !advance(i) {
				return
			}
			if len(heads) == n {
				i++
			}
		}
		for len(heads) > 0 {
			first := 0
			for i := range heads {
				if heads[i].entry.At.Before(heads[first].entry.At) {
					first = i
				}
			}
			if !yield(heads[first].entry, nil) || !advance(first) {
				return
			}
		}
	}
}
