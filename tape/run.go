package tape

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// RunStatus is the state of a run. A store keeps it as its Status. Numbers without a name here are
// stored unchanged.
type RunStatus int32

// The statuses of a run.
const (
	RunUnspecified  RunStatus = 0
	RunRunnable     RunStatus = 1
	RunRunning      RunStatus = 2
	RunWaiting      RunStatus = 3
	RunTerminal     RunStatus = 4
	RunFailed       RunStatus = 5
	RunCompensating RunStatus = 6
	RunStuck        RunStatus = 7
	RunCancelled    RunStatus = 8
)

// writes returns the writes that set a run's status. A RUNNING run stays in the runnable index
// permanently: the store leaves it out while its lease is live, so no heartbeat has to move it.
func (s RunStatus) writes() runstore.Writes {
	stored := runstore.Status(s)
	runnable := runstore.Never()
	if s == RunRunning || s == RunRunnable {
		runnable = runstore.After(0)
	}
	return runstore.Writes{Status: &stored, Runnable: runnable}
}

// RunKey identifies a run: one invocation of an agent.
type RunKey struct {
	App, User, Session, Invocation string
}

// ID returns the run's id: a UUID of version 4 by its form, derived from the key. So BeginRun needs
// no lookup: creating the run in the store decides atomically whether it exists.
func (k RunKey) ID() runstore.RunID {
	h := sha256.New()
	for _, part := range []string{k.App, k.User, k.Session, k.Invocation} {
		// The length before each part keeps ("ab", "c") and ("a", "bc") apart.
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	id := h.Sum(nil)[:16]
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return runstore.RunID(fmt.Sprintf("%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16]))
}

// Identity describes the principal of a run. Only Scopes has a meaning here, in BeginEffect; the
// rest is stored and returned.
type Identity struct {
	Tenant, Actor, Subject, AgentID, InstanceID, GatewayRoute string

	Scopes []string
	Labels map[string]string
}

// Run is the current state of a run.
type Run struct {
	ID runstore.RunID
	RunKey
	Identity
	Status RunStatus
	// LastSeq is the seq of the last journal entry, 0 before the first.
	LastSeq runstore.Seq
	// LeaseOwner is the holder of the lease; empty if there is none, or if the holder has no name.
	LeaseOwner string
	// LeaseExpiresAt is the expiry of the last grant, even after its end.
	LeaseExpiresAt time.Time
	// Token is the fencing token of the last grant, current or ended; 0 before the first.
	Token runstore.Token
	// Reactor is the role of the current holder.
	Reactor   string
	StartedAt time.Time
	// EndedAt is when the run was last ended; zero if it never was.
	EndedAt time.Time
	// WaitingOn is the gate at which the run is parked.
	WaitingOn string
	// Detail is the text that EndRun stored.
	Detail string
}

// size returns an upper bound of the bytes that the run takes in an answer, which leaves out
// Detail.
func (r Run) size() int {
	const numbers, element = 256, 24 // numbers, with the tags and lengths of all fields; and those of one element
	size := numbers + len(r.ID)
	for _, text := range []string{
		r.App, r.User, r.Session, r.Invocation, r.Tenant, r.Actor, r.Subject, r.AgentID, r.InstanceID,
		r.GatewayRoute, r.LeaseOwner, r.WaitingOn,
	} {
		size += len(text)
	}
	for _, scope := range r.Scopes {
		size += element + len(scope)
	}
	for key, value := range r.Labels {
		size += element + len(key) + len(value)
	}
	return size
}

// unnamed is the owner of a lease whose caller gave no name, because a store requires one.
const unnamed = "unnamed"

// summary is the stored form of the part of a run that the store does not keep itself.
type summary struct {
	App        string            `json:"app,omitempty"`
	User       string            `json:"user,omitempty"`
	Session    string            `json:"session,omitempty"`
	Invocation string            `json:"invocation,omitempty"`
	Tenant     string            `json:"tenant,omitempty"`
	Actor      string            `json:"actor,omitempty"`
	Subject    string            `json:"subject,omitempty"`
	AgentID    string            `json:"agent,omitempty"`
	InstanceID string            `json:"instance,omitempty"`
	Route      string            `json:"route,omitempty"`
	Scopes     []string          `json:"scopes,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Gate       string            `json:"gate,omitempty"`
	// EndedNow reports that the commit that wrote this value ended the run: EndedAt is the time of
	// that commit, which is not known before it. A value that is written again for another reason
	// contains the time itself.
	EndedNow bool  `json:"ended_now,omitempty"`
	EndedAt  int64 `json:"ended_at_us,omitempty"`
}

// encode returns the stored form of the summary. endedNow reports that the commit that writes it
// ends the run.
func (r Run) encode(endedNow bool) []byte {
	s := summary{
		App: r.App, User: r.User, Session: r.Session, Invocation: r.Invocation,
		Tenant: r.Tenant, Actor: r.Actor, Subject: r.Subject, AgentID: r.AgentID, InstanceID: r.InstanceID,
		Route: r.GatewayRoute, Scopes: r.Scopes, Labels: r.Labels, Gate: r.WaitingOn,
		EndedNow: endedNow,
	}
	if !endedNow {
		s.EndedAt = runstore.Micros(r.EndedAt)
	}
	return encode(s, r.Detail)
}

// runOf returns the state of a run from its head. A run without a summary is not one of Tape's:
// ErrNoSuchRun.
func runOf(head runstore.Run) (Run, error) {
	if head.Summary.Version == 0 {
		return Run{}, ErrNoSuchRun
	}
	var s summary
	r := Run{
		ID: head.ID, Status: RunStatus(head.Status), LastSeq: head.LastSeq,
		LeaseExpiresAt: head.ExpiresAt, StartedAt: head.CreatedAt, Token: head.Token, Reactor: string(head.Holder.Reactor),
	}
	if err := decode(fmt.Sprintf("the summary of run %q", head.ID), head.Summary.Value, &s, &r.Detail); err != nil {
		return Run{}, err
	}
	r.RunKey = RunKey{App: s.App, User: s.User, Session: s.Session, Invocation: s.Invocation}
	r.Identity = Identity{
		Tenant: s.Tenant, Actor: s.Actor, Subject: s.Subject, AgentID: s.AgentID, InstanceID: s.InstanceID,
		GatewayRoute: s.Route, Scopes: s.Scopes, Labels: s.Labels,
	}
	r.WaitingOn, r.EndedAt = s.Gate, runstore.FromMicros(s.EndedAt)
	if s.EndedNow {
		r.EndedAt = head.Summary.Updated.Time
	}
	if head.Holder.Owner != unnamed {
		r.LeaseOwner = string(head.Holder.Owner)
	}
	return r, nil
}

// GetRun returns the state of a run. One read.
//
// Errors: ErrNoSuchRun, also for an empty id.
func (t *Tape) GetRun(ctx context.Context, id runstore.RunID) (Run, error) {
	if id == "" {
		return Run{}, ErrNoSuchRun
	}
	run, _, err := t.readRun(ctx, id)
	return run, err
}

// readRun returns a run and the version of its summary.
func (t *Tape) readRun(ctx context.Context, id runstore.RunID) (Run, runstore.Version, error) {
	if err := checkRun(id); err != nil {
		return Run{}, 0, err
	}
	head, err := t.store.GetRun(ctx, id)
	if err != nil {
		return Run{}, 0, noSuchRun(err)
	}
	run, err := runOf(head)
	return run, head.Summary.Version, err
}
