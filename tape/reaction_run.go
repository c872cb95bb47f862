package tape

import (
	"context"
	"fmt"

	"github.com/tapestore/tapestore/runstore"
)

// matcherOwner is the owner of the lease with which a reaction's run is created, and its reactor.
const matcherOwner = "matcher"

// BeginReactionRun creates the run that an AGENT reaction asks for when it matches an entry: its app is
// r.AgentApp, its invocation react-ID-POSITION, and it has no user and no session. The run is RUNNING, under a
// lease that ends as it begins, so that ListRunsToRecover lists it for a driver to take.
//
// The run's id follows from the reaction and the entry: of any number of calls one creates the run, and all
// others leave it as it is, whoever drives it and whatever has become of it. One round trip.
//
// Errors: those of runstore.RunStore.CreateRun. After every one of them the call may be repeated.
func (t *Tape) BeginReactionRun(ctx context.Context, r Reaction, e Entry) error {
	req := BeginRunRequest{
		Key:   RunKey{App: r.AgentApp, Invocation: fmt.Sprintf("react-%s-%d", r.ID, e.Position)},
		Owner: matcherOwner, Reactor: matcherOwner, TTL: runstore.MinTTL,
	}
	spec, err := req.lease()
	if err != nil {
		return err
	}
	create, err := req.creation(spec)
	if err != nil {
		return err
	}
	_, err = retry(ctx, func() (runstore.Created, error) { return t.store.CreateRun(ctx, create) })
	return err
}
