package tape

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tapestore/tapestore/internal/optimistic"
	"github.com/tapestore/tapestore/runstore"
)

// BeginRunRequest is the input of BeginRun.
type BeginRunRequest struct {
	Key RunKey
	// Owner names the driver; it may be empty.
	Owner string
	// Reactor is the role in which the driver holds the lease: "recovery", say. Empty means "agent".
	// Under a fence the lease keeps the role that it was granted for.
	Reactor string
	// TTL is how long the lease lasts. 0 or less means two minutes; more than runstore.MaxTTL means
	// MaxTTL.
	TTL time.Duration
	// Identity is stored with a new run and ignored for one that exists.
	Identity Identity
	// Takeover is TakeAny by default.
	Takeover Takeover
	// Fence, if presented, must be the run's current grant. The run then continues under it, and no
	// lease is taken away.
	Fence runstore.Fence
	// Admit, unless it is nil, decides by the identity of a run that exists whether BeginRun may
	// continue it. It is called before anything is changed; BeginRun returns its error. A run keeps
	// its identity.
	Admit func(Identity) error
}

// BeginRunResult is the result of BeginRun.
type BeginRunResult struct {
	ID runstore.RunID
	// Resumed reports whether the run existed.
	Resumed bool
	// LastSeq is 0 for a new run, otherwise the run's last seq at the grant. For a run that is
	// TERMINAL or STUCK, and for a heartbeat, it is the last seq as read.
	LastSeq runstore.Seq
	Status  RunStatus
	// Lease is the grant; zero for a run that is TERMINAL or STUCK.
	Lease runstore.Lease
}

// agent is the default reactor.
const agent runstore.Reactor = "agent"

// BeginRun begins a run or takes over a run that exists. A new run is created with its lease and
// first journal entry in one round trip; of several racing calls exactly one creates it. A run that
// exists becomes RUNNING and its lease goes to the caller, even if another driver holds it: that
// driver's grant is ended and its later writes are fenced. A run that is TERMINAL or STUCK is
// returned unchanged. Two round trips for a run that exists.
//
// Errors: runstore.ErrFenced for a fence that is not current; runstore.ErrLeaseHeld if Takeover
// does not allow to end the live lease.
func (t *Tape) BeginRun(ctx context.Context, req BeginRunRequest) (BeginRunResult, error) {
	spec, err := req.lease()
	if err != nil {
		return BeginRunResult{}, err
	}
	id := req.Key.ID()
	if !req.Fence.IsZero() {
		if err := t.admitExisting(ctx, id, req.Admit); err != nil {
			return BeginRunResult{}, err
		}
		run, lease, err := t.renew(ctx, id, req.Fence, spec.TTL)
		return BeginRunResult{ID: id, Resumed: true, LastSeq: run.LastSeq, Status: run.Status, Lease: lease}, err
	}
	create, err := req.creation(spec)
	if err != nil {
		return BeginRunResult{}, err
	}
	created, err := optimistic.Repeat(ctx, func() (runstore.Created, error) { return t.store.CreateRun(ctx, create) })
	if err != nil {
		return BeginRunResult{}, err
	}
	if created.New {
		return BeginRunResult{ID: id, Status: RunRunning, Lease: created.Lease}, nil
	}
	return t.rebegin(ctx, req, created.Run, spec)
}

// admitExisting returns the error of admit for a run; nil if there is no admit.
func (t *Tape) admitExisting(ctx context.Context, id runstore.RunID, admit func(Identity) error) error {
	if admit == nil {
		return nil
	}
	run, _, err := t.readRun(ctx, id)
	if err != nil {
		return err
	}
	return admit(run.Identity)
}

