package faultyservers

import (
	"context"
	"sync"

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
			Name: "decisions-without-a-fence", Case: "T11/nothing-of-a-zombie-after-the-takeover",
			Breaks: "It does not check the fence of RecordDecision, so a driver whose run was taken over never ends.",
			fault:  changing(func(m *tapepb.RecordDecisionRequest) { m.Fence = nil }),
		},
		{
			Name: "fence-checked-before-the-write", Case: "T11/nothing-of-a-zombie-after-the-takeover",
			Breaks: "It checks a fence in one step and writes in a second, so a write in flight at a takeover is applied after the grant.",
			fault: func() fault {
				return (&twoSteps{runs: map[string]*inFlight{}}).fault()
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

// twoSteps checks the fence of RecordDecision in one step and writes without it in a second. In each
// run it keeps one write of the first driver between the two steps until another driver has the
// grant, and applies it before the reply to the takeover.
type twoSteps struct {
	mu   sync.Mutex
	runs map[string]*inFlight // by invocation
}

// inFlight is the write of a run that is kept between its two steps.
type inFlight struct {
	run                     string
	checked, taken, applied chan struct{}
}

// keptDecision is the index of the write that is kept: a driver that has had some writes applied is
// at work when it is taken over.
const keptDecision = 3

func (s *twoSteps) fault() fault {
	return fault{unary: func(c call) (proto.Message, error) {
		switch m := c.req.(type) {
		case *tapepb.BeginRunRequest:
			return s.begin(c, m.GetAppName()+"/"+m.GetInvocationId())
		case *tapepb.RecordDecisionRequest:
			if m.GetDecisionIndex() == keptDecision && m.GetFence() != nil {
				return s.write(c, m)
			}
		}
		return c.forward(c.req)
	}}
}

// begin forwards a BeginRun. A takeover of a run waits for the write between its steps.
func (s *twoSteps) begin(c call, invocation string) (proto.Message, error) {
	s.mu.Lock()
	w := s.runs[invocation]
	s.mu.Unlock()
	if w != nil {
		if err := received(c.ctx, w.checked); err != nil {
			return nil, err
		}
	}
	answer, err := c.forward(c.req)
	if err != nil {
		return nil, err
	}
	if w != nil {
		close(w.taken)
		return answer, received(c.ctx, w.applied)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[invocation] = &inFlight{
		run: answer.(*tapepb.BeginRunResponse).GetRunId(), checked: make(chan struct{}), taken: make(chan struct{}), applied: make(chan struct{}),
	}
	return answer, nil
}

// write checks the fence of a decision, and writes the decision once the run was taken over.
func (s *twoSteps) write(c call, m *tapepb.RecordDecisionRequest) (proto.Message, error) {
	run, err := c.server.GetRun(c.ctx, &tapepb.GetRunRequest{RunId: m.GetRunId()})
	if err != nil || run.GetToken() != m.GetFence().GetToken() {
		return c.forward(m) // refused
	}
	var w *inFlight
	s.mu.Lock()
	for _, other := range s.runs {
		if other.run == m.GetRunId() {
			w = other
		}
	}
	s.mu.Unlock()
	close(w.checked)
	if err := received(c.ctx, w.taken); err != nil {
		return nil, err
	}
	defer close(w.applied)
	m.Fence = nil
	return c.forward(m)
}

// received waits until done is closed, or returns the reason why ctx has ended.
func received(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
