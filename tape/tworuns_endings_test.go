package tape_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tapestore/tapestore/crossrun"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/runstore/admin"
	"github.com/tapestore/tapestore/tape"
)

// endings are what ends a driver's grant: another driver, an operator, and the driver itself.
var endings = map[string]func(ctx context.Context, s runstore.RunStore, lead tape.BeginRunResult) error{
	"taken over": func(ctx context.Context, s runstore.RunStore, _ tape.BeginRunResult) error {
		_, err := tape.New(s, nil).BeginRun(ctx, beginRequest("i"))
		return err
	},
	"resumed": func(ctx context.Context, s runstore.RunStore, lead tape.BeginRunResult) error {
		_, _, err := tape.New(s, nil).ResumeRun(ctx, tape.ResumeRunRequest{Run: lead.ID, Owner: "b"})
		return err
	},
	"cancelled": func(ctx context.Context, s runstore.RunStore, lead tape.BeginRunResult) error {
		_, err := tape.New(s, nil).EndRun(ctx, tape.EndRunRequest{Run: lead.ID, Status: tape.RunCancelled})
		return err
	},
	"ended": func(ctx context.Context, s runstore.RunStore, lead tape.BeginRunResult) error {
		_, err := tape.New(s, nil).EndRun(ctx, tape.EndRunRequest{Run: lead.ID, Status: tape.RunTerminal, Fence: lead.Lease.Fence()})
		return err
	},
	"parked": func(ctx context.Context, s runstore.RunStore, lead tape.BeginRunResult) error {
		_, _, err := tape.New(s, nil).AwaitSignal(ctx, tape.AwaitRequest{Run: lead.ID, Gate: "g", Fence: lead.Lease.Fence()})
		return err
	},
	"parked without a fence": func(ctx context.Context, s runstore.RunStore, lead tape.BeginRunResult) error {
		_, _, err := tape.New(s, nil).AwaitSignal(ctx, tape.AwaitRequest{Run: lead.ID, Gate: "g"})
		return err
	},
	"broken": func(ctx context.Context, s runstore.RunStore, lead tape.BeginRunResult) error {
		_, err := lease.Break(ctx, s, lease.BreakRequest{Run: lead.ID, Token: lead.Lease.Token, Operator: "ada", Reason: "test"})
		return err
	},
	purged: purgeRun,
	purgedAndBegun: func(ctx context.Context, s runstore.RunStore, lead tape.BeginRunResult) error {
		if err := purgeRun(ctx, s, lead); err != nil {
			return err
		}
		_, err := tape.New(s, nil).BeginRun(ctx, beginRequest("i"))
		return err
	},
}

// The endings that remove the run.
const (
	purged         = "purged"
	purgedAndBegun = "purged and begun again"
)

func purgeRun(ctx context.Context, s runstore.RunStore, lead tape.BeginRunResult) error {
	_, err := admin.Purge(ctx, s, admin.PurgeRequest{Run: lead.ID, Token: lead.Lease.Token, Preempt: true, Operator: "ada", Reason: "test"})
	return err
}

// fitsEnding reports whether a write of the driver may return err after that ending of its grant.
func fitsEnding(ending string, err error) bool {
	return errors.Is(err, runstore.ErrFenced) || errors.Is(err, runstore.ErrUnknownOutcome) ||
		ending == purged && errors.Is(err, tape.ErrNoSuchRun)
}

// checkNoStep checks that a run leads no step, or does not exist.
func checkNoStep(t *testing.T, s runstore.RunStore, run runstore.RunID) {
	t.Helper()
	left, err := s.ReadRecords(t.Context(), run, runstore.RecordQuery{Keys: []runstore.RecordKey{crossrun.IntentKey}})
	if len(left) > 0 || err != nil && !errors.Is(err, runstore.ErrNotFound) {
		t.Errorf("the run leads a step: %+v, %v", left, err)
	}
}