// creation returns the spec of the run that BeginRun creates if there is none of the key: with its
// lease, its first journal entry and its entry in the session's index.
func (req BeginRunRequest) creation(lease runstore.LeaseSpec) (runstore.RunSpec, error) {
	id := req.Key.ID()
	fresh := Run{ID: id, RunKey: req.Key, Identity: req.Identity}
	entry, value := fresh.entry("running"), fresh.encode(false)
	whole := []field{
		{"scopes", string(compactJSON(req.Identity.Scopes))}, {"labels", string(compactJSON(req.Identity.Labels))},
	}
	if err := checkSize("the names of a run", len(value), MaxRunNames, append(whole, req.fields()...)...); err != nil {
		return runstore.RunSpec{}, err
	}
	begun := RunRunning.writes()
	create := runstore.RunSpec{ID: id, Status: *begun.Status, Runnable: begun.Runnable, Lease: &lease}
	create.Writes.Append(kindRun, entry)
	create.Writes.Put(grantKey, encode(storedGrant{ID: string(lease.Grant)}))
	putSummary(&create.Writes, value, runstore.Place{Index: sessionIndex(req.Key), At: runstore.After(0)})
	return create, nil
}

// rebegin takes over a run that exists; head is the run as it was read.
func (t *Tape) rebegin(ctx context.Context, req BeginRunRequest, head runstore.Run, spec runstore.LeaseSpec) (BeginRunResult, error) {
	var lost error
	for range optimistic.MaxAttempts {
		found, err := runOf(head)
		if err != nil {
			return BeginRunResult{}, err
		}
		if found.RunKey != req.Key {
			return BeginRunResult{}, refuse(ErrRefused, "begin_run: run %s belongs to another key", head.ID)
		}
		if req.Admit != nil {
			if err := req.Admit(found.Identity); err != nil {
				return BeginRunResult{}, err
			}
		}
		result := BeginRunResult{ID: head.ID, Resumed: true, LastSeq: head.LastSeq, Status: found.Status}
		if found.Status == RunTerminal || found.Status == RunStuck {
			return result, nil
		}
		granted, err := t.acquire(ctx, head, spec, acquisition{why: "begin run by ", takeover: req.Takeover, revives: true})
		if err == nil {
			result.Lease, result.Status, result.LastSeq = granted.Lease, RunRunning, granted.Committed.LastSeq
			return result, nil
		}
		if !errors.Is(err, runstore.ErrConflict) {
			return BeginRunResult{}, err
		}
		lost = err
		if head, err = t.store.GetRun(ctx, head.ID); err != nil {
			return BeginRunResult{}, noSuchRun(err)
		}
	}
	return BeginRunResult{}, lost
}

func (req BeginRunRequest) lease() (runstore.LeaseSpec, error) {
	if err := checkText(req.fields()...); err != nil {
		return runstore.LeaseSpec{}, err
	}
	return leaseSpec(req.Owner, req.Reactor, req.TTL)
}

// leaseSpec returns the lease that a driver requests, with a fresh grant id, so that a repeat after
// a lost reply is recognised.
func leaseSpec(owner, reactor string, ttl time.Duration) (runstore.LeaseSpec, error) {
	for _, f := range []field{{"lease_owner", owner}, {"reactor", reactor}} {
		if err := checkText(f); err != nil {
			return runstore.LeaseSpec{}, err
		}
		if err := checkLength(f.name, f.text, runstore.MaxOwner); err != nil {
			return runstore.LeaseSpec{}, err
		}
	}
	if owner == "" {
		owner = unnamed
	}
	return runstore.LeaseSpec{
		Owner: runstore.Owner(owner), Reactor: cmp.Or(runstore.Reactor(reactor), agent), TTL: leaseTTL(ttl), Grant: runstore.NewGrantID(),
	}, nil
}

func (req BeginRunRequest) fields() []field {
	id := req.Identity
	fields := []field{
		{"app_name", req.Key.App}, {"user_id", req.Key.User}, {"session_id", req.Key.Session},
		{"invocation_id", req.Key.Invocation}, {"lease_owner", req.Owner},
		{"tenant_id", id.Tenant}, {"actor", id.Actor}, {"subject", id.Subject}, {"agent_id", id.AgentID},
		{"aiplex_instance_id", id.InstanceID}, {"gateway_route", id.GatewayRoute},
	}
	for _, s := range id.Scopes {
		fields = append(fields, field{"scopes", s})
	}
	for k, v := range id.Labels {
		fields = append(fields, field{"labels", k}, field{"labels", v})
	}
	return fields
}

// clip truncates text to a limit in bytes, at a character boundary.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return strings.Clone(text[:limit])
}
