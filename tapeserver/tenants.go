package tapeserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tapeserver/auth"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// A principal that is limited to tenants gets no data of other tenants. A tenant belongs to a run: BeginRun
// stores it with a new run, and it does not change. A run that is purged and begun again is another run,
// perhaps of another tenant. Invariants:
//
//  1. For a method that names a run, the run's tenant is read from the store before the handler runs. A
//     run that does not exist and one of another tenant are refused alike.
//  2. A run that was purged and begun again meanwhile is recognised by the time at which it began. The
//     reply of a method that reads, and each page of SubscribeRun, is dropped if it may be of that run.
//  3. BeginRun names a tenant and may create its run: package tape checks the tenant of a run that
//     exists, before anything is changed.
//  4. A list shows an entry if the tenant in the head of its run, as read with the entry, is one of the
//     principal's. A page token is sealed; see pageTokens.
//  5. A feed sends an entry if its run is one of the principal's; see ownEntries.
//  6. Errors that may name other runs have a fixed text; see confined.
//  7. Everything that has no tenant is refused: runs without one, and the methods of subject shared.

// ownRun is a run of one of the tenants of a limited principal.
type ownRun struct {
	id     runstore.RunID
	tenant string
	began  time.Time
}

// limited returns the principal of a call if it is limited to tenants.
func limited(ctx context.Context) (auth.Principal, bool) {
	p, ok := auth.FromContext(ctx)
	return p, ok && p.Limited()
}

// own checks that a request concerns a run of a tenant of its principal. It returns the run; zero if the
// principal is not limited or the request names no run.
func (s *Server) own(ctx context.Context, method string, req any) (ownRun, error) {
	p, ok := limited(ctx)
	if !ok {
		return ownRun{}, nil
	}
	need, _ := accessOf(method)
	switch need.subject {
	case noRun, filtered:
		return ownRun{}, nil
	case newRun:
		begin, ok := req.(*tapepb.BeginRunRequest)
		if !ok || !p.Admits(begin.GetTenantId()) {
			return ownRun{}, accessStatus(method, fmt.Errorf("%w: tenant_id is no tenant of %s", errPermission, p.Name))
		}
		return ownRun{}, nil
	case oneRun, runOrSession:
		named, ok := req.(interface{ GetRunId() string })
		if ok && named.GetRunId() == "" && need.subject == runOrSession {
			return ownRun{}, nil // see newestOwn
		}
		if ok {
			run, err := s.ownRun(ctx, p, runstore.RunID(named.GetRunId()))
			if err != nil {
				err = accessStatus(method, err)
			}
			return run, err
		}
	}
	return ownRun{}, accessStatus(method, notOfTenant(p))
}

// ownRun returns the run with an id, and an error unless it is of a tenant of p. The error is the same
// for a run that cannot be read, which may be of another tenant.
func (s *Server) ownRun(ctx context.Context, p auth.Principal, id runstore.RunID) (ownRun, error) {
	run, err := s.tape.GetRun(ctx, id)
	switch {
	case errors.Is(err, tape.ErrNoSuchRun):
	case errors.Is(err, tape.ErrFormat), errors.Is(err, runstore.ErrCorrupt):
		s.watch.damaged("GetRun", statusOf(err))
	case err != nil:
		return ownRun{}, err
	case p.Admits(run.Tenant):
		return ownRun{id, run.Tenant, run.StartedAt}, nil
	}
	return ownRun{}, notOfTenant(p)
}

// confirm checks that an id still names the run that it named before. It does nothing for the zero run.
func (s *Server) confirm(ctx context.Context, before ownRun) error {
	p, ok := limited(ctx)
	if !ok || before.id == "" {
		return nil
	}
	run, err := s.ownRun(ctx, p, before.id)
	if err == nil && (run.tenant != before.tenant || !run.began.Equal(before.began)) {
		err = notOfTenant(p)
	}
	if err != nil {
		return statusOf(err)
	}
	return nil
}

// runOf returns the run that a stream's request names; zero if its principal is not limited to tenants.
func runOf(ctx context.Context) ownRun {
	st, ok := ctx.Value(streamKey{}).(*admittedStream)
	if !ok {
		return ownRun{}
	}
	return *st.call.run.Load() // set when the request was received
}

func notOfTenant(p auth.Principal) error {
	return fmt.Errorf("%w: there is no such run of a tenant of %s", errPermission, p.Name)
}

// admitIdentity returns the check of BeginRun for a run that exists; nil if the call's principal is
// not limited to tenants.
func admitIdentity(ctx context.Context) func(tape.Identity) error {
	p, ok := limited(ctx)
	if !ok {
		return nil
	}
	return func(i tape.Identity) error {
		if !p.Admits(i.Tenant) {
			return notOfTenant(p)
		}
		return nil
	}
}

