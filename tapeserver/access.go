package tapeserver

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tapestore/tapestore/internal/clientlimit"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// Every call is authenticated before its request is read. Its role is checked then too, and its
// tenant once the request is known. Invariants:
//
//  1. A method without an entry in accesses is refused. A test compares the entries with the
//     descriptors.
//  2. A principal that is limited to tenants calls only methods that name one run. The run's tenant is
//     read from the store for each request: a run that does not exist and one of another tenant are
//     refused alike. A run keeps its tenant, so the answer holds for the rest of the call.
//  3. BeginRun names a tenant and may create its run: package tape checks the tenant of a run that
//     exists, before anything is changed.
//  4. A stream ends when its credentials do: they are checked again while it is open.
//  5. A refusal contains no credential.

// subjectOfCall is what the request of a method concerns.
type subjectOfCall int

const (
	// severalRuns: the method concerns several runs, or what runs share, such as sessions, values,
	// reactions and tasks. Principals that are limited to tenants are refused.
	severalRuns subjectOfCall = iota
	// oneRun: the field run_id names the run.
	oneRun
	// newRun: the field tenant_id names the tenant, and the run may exist.
	newRun
	// noRun: the method concerns the server.
	noRun
)

// access is what a method needs.
type access struct {
	role    auth.Role
	subject subjectOfCall
}

// accesses are the methods of tape.v1.Tape with the roles and subjects of their calls.
var accesses = map[string]access{
	"GetRun": {auth.Read, oneRun}, "GetDecision": {auth.Read, oneRun}, "GetEffect": {auth.Read, oneRun},
	"ListObligations": {auth.Read, oneRun}, "AdmitBudget": {auth.Read, oneRun}, "SubscribeRun": {auth.Read, oneRun},

	"ListRunsToRecover": {auth.Read, severalRuns}, "ListPendingEffects": {auth.Read, severalRuns},
	"ListEffectsToDispatch": {auth.Read, severalRuns}, "ListUnresolvedObligations": {auth.Read, severalRuns},
	"ListCompactableRuns": {auth.Read, severalRuns}, "ListReactions": {auth.Read, severalRuns}, "ListTasks": {auth.Read, severalRuns},
	"SubscribeEvents": {auth.Read, severalRuns}, "SubscribeBySubject": {auth.Read, severalRuns},
	"GetValue": {auth.Read, severalRuns}, "WatchValue": {auth.Read, severalRuns},
	"GetSession": {auth.Read, severalRuns}, "ListSessions": {auth.Read, severalRuns},

	"BeginRun":  {auth.Drive, newRun},
	"ResumeRun": {auth.Drive, oneRun}, "EndRun": {auth.Drive, oneRun}, "RecordDecision": {auth.Drive, oneRun},
	"BeginEffect": {auth.Drive, oneRun}, "CompleteEffect": {auth.Drive, oneRun}, "ReconcileEffect": {auth.Drive, oneRun},
	"ClaimEffectDispatch": {auth.Drive, oneRun}, "RecordDispatchAttempt": {auth.Drive, oneRun}, "RecordExternalObservation": {auth.Drive, oneRun},
	"RegisterCompensation": {auth.Drive, oneRun}, "ResolveObligation": {auth.Drive, oneRun},
	"ClaimObligation": {auth.Drive, oneRun}, "RecordObligationAttempt": {auth.Drive, oneRun},
	"SetBudget": {auth.Drive, oneRun}, "ChargeBudget": {auth.Drive, oneRun}, "AwaitSignal": {auth.Drive, oneRun},
	"SetTimer": {auth.Drive, oneRun}, "CancelTimer": {auth.Drive, oneRun},

	"ListDueTimers": {auth.Drive, severalRuns}, // with claim it fires them
	"ClaimTasks":    {auth.Drive, severalRuns}, "CompleteTask": {auth.Drive, severalRuns}, "NackTask": {auth.Drive, severalRuns},
	"WriteValue": {auth.Drive, severalRuns}, "DeleteValue": {auth.Drive, severalRuns},
	"CreateSession": {auth.Drive, severalRuns}, "DeleteSession": {auth.Drive, severalRuns}, "AppendEvent": {auth.Drive, severalRuns},

	// A gate holds a run until a decision that its driver must not make.
	"SendSignal":       {auth.Operate, oneRun},
	"CompactRun":       {auth.Operate, oneRun},
	"RegisterReaction": {auth.Operate, severalRuns}, "DeregisterReaction": {auth.Operate, severalRuns},
}

