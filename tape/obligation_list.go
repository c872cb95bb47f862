package tape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// ObligationQuery selects obligations of one run.
type ObligationQuery struct {
	Run runstore.RunID
	// Unresolved leaves out COMPENSATED and STUCK ones.
	Unresolved bool
	// Status, if positive, selects one status; Unresolved is then ignored.
	Status ObligationStatus
}

func (q ObligationQuery) wants(s ObligationStatus) bool {
	if q.Status > 0 {
		return s == q.Status
	}
	return !q.Unresolved || !s.final()
}

// ListObligations returns the obligations of a run, latest registration first, which is the order
// of unwinding. If they would not fit into one answer of 4 MiB, it leaves out the oldest; if the
// query selects what is to be undone (Unresolved, PENDING or COMMITTED), the error is runstore.ErrTooLarge then,
// because a caller that unwinds would leave them undone. An obligation that cannot be
// read is logged and left out. One read per page of the run's obligations.
func (t *Tape) ListObligations(ctx context.Context, q ObligationQuery) ([]Obligation, error) {
	if err := checkRun(q.Run); err != nil {
		return nil, err
	}
	// The keys are hashes, so every record has to be read. Memory is bounded: obligations with a
	// seq up to floor do not fit into the answer and are dropped.
	var kept []Obligation
	size, floor := 0, runstore.Seq(0)
	trim := func() {
		slices.SortFunc(kept, func(a, b Obligation) int { return cmp.Compare(b.Seq, a.Seq) })
		size = 0
		for i, o := range kept {
			if size+o.size() > maxAnswer {
				floor = o.Seq
				clear(kept[i:])
				kept = kept[:i]
				return
			}
			size += o.size()
		}
	}
	for rec, err := range runstore.Records(ctx, t.store, q.Run, obligationPrefix) {
		if errors.Is(err, runstore.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if rec.Created.Seq <= floor {
			continue
		}
		o, ok := listed(ctx, t, nil, "obligations", obligationOf, q.Run, rec)
		if !ok || !q.wants(o.Status) {
			continue
		}
		kept = append(kept, o.Obligation)
		if size += o.size(); size > maxAnswer+maxAnswer/4 { // each trim follows a megabyte of rows
			trim()
		}
	}
	open := q.Status <= 0 && q.Unresolved || q.Status == ObligationPending || q.Status == ObligationCommitted
	if trim(); floor > 0 && open {
		return nil, &runstore.InputError{
			Kind: runstore.ErrTooLarge, Field: "run_id",
			Problem: fmt.Sprintf("%q has obligations that do not fit into an answer of %d bytes. Resolve some, which ListUnresolvedObligations lists", q.Run, maxAnswer),
		}
	}
	return kept, nil
}

// UnresolvedQuery selects the obligations of all runs that need a worker or an operator.
type UnresolvedQuery struct {
	// Now is the time by which obligations are due, in whole milliseconds: an obligation that is
	// due within the millisecond is included. Zero means the store clock.
	Now time.Time
	// Limit is the maximal number of obligations; 0 or less means 500.
	Limit int
	// Pending selects the PENDING obligations that are due, and those of CommittedExpired.
	// CommittedExpired selects the COMMITTED ones whose claim has expired. Stuck selects the STUCK
	// ones. If no field is set, Pending is assumed.
	Pending, Stuck, CommittedExpired bool
}

// ListUnresolvedObligations returns obligations of all runs, ordered by their next attempt and then
// by their last change. If there are more than the limit, or than fit into one answer, it returns
// the ones that have waited longest: since they were due, their claim expired or they got stuck. An
// obligation that cannot be read is logged and left out. One read per page and queue.
func (t *Tape) ListUnresolvedObligations(ctx context.Context, q UnresolvedQuery) ([]Obligation, error) {
	return t.listUnresolvedObligations(ctx, nil, q)
}

func (t *Tape) listUnresolvedObligations(ctx context.Context, part *partScan, q UnresolvedQuery) ([]Obligation, error) {
	if q.Limit <= 0 {
		q.Limit = 500
	}
	q.Pending = q.Pending || !q.Stuck && !q.CommittedExpired
	wanted := map[ObligationStatus]bool{
		ObligationPending: q.Pending, ObligationCommitted: q.Pending || q.CommittedExpired, ObligationStuck: q.Stuck,
	}
	due, err := list(ctx, t, part, "obligations", obligationOf, part.entries(ctx, t.store, unresolved(q, wanted)), q.Limit, func(o storedObligation) (Obligation, bool) {
		return o.Obligation, wanted[o.Status]
	})
	slices.SortStableFunc(due, func(a, b Obligation) int {
		return cmp.Or(cmp.Compare(a.NextAttempt.UnixMilli(), b.NextAttempt.UnixMilli()), a.Time.Compare(b.Time))
	})
	return due, err
}

// unresolved returns the queues of the wanted obligations. The queue of due obligations is
// read first, so that a row that gets stuck in between appears in both rather than in neither.
func unresolved(q UnresolvedQuery, wanted map[ObligationStatus]bool) (queues []runstore.IndexQuery) {
	page := min(q.Limit, runstore.MaxPage)
	until := q.Now
	if !until.IsZero() {
		until = clampTime(until.Truncate(time.Millisecond).Add(time.Millisecond - runstore.TimePrecision))
	}
	if wanted[ObligationCommitted] && (until.IsZero() || until.After(time.Unix(0, 0))) {
		queues = append(queues, runstore.IndexQuery{Index: IndexObligations, Until: until, Limit: page})
	}
	if wanted[ObligationStuck] {
		queues = append(queues, runstore.IndexQuery{Index: IndexStuckObligations, Until: runstore.EndOfTime, Limit: page})
	}
	return queues
}