// admitOther returns an error if an effect belongs to a run of no tenant of the call's principal.
// BeginEffect returns such an effect when the business keys are equal; it has begun none then.
func (s *service) admitOther(ctx context.Context, e tape.Effect) error {
	p, ok := limited(ctx)
	if !ok {
		return nil
	}
	run, err := s.tape.GetRun(ctx, e.Run)
	// An effect that is older than the run is one of a purged run.
	if err == nil && (!p.Admits(run.Tenant) || e.Time.Before(run.StartedAt)) || errors.Is(err, tape.ErrNoSuchRun) || errors.Is(err, tape.ErrFormat) || errors.Is(err, runstore.ErrCorrupt) {
		return fmt.Errorf("%w: begin_effect: the business key has an effect in no run of a tenant of %s", errPermission, p.Name)
	}
	if err != nil {
		return fmt.Errorf("%w: begin_effect: the business key has an effect, and its run cannot be read now: %v", tape.ErrEffectExists, err)
	}
	return nil
}

// newestOwn returns the run to which SendSignal sends a signal that names a session only; "" if the
// call's principal is not limited to tenants.
func (s *service) newestOwn(ctx context.Context, req sessionRequest) (runstore.RunID, error) {
	p, ok := limited(ctx)
	if !ok {
		return "", nil
	}
	id, err := s.tape.NewestRun(ctx, req.GetAppName(), req.GetUserId(), req.GetSessionId(), p.Admits)
	if errors.Is(err, tape.ErrNoSuchRun) {
		err = notOfTenant(p)
	}
	return id, err
}

// admittedBy returns an error unless p, the principal that a stream has now, may go on to receive it.
func (c *call) admittedBy(p auth.Principal, method string) error {
	need, _ := accessOf(method)
	switch need.subject {
	case oneRun:
		// The tenant is "" if the principal was not limited yet, and a limited one admits no such tenant.
		if run := c.run.Load(); run != nil && !p.Admits(run.tenant) {
			return notOfTenant(p)
		}
	case filtered:
		was, _ := auth.FromContext(c.ctx)
		ok := !p.Limited() || was.Limited()
		for _, tenant := range was.Tenants {
			ok = ok && p.Admits(tenant)
		}
		if !ok {
			return fmt.Errorf("%w: %s has lost a tenant", errPermission, p.Name)
		}
	}
	return nil
}

// confined returns the error of a call as a principal that is limited to tenants gets it. run is the run
// that the request names. Errors of lists and feeds, of looking for the run of a session and of a business
// key may name runs of other tenants, so their texts are replaced.
func confined(ctx context.Context, method string, req any, run ownRun, err error) error {
	if _, ok := limited(ctx); !ok || err == errShuttingDown {
		return err
	}
	need, _ := accessOf(method)
	effect, _ := req.(*tapepb.BeginEffectRequest)
	switch {
	case need.subject == filtered, need.subject == runOrSession && run.id == "":
		return withoutText(err)
	case effect.GetBusinessKey() != "" && !slices.Contains(ownReasons, reasonOf(err)):
		return replaceText(err)
	}
	return err
}

// ownReasons are the reasons of errors of BeginEffect that are about the request and its run.
var ownReasons = []string{
	"PERMISSION_DENIED", "NO_SUCH_RUN", "SCOPE_NOT_GRANTED", "REFUSED", "FENCE_REQUIRED", "FENCED", "LEASE_EXPIRED",
	"INVALID", "TOO_LARGE",
}

// withoutText returns the status of an error with a fixed text, unless the error is about the request, the
// credentials or the call.
func withoutText(err error) error {
	switch status.Code(err) {
	case codes.Internal, codes.DataLoss, codes.Unknown, codes.Unavailable, codes.Aborted, codes.FailedPrecondition, codes.NotFound, codes.Unimplemented:
	default:
		return err
	}
	return replaceText(err)
}

// replaceText returns a status with its code, its reason and the position to resume from, and with a fixed
// text.
func replaceText(err error) error {
	code := status.Code(err)
	info := &errdetails.ErrorInfo{Domain: errorDomain, Reason: reasonOf(err)}
	text := "the store could not answer; the server's log says why"
	for _, d := range status.Convert(err).Details() {
		if former, ok := d.(*errdetails.ErrorInfo); ok && former.GetMetadata()[resumeFrom] != "" {
			info.Metadata = map[string]string{resumeFrom: former.GetMetadata()[resumeFrom]}
			text += "; resume from global_seq " + former.GetMetadata()[resumeFrom]
		}
	}
	replaced, failed := status.New(code, text).WithDetails(info)
	if failed != nil {
		return status.Error(code, text)
	}
	return replaced.Err()
}

// ofOwnRun returns the error of a call of BeginRun. One that is presented a fence creates no run, so for a
// run that does not exist or cannot be read it returns the error for one of another tenant.
func ofOwnRun(ctx context.Context, err error) error {
	p, ok := limited(ctx)
	if ok && (errors.Is(err, tape.ErrNoSuchRun) || errors.Is(err, tape.ErrFormat) || errors.Is(err, runstore.ErrCorrupt)) {
		return notOfTenant(p)
	}
	return err
}
