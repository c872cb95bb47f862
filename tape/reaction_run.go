package tape

import (
	"context"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// matcherOwner is the owner of the lease with which a reaction's run is created, and its reactor.
const matcherOwner = "matcher"

// maxBegun is 64: how many runs one commit of a cursor decides on, and so how many a matcher begins again, which leaves
// them as they are, if it takes a shard over before the next commit.
const maxBegun = 64

// pendingRuns is a write-ahead intent: the runs of an AGENT reaction that were decided on, as of the commit of a cursor.
type pendingRuns struct {
	App string              `json:"app"`
	At  []runstore.Position `json:"at"` // of their entries, in order
}

// PendingRuns returns how many runs the shard has decided on and not begun yet, as far as the caller has begun them
// (see [Tape.BeginReactionRun]).
func (c Cursor) PendingRuns() int {
	if c.pending == nil {
		return 0
	}
	return len(c.pending.At) - c.begun
}

// Settled reports whether the cursor's record names no runs to begin. Where it does, and they are begun, the next
// [Tape.Advance] takes them out of the record.
func (c Cursor) Settled() bool { return c.pending == nil }

// rest returns the runs that are still to begin.
func (c Cursor) rest() *pendingRuns {
	if c.PendingRuns() == 0 {
		return nil
	}
	return &pendingRuns{c.pending.App, c.pending.At[c.begun:]}
}

// BeginReactionRun creates the first of the cursor's pending runs of a reaction, and returns the cursor with one pending
// run less. The run's app is the reaction's AgentApp as of the commit that decided on the run, its invocation
// react-ID-POSITION, and it has no user and no session. The run is RUNNING, under a lease that ends as it begins, so that
// ListRunsToRecover lists it for a driver to take.
//
// The run's id follows from the reaction, the app and the entry: of any number of calls one creates the run, and all
// others leave it as it is, whoever drives it and whatever has become of it. One round trip.
//
// Errors: those of runstore.RunStore.CreateRun. After every one of them the call may be repeated.
func (t *Tape) BeginReactionRun(ctx context.Context, reaction string, at Cursor) (Cursor, error) {
	if at.PendingRuns() == 0 {
		return at, &runstore.InputError{Kind: runstore.ErrInvalid, Field: "at", Problem: "has no pending run"}
	}
	create, err := reactionRun(reaction, at.pending.App, at.pending.At[at.begun])
	if err != nil {
		return at, err
	}
	if _, err = retry(ctx, func() (runstore.Created, error) { return t.store.CreateRun(ctx, create) }); err != nil {
		return at, err
	}
	at.begun++
	return at, nil
}

// reactionRun returns the run of an app that a reaction begins for an entry.
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

// planRuns returns the runs of an AGENT reaction that matches behind a cursor are for, as many as one commit decides on,
// and the position that the cursor then has. A run that cannot be created, by its names, is refused before it is
// decided on: another definition of the reaction may mend that.
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
