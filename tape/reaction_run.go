package tape

import (
	"context"
	"fmt"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// matcherOwner is the owner and the reactor of the lease with which a reaction's run is created.
const matcherOwner = "matcher"

// maxBegun is the number of runs that one commit of a cursor decides on. It bounds the runs that a
// matcher begins again, without effect, when it takes a shard over before the next commit.
const maxBegun = 64

// pendingRuns is a write-ahead intent in a cursor's record: the runs of an AGENT reaction that the
// cursor's commit decided on.
type pendingRuns struct {
	App string              `json:"app"`
	At  []runstore.Position `json:"at"` // the positions of their entries, in order
}

// PendingRuns returns the number of runs that the shard has decided on and the caller has not begun
// yet (see [Tape.BeginReactionRun]).
func (c Cursor) PendingRuns() int {
	if c.pending == nil {
		return 0
	}
	return len(c.pending.At) - c.begun
}

// Settled reports whether the cursor's record names no runs to begin. If it names runs and they are
// begun, the next [Tape.Advance] removes them from the record.
func (c Cursor) Settled() bool { return c.pending == nil }

// rest returns the runs that are still to be begun.
func (c Cursor) rest() *pendingRuns {
	if c.PendingRuns() == 0 {
		return nil
	}
	return &pendingRuns{c.pending.App, c.pending.At[c.begun:]}
}

// BeginReactionRun creates the first of the cursor's pending runs and returns the cursor with one
// pending run less. The run's app is the reaction's AgentApp as of the commit that decided on the
// run, its invocation is react-ID-POSITION, and it has no user and no session. The run is RUNNING,
// under a lease that ends at once, so that ListRunsToRecover lists it for a driver to take.
//
// The run's id is derived from the reaction, the app and the entry. Of any number of calls one
// creates the run; the others leave it unchanged, whatever its state and holder. One round trip.
//
// A call creates the run again if the run was purged since: that of a matcher which was paused, while
// another one had the shard, until the run had been driven, had ended and was purged.
//
// Errors: those of runstore.RunStore.CreateRun. The call may be repeated after any of them.
func (t *Tape) BeginReactionRun(ctx context.Context, reaction string, at Cursor) (Cursor, error) {
	if at.PendingRuns() == 0 {
		return at, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "at", Problem: "has no pending run"}
	}
	create, err := reactionRun(reaction, at.pending.App, at.pending.At[at.begun])
	if err != nil {
		return at, err
	}
	if _, err = optimistic.Repeat(ctx, func() (runstore.Created, error) { return t.store.CreateRun(ctx, create) }); err != nil {
		return at, err
	}
	at.begun++
	return at, nil
}

// reactionRun returns the spec of the run that a reaction begins for an entry.
func reactionRun(reaction, app string, entry runstore.Position) (runstore.RunSpec, error) {
	req := BeginRunRequest{
		Key:   RunKey{App: app, Invocation: fmt.Sprintf("react-%s-%d", reaction, entry)},
		Owner: matcherOwner, Reactor: matcherOwner, TTL: runstore.MinTTL,
	}
	spec, err := req.lease()
	if err != nil {
		return runstore.RunSpec{}, err
	}
	return req.creation(spec)
}

// planRuns returns the runs of an AGENT reaction for the matches after a cursor, as many as one
// commit decides on, and the new position of the cursor. A run that cannot be created because of
// its names is refused before the commit: another definition of the reaction may fix that.
func planRuns(r Reaction, at Cursor, matches []Entry, to runstore.Position) (*pendingRuns, runstore.Position, error) {
	p := &pendingRuns{App: r.AgentApp}
	for _, e := range matches {
		if e.Position <= at.Position {
			continue
		}
		if len(p.At) == maxBegun {
			return p, p.At[maxBegun-1], nil
		}
		if _, err := reactionRun(r.ID, r.AgentApp, e.Position); err != nil {
			return nil, 0, err
		}
		p.At = append(p.At, e.Position)
	}
	if len(p.At) == 0 {
		return nil, to, nil
	}
	return p, to, nil
}
