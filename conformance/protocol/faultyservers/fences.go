package faultyservers

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func fenceServers() []Server {
	return []Server{
		{
			Name: "charges-without-a-fence", Case: "T11/every-writing-rpc-refuses-a-zombie",
			Breaks: "It does not check the fence of one RPC, so a driver whose run was taken over continues to charge.",
			fault:  changing(func(m *tapepb.ChargeBudgetRequest) { m.Fence = nil }),
		},
		{
			Name: "fence-checked-on-new-effects-only", Case: "T11/refused-begin-effect-is-permission-denied",
			Breaks: "It returns the run's effect to a zombie, so the zombie acts.",
			fault: func() fault {
				return fault{unary: func(c call) (proto.Message, error) {
					answer, err := c.forward(c.req)
					m, ok := c.req.(*tapepb.BeginEffectRequest)
					if !ok || err == nil || m.GetCustomKey() == "" {
						return answer, err
					}
					found, getErr := c.server.GetEffect(c.ctx, &tapepb.GetEffectRequest{RunId: m.GetRunId(), IdempotencyKey: m.GetCustomKey()})
					if getErr != nil || !found.GetFound() {
						return answer, err
					}
					return &tapepb.BeginEffectResponse{Seq: found.GetEffect().GetSeq(), IdempotencyKey: m.GetCustomKey(), Status: found.GetEffect().GetStatus()}, nil
				}}
			},
		},
		{
			Name: "headers-ignored", Case: "T11/every-writing-rpc-refuses-a-zombies-headers",
			Breaks: "It does not read the fence of a request's headers, so writes are not fenced although their senders presented a fence.",
			fault:  func() fault { return fault{bare: true} },
		},
		{
			Name: "refusal-that-looks-like-a-fault", Case: "T11/refused-begin-effect-is-permission-denied",
			Breaks: "It refuses BeginEffect with FAILED_PRECONDITION, which plugins treat as a transient fault, and act.",
			fault: func() fault {
				return fault{unary: func(c call) (proto.Message, error) {
					answer, err := c.forward(c.req)
					if _, ok := c.req.(*tapepb.BeginEffectRequest); ok && status.Code(err) == codes.PermissionDenied {
						s := status.Convert(err).Proto()
						s.Code = int32(codes.FailedPrecondition)
						return nil, status.ErrorProto(s)
					}
					return answer, err
				}}
			},
		},
		{
			Name: "heartbeat-takes-over", Case: "T11/a-heartbeat-is-no-takeover",
			Breaks: "It treats every ResumeRun as a takeover, so a helper's heartbeat takes the run from its own driver.",
			fault: changing(func(m *tapepb.ResumeRunRequest) {
				if m.GetFence() == nil {
					m.LeaseOwner += "'"
				}
			}),
		},
		{
			Name: "live-lease-is-always-taken", Case: "T11/a-waiting-driver-takes-no-live-lease",
			Breaks: "It takes over a live lease even for a driver that sets wait_for_lease, so two recovery workers evict each other.",
			fault:  changing(func(m *tapepb.BeginRunRequest) { m.WaitForLease = false }),
		},
		{
			Name: "heartbeat-revives", Case: "runs/8-cancelled-run-is-not-listed",
			Breaks: "It makes a CANCELLED run RUNNING at a late heartbeat, so recovery drives the run again.",
			fault: func() fault {
				return fault{unary: func(c call) (proto.Message, error) {
					m, ok := c.req.(*tapepb.ResumeRunRequest)
					if !ok {
						return c.forward(c.req)
					}
					run, err := c.server.GetRun(c.ctx, &tapepb.GetRunRequest{RunId: m.GetRunId()})
					if err != nil {
						return nil, err
					}
					if _, err = c.server.BeginRun(c.ctx, &tapepb.BeginRunRequest{
						AppName: run.GetAppName(), UserId: run.GetUserId(), SessionId: run.GetSessionId(), InvocationId: run.GetInvocationId(), LeaseOwner: m.GetLeaseOwner(),
					}); err != nil {
						return nil, err
					}
					return c.forward(c.req)
				}}
			},
		},
	}
}
