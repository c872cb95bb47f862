package tape

import (
	"context"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// ListRunsToRecover returns up to limit (100 for 0 or less) runs that need a driver at now:
// RUNNABLE runs, WAITING runs with a delivered signal that they have not consumed, and RUNNING runs
// whose lease ended before now. The zero time means the store clock. It takes no lease, so several
// recoverers may get the same run; BeginRun and ResumeRun decide between them. It returns fewer
// than limit if they would not fit into one answer. A run that cannot be read is logged and left
// out. One read per page.
func (t *Tape) ListRunsToRecover(ctx context.Context, now time.Time, limit int) ([]Run, error) {
	return t.listRunsToRecover(ctx, nil, now, limit)
}

func (t *Tape) listRunsToRecover(ctx context.Context, part *partScan, now time.Time, limit int) ([]Run, error) {
	if limit <= 0 {
		limit = 100
	}
	if !now.IsZero() && !now.After(time.Unix(0, 0)) {
		return nil, nil // before all times of a store
	}
	now = clampTime(now)
	q := runstore.IndexQuery{
		Index: runstore.IndexRunnable, Until: now, Limit: min(limit, runstore.MaxPage),
	}
	return t.listRuns(ctx, part, q, limit, func(head runstore.Run) bool { return recoverable(head, now) })
}

// listRuns returns up to limit of the wanted runs of an index, as many as fit into an answer. A run
// that cannot be read is logged and left out, so that it does not hide the others.
func (t *Tape) listRuns(ctx context.Context, part *partScan, q runstore.IndexQuery, limit int, wanted func(head runstore.Run) bool) ([]Run, error) {
	var runs []Run
	size := 0
	for entry, err := range part.entries(ctx, t.store, []runstore.IndexQuery{q}) {
		if err != nil {
			return nil, err
		}
		if !wanted(entry.Head) {
			continue
		}
		run, err := runOf(entry.Head)
		if err == nil && run.size() > part.room() {
			err = errUnanswerable
		}
		if err != nil {
			t.leaveOut(ctx, "runs", entry.Run, "", err)
			continue
		}
		if size += run.size(); size > part.room() {
			break
		}
		if runs = append(runs, run); len(runs) == limit {
			part.took()
			break
		}
	}
	return runs, nil
}

// recoverable reports whether an entry of the runnable index belongs into the list: it is a run of
// Tape's, and if the caller's clock is used, its lease ended before that clock in milliseconds, the
// unit of both on the wire. The index itself counts a lease as ended at its expiry.
func recoverable(head runstore.Run, now time.Time) bool {
	if head.Summary.Version == 0 {
		return false
	}
	switch RunStatus(head.Status) {
	case RunRunnable, RunWaiting: // a WAITING run is in the index while it has a signal to consume
		return true
	case RunRunning:
		return now.IsZero() || head.ExpiresAt.UnixMilli() < now.UnixMilli()
	default:
		return false
	}
}
