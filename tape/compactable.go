package tape

import (
	"context"
	"slices"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// IndexEnded is the cross-run queue of ended runs that were never compacted, ordered by their end.
// The entry belongs to the summary record: EndRun adds it, the last commit of a compaction removes
// it. A run that is begun again may stay in the queue, so readers check its status.
const IndexEnded runstore.IndexName = "run.ended"

// ended reports whether a run of this status may be compacted.
func (s RunStatus) ended() bool {
	return slices.Contains([]RunStatus{RunTerminal, RunFailed, RunCancelled, RunStuck}, s)
}

// ListCompactableRuns returns up to limit (100 for 0 or less) runs that ended before a time,
// earliest first: runs that are TERMINAL, FAILED, CANCELLED or STUCK and were never compacted. The
// zero time means the store clock. It does not check effects and obligations, so CompactRun may
// still refuse a listed run. It returns fewer than limit if they would not fit into one answer. A
// run that cannot be read is logged and left out. One read per page.
func (t *Tape) ListCompactableRuns(ctx context.Context, before time.Time, limit int) ([]Run, error) {
	return t.listCompactableRuns(ctx, nil, before, limit)
}

func (t *Tape) listCompactableRuns(ctx context.Context, part *partScan, before time.Time, limit int) ([]Run, error) {
	if limit <= 0 {
		limit = 100
	}
	until := time.Time{}
	if !before.IsZero() {
		if until = olderThan(before); until.IsZero() {
			return nil, nil // before all times of a store
		}
	}
	scan := runstore.IndexQuery{Index: IndexEnded, Until: until, Limit: min(limit, runstore.MaxPage), Heads: true}
	return t.listRuns(ctx, part, scan, limit, func(head runstore.Run) bool { return RunStatus(head.Status).ended() })
}
