package tapeserver

import (
	"cmp"
	"context"
	"sync/atomic"

	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tail"
	"github.com/tapestore/tapestore/tape"
	"github.com/tapestore/tapestore/tape/predicate"
	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// service translates between the wire and package tape. Methods that it does not define return
// UNIMPLEMENTED.
type service struct {
	tapepb.UnimplementedTapeServer
	tape     *tape.Tape
	tail     *tail.Tail
	opts     Options
	grants   *grantPool    // the grants that all connections store
	unfenced *atomic.Int64 // number of drivers' writes that were made without a fence
	draining <-chan struct{}

	predicates *predicate.Cache
	pages      *pageTokens
	// confirm checks that an id still names the run of the call's principal; see Server.confirm.
	confirm func(context.Context, ownRun) error
	// reactionsChanged makes the server's matcher list the reactions soon.
	reactionsChanged func()
}

func (s *service) BeginRun(ctx context.Context, req *tapepb.BeginRunRequest) (*tapepb.BeginRunResponse, error) {
	key := tape.RunKey{
		App: req.GetAppName(), User: req.GetUserId(), Session: req.GetSessionId(), Invocation: req.GetInvocationId(),
	}
	if err := s.room(ctx, key.ID(), req, ""); err != nil {
		return nil, err
	}
	var r tape.BeginRunResult
	var renewed runstore.Token
	err := s.take(ctx, key.ID(), req, req.GetWaitForLease(), func(fence runstore.Fence, takeover tape.Takeover) (err error) {
		renewed = fence.Token()
		r, err = s.tape.BeginRun(ctx, tape.BeginRunRequest{
			Key: key, Owner: req.GetLeaseOwner(), Reactor: req.GetReactor(), TTL: s.leaseTTL(req.GetLeaseTtlMs(), cmp.Or(req.GetReactor(), "agent")), Takeover: takeover, Fence: fence, Admit: admitIdentity(ctx),
			Identity: tape.Identity{
				Tenant: req.GetTenantId(), Actor: req.GetActor(), Subject: req.GetSubject(), AgentID: req.GetAgentId(),
				InstanceID: req.GetAiplexInstanceId(), GatewayRoute: req.GetGatewayRoute(),
				Scopes: req.GetScopes(), Labels: req.GetLabels(),
			},
		})
		return err
	})
	if err != nil {
		return nil, statusOf(ofOwnRun(ctx, err))
	}
	s.granted(ctx, r.Lease, renewed)
	return &tapepb.BeginRunResponse{
		RunId: string(r.ID), Resumed: r.Resumed, NextSeq: int64(r.LastSeq), Status: tapepb.RunStatus(r.Status),
		Grant: answerGrant(ctx, r.Lease),
	}, nil
}

func (s *service) ResumeRun(ctx context.Context, req *tapepb.ResumeRunRequest) (*tapepb.ResumeRunResponse, error) {
	id := runstore.RunID(req.GetRunId())
	heartbeat := req.GetLeaseOwner()
	if req.GetWaitForLease() {
		heartbeat = ""
	}
	if err := s.room(ctx, id, req, heartbeat); err != nil {
		return nil, err
	}
	var run tape.Run
	var lease runstore.Lease
	var renewed runstore.Token
	var former runstore.Fence // the connection's grant, once the store has refused it
	err := s.take(ctx, id, req, req.GetWaitForLease(), func(fence runstore.Fence, takeover tape.Takeover) (err error) {
		renewed = fence.Token()
		if req.GetWaitForLease() { // requests its own lease, and must not act as a heartbeat for another process of the same name
			takeover = tape.TakeNone
		}
		run, lease, err = s.tape.ResumeRun(ctx, tape.ResumeRunRequest{
			Run: id, Owner: req.GetLeaseOwner(), Reactor: req.GetReactor(), TTL: s.leaseTTL(req.GetLeaseTtlMs(), cmp.Or(req.GetReactor(), "agent")), Takeover: takeover, Fence: fence,
			RenewExpired: s.opts.Fence == tape.FenceConnection && !req.GetWaitForLease(), Former: former,
		})
		former = fence
		return err
	})
	if err != nil {
		return nil, statusOf(err)
	}
	s.granted(ctx, lease, renewed)
	return &tapepb.ResumeRunResponse{Run: runState(run), Grant: answerGrant(ctx, lease)}, nil
}

func (s *service) EndRun(ctx context.Context, req *tapepb.EndRunRequest) (*tapepb.EndRunResponse, error) {
	id := runstore.RunID(req.GetRunId())
	fence, err := s.fence(ctx, id, req)
	if err != nil {
		return nil, statusOf(err)
	}
	run, err := s.tape.EndRun(ctx, tape.EndRunRequest{
		Run: id, Status: tape.RunStatus(req.GetStatus()), Detail: req.GetDetailJson(), Fence: fence,
	})
	if err != nil {
		return nil, statusOf(s.refused(ctx, fence, err))
	}
	if run.Status != tape.RunCompensating {
		s.released(ctx, fence)
	}
	if req.GetStatus() != tapepb.RunStatus_RUN_STATUS_CANCELLED { // anyone may cancel a run
		s.wrote(fence)
	}
	return &tapepb.EndRunResponse{Run: runState(run)}, nil
}

func (s *service) GetRun(ctx context.Context, req *tapepb.GetRunRequest) (*tapepb.RunState, error) {
	run, err := s.tape.GetRun(ctx, runstore.RunID(req.GetRunId()))
	if err != nil {
		return nil, statusOf(err)
	}
	return runState(run), nil
}

func (s *service) ListRunsToRecover(ctx context.Context, req *tapepb.ListRunsToRecoverRequest) (*tapepb.ListRunsToRecoverResponse, error) {
	now, limit := clockOf(req.GetNowMs()), limitOf(req.GetLimit())
	runs, next, err := listed(ctx, s, req.GetPageToken(), "runs to recover",
		func() ([]tape.Run, error) { return s.tape.ListRunsToRecover(ctx, now, limit) },
		func(p tape.Part) ([]tape.Run, string, error) { return p.ListRunsToRecover(ctx, now, limit) })
	if err != nil {
		return nil, statusOf(err)
	}
	response := &tapepb.ListRunsToRecoverResponse{NextPageToken: next}
	for _, r := range runs {
		response.Runs = append(response.Runs, runState(r))
	}
	return response, nil
}