// probe is the only method without authentication: orchestrators and load balancers have no
// credentials. Watch needs them, because a stream occupies memory as long as its client likes.
const probe = "/grpc.health.v1.Health/Check"

// accessOf returns what a method needs; false for a method without an entry, which is refused.
func accessOf(method string) (access, bool) {
	service, name := path.Split(strings.TrimPrefix(method, "/"))
	switch service {
	case tapepb.Tape_ServiceDesc.ServiceName + "/":
		a, ok := accesses[name]
		return a, ok
	case "grpc.health.v1.Health/", "grpc.reflection.v1.ServerReflection/", "grpc.reflection.v1alpha.ServerReflection/":
		return access{auth.Read, noRun}, true
	default:
		return access{}, false
	}
}

var (
	// errUnauthenticated and errPermission are the kinds of refusals, and errUnchecked is that of
	// credentials that cannot be checked at present; see statusTable.
	errUnauthenticated = errors.New("unauthenticated")
	errPermission      = errors.New("permission denied")
	errUnchecked       = errors.New("not authenticated")
)

// authenticate checks the credentials and the role of a call, and returns the client's name for
// limits and the call's context, which has the principal.
func (s *Server) authenticate(ctx context.Context) (client string, _ context.Context, err error) {
	method, _ := grpc.Method(ctx)
	address := clientAddress(ctx)
	client = clientlimit.Network(address)
	var p auth.Principal
	if s.opts.Auth == nil || method == probe {
		err = s.checkCertificate(ctx)
	} else if p, err = s.principal(ctx, method); err == nil {
		ctx = auth.NewContext(ctx, p)
		client = "principal " + p.Name
	}
	if err != nil {
		s.refused.log(s.opts.Logger, method, address, p.Name, err)
		return client, ctx, accessStatus(method, err)
	}
	return client, ctx, nil
}

// principal returns the principal of a call, and an error unless it may call the method.
func (s *Server) principal(ctx context.Context, method string) (auth.Principal, error) {
	if err := s.checkCertificate(ctx); err != nil {
		return auth.Principal{}, err
	}
	given := auth.Credentials{Headers: metadata.ValueFromIncomingContext(ctx, "authorization")}
	if info, ok := tlsOf(ctx); ok && s.opts.TLS != nil && s.opts.TLS.Mutual() && len(info.State.VerifiedChains) > 0 {
		given.Certificate = info.State.PeerCertificates[0]
	}
	p, err := s.opts.Auth.Authenticate(ctx, given)
	switch {
	case errors.Is(err, auth.ErrUnauthenticated):
		return p, fmt.Errorf("%w%s", errUnauthenticated, strings.TrimPrefix(err.Error(), auth.ErrUnauthenticated.Error()))
	case err != nil:
		return p, fmt.Errorf("%w: %w", errUnchecked, err)
	}
	need, ok := accessOf(method)
	switch {
	case !ok:
		return p, fmt.Errorf("%w: no role may call %s", errPermission, path.Base(method))
	case p.Role < need.role:
		return p, fmt.Errorf("%w: %s needs the role %v, and %s has the role %v", errPermission, path.Base(method), need.role, p.Name, p.Role)
	case p.Limited() && need.subject == severalRuns:
		return p, fmt.Errorf("%w: %s concerns several runs or what runs share, and %s is limited to the runs of its tenants", errPermission, path.Base(method), p.Name)
	}
	return p, nil
}

// checkCertificate checks the certificate of a call's connection against the files as they are now.
func (s *Server) checkCertificate(ctx context.Context) error {
	if s.opts.TLS == nil {
		return nil
	}
	info, ok := tlsOf(ctx)
	if !ok {
		return fmt.Errorf("%w: the connection has no TLS", errUnauthenticated)
	}
	if err := s.opts.TLS.CheckClient(info.State); err != nil {
		return fmt.Errorf("%w: %w", errUnauthenticated, err)
	}
	return nil
}

func tlsOf(ctx context.Context) (credentials.TLSInfo, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return credentials.TLSInfo{}, false
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	return info, ok
}

