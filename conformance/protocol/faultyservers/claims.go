package faultyservers

import (
	"google.golang.org/protobuf/proto"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

// changing returns a fault that changes requests of one type.
func changing[M proto.Message](change func(M)) func() fault {
	return func() fault {
		return fault{unary: func(c call) (proto.Message, error) {
			if m, ok := c.req.(M); ok {
				change(m)
			}
			return c.forward(c.req)
		}}
	}
}

func claimServers() []Server {
	return []Server{
		{
			Name: "dispatch-reports-without-a-generation", Case: "T3/late-dispatcher-changes-nothing",
			Breaks: "It records a failed dispatch from any caller, so a dispatcher whose claim has expired takes the effect from its successor.",
			fault:  changing(func(m *tapepb.RecordDispatchAttemptRequest) { m.ClaimGeneration = 0 }),
		},
		{
			Name: "outcomes-without-a-generation", Case: "T3/late-dispatcher-changes-nothing",
			Breaks: "It records the outcome of a dispatcher whose claim has expired, while its successor calls the counterparty.",
			fault:  changing(func(m *tapepb.CompleteEffectRequest) { m.ClaimGeneration = 0 }),
		},
		{
			Name: "obligation-attempts-without-a-generation", Case: "T3/late-compensator-changes-nothing",
			Breaks: "It records a failed attempt from any caller, so an obligation is worked on twice.",
			fault:  changing(func(m *tapepb.RecordObligationAttemptRequest) { m.ClaimGeneration = 0 }),
		},
		{
			Name: "resolutions-without-a-generation", Case: "T3/late-compensator-changes-nothing",
			Breaks: "It resolves an obligation for a claimer whose claim has expired.",
			fault:  changing(func(m *tapepb.ResolveObligationRequest) { m.ClaimGeneration = 0 }),
		},
		{
			Name: "dispatch-claimed-on-a-look", Case: "T3/one-dispatcher",
			Breaks: "It grants a claim on state that it read earlier, so several dispatchers get one effect.",
			fault:  func() fault { return fault{unary: claimOnLook} },
		},
		{
			Name: "obligation-claimed-on-a-look", Case: "T3/one-obligation-claimer",
			Breaks: "It grants a claim on state that it read earlier, so several claimers get one obligation.",
			fault:  func() fault { return fault{unary: claimObligationOnLook} },
		},
		{
			Name: "timers-fired-on-a-look", Case: "timers/54-claimed-once",
			Breaks: "It lists due timers and fires them in a second step, so several claimers get one timer.",
			fault:  func() fault { return fault{unary: fireOnLook} },
		},
	}
}

// claimOnLook grants a dispatch claim whenever the effect was unclaimed before the call.
func claimOnLook(c call) (proto.Message, error) {
	req, ok := c.req.(*tapepb.ClaimEffectDispatchRequest)
	if !ok {
		return c.forward(c.req)
	}
	look, err := c.server.GetEffect(c.ctx, &tapepb.GetEffectRequest{RunId: req.GetRunId(), IdempotencyKey: req.GetIdempotencyKey()})
	if err != nil {
		return nil, err
	}
	answer, err := c.server.ClaimEffectDispatch(c.ctx, req)
	if err == nil && look.GetFound() && look.GetEffect().GetDispatchClaimedBy() == "" {
		answer.Acquired = true
		answer.Effect.DispatchClaimedBy = req.GetClaimer()
	}
	return answer, err
}

// claimObligationOnLook grants a claim whenever the obligation was PENDING before the call.
func claimObligationOnLook(c call) (proto.Message, error) {
	req, ok := c.req.(*tapepb.ClaimObligationRequest)
	if !ok {
		return c.forward(c.req)
	}
	look, err := c.server.ListObligations(c.ctx, &tapepb.ListObligationsRequest{RunId: req.GetRunId(), StatusFilter: tapepb.ObligationStatus_OBLIGATION_STATUS_PENDING})
	if err != nil {
		return nil, err
	}
	answer, err := c.server.ClaimObligation(c.ctx, req)
	for _, o := range look.GetObligations() {
		if err == nil && o.GetSeq() == req.GetObligationSeq() {
			answer.Acquired = true
			answer.Obligation.ClaimedBy = req.GetClaimer()
		}
	}
	return answer, err
}

// fireOnLook returns every timer that was due before the call as fired for this caller.
func fireOnLook(c call) (proto.Message, error) {
	req, ok := c.req.(*tapepb.ListDueTimersRequest)
	if !ok || !req.GetClaim() {
		return c.forward(c.req)
	}
	look, err := c.server.ListDueTimers(c.ctx, &tapepb.ListDueTimersRequest{NowMs: req.GetNowMs(), Limit: req.GetLimit()})
	if err != nil {
		return nil, err
	}
	if _, err := c.server.ListDueTimers(c.ctx, req); err != nil {
		return nil, err
	}
	for _, timer := range look.GetTimers() {
		timer.Fired = true
	}
	return look, nil
}
