package inspector

import (
	"errors"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// headView is the head of a run.
type headView struct {
	Ref    string `json:"ref"`
	ID     string `json:"id"`
	Status string `json:"status"`
	// Level is how urgent the status is: "", "warn" or "bad".
	Level    string    `json:"level,omitempty"`
	Unlisted bool      `json:"unlisted,omitempty"`
	Created  time.Time `json:"created"`
	Runnable time.Time `json:"runnable,omitzero"`
	LastSeq  int64     `json:"last_seq"`
	Lease    leaseView `json:"lease"`
	Tape     *tapeView `json:"tape,omitempty"`
	// Note says why the summary cannot be read as one of Tape's.
	Note string `json:"note,omitempty"`
}

// tapeView is what Tape's summary says about a run.
type tapeView struct {
	App        string    `json:"app"`
	User       string    `json:"user"`
	Session    string    `json:"session"`
	Invocation string    `json:"invocation"`
	Tenant     string    `json:"tenant,omitempty"`
	Actor      string    `json:"actor,omitempty"`
	Agent      string    `json:"agent,omitempty"`
	Ended      time.Time `json:"ended,omitzero"`
	WaitingOn  string    `json:"waiting_on,omitempty"`
	Detail     string    `json:"detail,omitempty"`
}

// leaseView is the lease of a run. Durations are in seconds.
type leaseView struct {
	State     string    `json:"state"` // "live", "expired" or "free"
	Token     int64     `json:"token"`
	TokenText string    `json:"token_text"`
	Owner     string    `json:"owner,omitempty"`
	Reactor   string    `json:"reactor,omitempty"`
	Strict    bool      `json:"strict,omitempty"`
	Granted   time.Time `json:"granted,omitzero"`
	Renewed   time.Time `json:"renewed,omitzero"`
	Expires   time.Time `json:"expires,omitzero"`
	TTL       float64   `json:"ttl_seconds,omitempty"`
	MaxStall  float64   `json:"max_stall_seconds,omitempty"`
	Progress  time.Time `json:"progressed,omitzero"`
	Former    string    `json:"former,omitempty"`
	From      string    `json:"preempted_from,omitempty"`
	Reason    string    `json:"preempted_reason,omitempty"`
}

// The states of a lease.
const (
	stateLive    = "live"
	stateExpired = "expired"
	stateFree    = "free"
)

// leaseState returns the state of a run's lease at now, a time of the store clock.
func leaseState(head runstore.Run, now time.Time) string {
	switch {
	case head.Holder.Token == 0:
		return stateFree
	case head.Live(now):
		return stateLive
	default:
		return stateExpired
	}
}

func viewLease(head runstore.Run, now time.Time) leaseView {
	h := head.Holder
	v := leaseView{State: leaseState(head, now), Token: int64(head.Token), TokenText: head.Token.String(), Expires: head.ExpiresAt}
	if h.Token == 0 {
		return v
	}
	v.Owner, v.Reactor, v.Strict = brief(string(h.Owner)), brief(string(h.Reactor)), h.Strict
	v.Granted, v.Renewed, v.Progress = h.GrantedAt, h.RenewedAt, h.ProgressedAt
	v.TTL, v.MaxStall = h.TTL.Seconds(), h.MaxStall.Seconds()
	if h.Former != runstore.EndNone {
		v.Former = h.Former.String()
	}
	v.From, v.Reason = brief(string(h.Preempted.From)), brief(h.Preempted.Reason)
	return v
}

func viewHead(head runstore.Run, now time.Time) headView {
	v := headView{
		Ref: toRef(string(head.ID)), ID: shown(string(head.ID)), Unlisted: head.Unlisted, Created: head.CreatedAt,
		Runnable: head.RunnableAt, LastSeq: int64(head.LastSeq), Lease: viewLease(head, now),
	}
	run, err := tape.RunOf(head)
	if err != nil { // the status has a meaning that only the program knows to which the run belongs
		v.Status = fmt.Sprintf("status %d", head.Status)
		if !errors.Is(err, tape.ErrNoSuchRun) {
			v.Note = "the summary record is not in Tape's format"
		}
		return v
	}
	v.Status, v.Level = run.Status.String(), statusLevel(run.Status)
	v.Tape = &tapeView{
		App: brief(run.App), User: brief(run.User), Session: brief(run.Session), Invocation: brief(run.Invocation), Tenant: brief(run.Tenant),
		Actor: brief(run.Actor), Agent: brief(run.AgentID), Ended: run.EndedAt, WaitingOn: brief(run.WaitingOn), Detail: brief(run.Detail),
	}
	return v
}

// The levels of what needs a person's attention.
const (
	levelWarn = "warn"
	levelBad  = "bad"
)

func statusLevel(s tape.RunStatus) string {
	switch s {
	case tape.RunStuck, tape.RunFailed:
		return levelBad
	case tape.RunCompensating:
		return levelWarn
	default:
		return ""
	}
}

// stalledAfter, 5 min, is how long a holder without a MaxStall may renew without a commit before the
// page points it out: a call to a model rarely takes longer.
const stalledAfter = 5 * time.Minute

// headProblems returns what needs attention in the head of a run that has had no driver since waiting.
func headProblems(head runstore.Run, v headView, waiting, now time.Time) (all []problemView) {
	add := func(level, what, why string, since time.Time) {
		all = append(all, problemView{Level: level, What: what, Why: why, Since: since})
	}
	h := head.Holder
	stall := h.MaxStall
	if stall == 0 {
		stall = stalledAfter
	}
	switch v.Lease.State {
	case stateExpired:
		add(levelWarn, "lease", "it has expired, and no other holder has taken the run over", head.ExpiresAt)
	case stateLive:
		if now.Sub(h.ProgressedAt) > stall {
			add(levelWarn, "holder", "it renews the lease, and commits nothing", h.ProgressedAt)
		}
	case stateFree:
		if !waiting.IsZero() && now.Sub(waiting) > lateAfter {
			add(levelWarn, "run", "it wants a driver, and none has acquired the lease", waiting)
		}
	}
	if v.Level != "" {
		add(v.Level, "status", "the run is "+v.Status, head.Summary.Updated.Time)
	}
	if v.Tape != nil && v.Tape.WaitingOn != "" {
		add("", "gate", "the run waits at the gate "+v.Tape.WaitingOn, head.Summary.Updated.Time)
	}
	return all
}