// accessStatus returns the status of a refusal. Clients act on every other status of BeginEffect than
// PERMISSION_DENIED; see beginEffectStatus.
func accessStatus(method string, err error) error {
	if method == tapepb.Tape_BeginEffect_FullMethodName {
		return beginEffectStatus(err)
	}
	return statusOf(err)
}

// tenant checks that a request concerns a run of a tenant of its principal. It returns the run's
// tenant; "" if the principal is not limited.
func (s *Server) tenant(ctx context.Context, method string, req any) (string, error) {
	p, ok := auth.FromContext(ctx)
	if !ok || !p.Limited() {
		return "", nil
	}
	need, _ := accessOf(method)
	switch need.subject {
	case noRun:
		return "", nil
	case newRun:
		begin, ok := req.(*tapepb.BeginRunRequest)
		if !ok || !p.Admits(begin.GetTenantId()) {
			return "", accessStatus(method, fmt.Errorf("%w: tenant_id is no tenant of %s", errPermission, p.Name))
		}
		return begin.GetTenantId(), nil
	case oneRun:
		if named, ok := req.(interface{ GetRunId() string }); ok {
			run, err := s.tape.GetRun(ctx, runstore.RunID(named.GetRunId()))
			if err != nil && !errors.Is(err, tape.ErrNoSuchRun) {
				return "", accessStatus(method, err)
			}
			if err == nil && p.Admits(run.Tenant) {
				return run.Tenant, nil
			}
		}
	}
	return "", accessStatus(method, notOfTenant(p))
}

func notOfTenant(p auth.Principal) error {
	return fmt.Errorf("%w: there is no such run of a tenant of %s", errPermission, p.Name)
}

// admitIdentity returns the check of BeginRun for a run that exists; nil if the call's principal is
// not limited to tenants.
func admitIdentity(ctx context.Context) func(tape.Identity) error {
	p, ok := auth.FromContext(ctx)
	if !ok || !p.Limited() {
		return nil
	}
	return func(i tape.Identity) error {
		if !p.Admits(i.Tenant) {
			return notOfTenant(p)
		}
		return nil
	}
}

// admitOther returns an error if a run that the request does not name belongs to no tenant of the
// call's principal. BeginEffect returns the effect of such a run when their business keys are equal;
// it has begun none then.
func (s *service) admitOther(ctx context.Context, id runstore.RunID) error {
	p, ok := auth.FromContext(ctx)
	if !ok || !p.Limited() {
		return nil
	}
	run, err := s.tape.GetRun(ctx, id)
	if err == nil && !p.Admits(run.Tenant) || errors.Is(err, tape.ErrNoSuchRun) {
		err = fmt.Errorf("%w: begin_effect: the business key has an effect in no run of a tenant of %s", errPermission, p.Name)
	}
	return err
}

// keepChecking ends a stream when its credentials no longer admit it: the token or the certificate
// has expired, has been withdrawn or revoked, or the principal has lost the role or the tenant. It
// returns when the call ends. A check that is not possible at present ends nothing.
func (s *Server) keepChecking(c *call) {
	if s.opts.Auth == nil && (s.opts.TLS == nil || !s.opts.TLS.Mutual()) {
		return
	}
	timer := time.NewTimer(s.opts.AuthInterval)
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-timer.C:
		}
		if err := s.checkAgain(c); err != nil {
			c.cancel(accessEnded{err})
			return
		}
		timer.Reset(s.opts.AuthInterval)
	}
}

func (s *Server) checkAgain(c *call) error {
	method, _ := grpc.Method(c.ctx)
	if s.opts.Auth == nil {
		if err := s.checkCertificate(c.ctx); err != nil {
			return accessStatus(method, err)
		}
		return nil
	}
	p, err := s.principal(c.ctx, method)
	if err == nil {
		// The tenant is "" if the principal was not limited yet, and a limited one admits no such tenant.
		need, _ := accessOf(method)
		if tenant := c.tenant.Load(); tenant != nil && need.subject == oneRun && !p.Admits(*tenant) {
			err = notOfTenant(p)
		}
	}
	if errors.Is(err, errUnauthenticated) || errors.Is(err, errPermission) {
		s.refused.log(s.opts.Logger, method, clientAddress(c.ctx), p.Name, err)
		return accessStatus(method, err)
	}
	return nil
}

// accessEnded is the cancellation cause of a stream whose credentials have ended.
type accessEnded struct{ status error }

func (e accessEnded) Error() string { return e.status.Error() }
