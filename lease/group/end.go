package group

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// The kinds of the events.
const (
	// EventJoined begins a membership; it is in the member's run, written under its token. Its data are
	// a [Joined] as JSON.
	EventJoined = "group.joined"
	// EventEnded ends a membership; it is in the member's run. Its data are an [Ended] as JSON.
	EventEnded = "group.ended"
	// EventRebalanced changes the owners of shards; it is in the group's run. Its data are a
	// [Rebalanced] as JSON.
	EventRebalanced = "group.rebalanced"
)

// Reason is how a membership ended.
type Reason string

// The reasons.
const (
	// Released: the member left.
	Released Reason = "released"
	// Expired: the member did not renew its lease in time, because it died, was paused or lost the
	// store; or the lease was revoked, for example by a new epoch of the store.
	Expired Reason = "expired"
	// Preempted: a process took the name over while the lease was live, or an operator did.
	Preempted Reason = "preempted"
)

// Joined is the data of an event [EventJoined].
type Joined struct {
	Group  string `json:"group"`
	Member string `json:"member"`
}

// Ended is the data of an event [EventEnded].
type Ended struct {
	Group  string `json:"group"`
	Member string `json:"member"`
	Reason Reason `json:"reason"`
	// Token is the token of the membership that ended. The event itself is written under another one,
	// unless the reason is Released.
	Token runstore.Token `json:"token"`
}

// end adds the event that ends a membership. In the same step the caller removes the record of the
// membership, or replaces it by that of the next one.
func (g *Group) end(w *runstore.Writes, member string, reason Reason, token runstore.Token) {
	w.Append(EventEnded, encode(Ended{Group: g.name, Member: member, Reason: reason, Token: token}))
}

// encode returns the JSON of a value that always has one.
func encode(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // unreachable: the values have no cycles, channels or functions
	}
	return data
}

// reasonOf returns why the membership of a record ended whose lease is not live in head.
func reasonOf(head runstore.Run, record runstore.Record) Reason {
	if head.Holder.Token > record.Updated.Token && head.Holder.Former == runstore.EndPreempted {
		return Preempted // by a holder that is no member, such as an operator's command
	}
	return Expired
}

const (
	// reaper is the owner and the reactor of the lease under which a dead member is removed.
	reaper = "group-reaper"
	// reapSpread is within which time after the first sight of a dead member each of the others may
	// remove it. The first removal is announced, so that few try.
	reapSpread = time.Second
	// maxReaps bounds the removals between two reads: a removal takes two requests, and rebalancing
	// waits for it.
	maxReaps = 10
)

// deadID identifies the membership of a record.
type deadID struct {
	run     runstore.RunID
	version runstore.Version
}

// reapSchedule holds when, on the store clock, this process removes which dead member.
type reapSchedule map[deadID]time.Time

// reap removes the dead members that are due, and returns the time until the next one is.
func (g *Group) reap(ctx context.Context, s reapSchedule, v view) (next time.Duration) {
	seen, reaps := map[deadID]bool{}, 0
	next = noBound
	for _, d := range v.dead {
		id := deadID{d.head.ID, d.record.Version}
		seen[id] = true
		if due, scheduled := s[id]; !scheduled || due.Sub(v.at) > reapSpread { // the clock was set back
			s[id] = v.at.Add(rand.N(reapSpread))
		}
		wait := s[id].Sub(v.at)
		if wait <= 0 && reaps < maxReaps {
			reaps++
			g.remove(ctx, d)
			wait = reapSpread/2 + rand.N(reapSpread/2) // if it is still there
			s[id] = v.at.Add(wait)
		}
		next = min(next, max(wait, 0))
	}
	for id := range s {
		if !seen[id] {
			delete(s, id)
		}
	}
	if reaps > 0 {
		g.announce(ctx)
	}
	return next
}

// remove ends the membership of a dead member: its event and the removal of its record are the
// writes of a grant, which the store makes only if the member's lease is not live at that moment, and
// only if its record is as it was read. So of any number of processes one succeeds, and none if the
// member renewed its lease late. The grant lasts for the shortest time that there is.
//
// An error needs no repeat: if the grant was made, the record is gone.
func (g *Group) remove(ctx context.Context, d dead) {
	ctx, cancel := g.attempt(ctx)
	defer cancel()
	var w runstore.Writes
	g.end(&w, d.name, reasonOf(d.head, d.record), d.record.Updated.Token)
	w.Delete(memberKey)
	granted, err := g.store.AcquireLease(ctx, runstore.AcquireRequest{
		Run:       d.head.ID,
		LeaseSpec: runstore.LeaseSpec{Owner: reaper, Reactor: reaper, TTL: runstore.MinTTL, Grant: runstore.NewGrantID()},
		Guards:    []runstore.Guard{runstore.AtToken(d.head.Token), runstore.AtVersion(memberKey, d.record.Version)},
		Writes:    w,
	})
	switch {
	case err == nil:
		// The release wakes a process that waits for the name. Without it the lease expires at once.
		_, err = g.store.ReleaseLease(ctx, runstore.ReleaseRequest{Fence: granted.Fence()})
	case errors.Is(err, runstore.ErrConflict), errors.Is(err, runstore.ErrLeaseHeld):
		return // another process was first, or the member renewed its lease
	}
	if err != nil && ctx.Err() == nil {
		g.opts.Logger.Debug("group: a dead member was not removed, or the lease not released", "run", d.head.ID, "error", err)
	}
}
